"""A small Llama learns to say what the target says: cross-entropy of its texts, mixed with KL to its law.

How much of a target's greedy text a draft model says itself.
"""

import copy
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from dare_job.decode.draft.model import ModelDrafter
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.errors import ModelError
from dare_job.publish.prompted_texts import Row
from dare_job.training.drafter.settings import Settings
from dare_job.training.drafter.teacher import Lesson, lessons
from dare_job.training.embedded.initialise import add_copy_circuit
from dare_job.training.loop import MovingAverages, Schedule, Stream, Training, fit

_WARMUP = 0.1  # of the steps

_WIDTH_STEP = 32  # a row is padded to a multiple: a CPU's kernels are made anew for each shape

_CIRCUIT_HEADS, _CIRCUIT_SIZE = 4, 48  # that ``add_copy_circuit`` needs


class Batch(NamedTuple):
    """ids (B, W) padded on the right; of N places with a target: their number in the flat batch, the next
    token, and the target's most probable tokens (N, K) and shares (N, K).
    """

    ids: torch.Tensor
    places: torch.Tensor
    following: torch.Tensor
    tokens: torch.Tensor
    shares: torch.Tensor


def network(tokenizer: PreTrainedTokenizerBase, vocabulary: int, context: int,
            settings: Settings) -> LlamaForCausalLM:
    """An untrained model that can already copy, where its heads are large enough for that."""
    torch.manual_seed(settings.seed)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=vocabulary, hidden_size=settings.width, intermediate_size=2 * settings.width,
        num_hidden_layers=settings.layers, num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads, max_position_embeddings=context, tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id))
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, do_sample=False)
    large = settings.heads >= _CIRCUIT_HEADS and settings.width // settings.heads >= _CIRCUIT_SIZE
    if large and settings.layers >= 2:
        add_copy_circuit(model, torch.Generator().manual_seed(settings.seed))
    return model


def train(model: LlamaForCausalLM, lessons: list[Lesson], settings: Settings, device: str) -> dict:
    """Train in place; returns steps, tokens and late losses. Raises ModelError where one is no number."""
    averages, tokens = MovingAverages(), 0

    def loss(batch: Batch) -> torch.Tensor:
        nonlocal tokens
        tokens += batch.ids.numel()
        text, divergence = _losses(model, batch, settings)
        averages.add(loss=text.item(), kl=divergence.item())
        return (1 - settings.kl) * text + settings.kl * divergence

    stream = Stream(batches(lessons, settings), settings.steps)
    schedule = Schedule(1, settings.rate, 0.0, round(_WARMUP * settings.steps), 0)
    record = fit(model.to(device), Training(lambda epoch: stream, loss, name="draft model"), schedule,
                 optimizers=_optimizers(model, settings.rate))
    model.cpu()
    return {"steps": settings.steps, "tokens": tokens, "seconds": record["seconds"],
            **{name: round(value, 4) for name, value in averages.values.items()}}


def batches(lessons: list[Lesson], settings: Settings) -> Iterator[Batch]:
    """Without end, the same for the same seed; a prompt that is too long loses its beginning."""
    rng = np.random.default_rng(settings.seed)
    waiting: dict[int, list[Lesson]] = defaultdict(list)
    usable = [lesson for lesson in lessons if len(lesson.row.text) < settings.context]  # one at least
    while True:
        for place in rng.permutation(len(usable)):
            row = usable[place].row
            length = min(settings.context, len(row.prompt) + len(row.text))
            width = math.ceil(length / _WIDTH_STEP) * _WIDTH_STEP
            waiting[width].append(usable[place])
            if len(waiting[width]) == max(1, settings.batch_tokens // width):
                yield _padded(waiting.pop(width), width)


def _padded(lessons: list[Lesson], width: int) -> Batch:
    ids, places = np.zeros((len(lessons), width), np.int64), []
    for line, lesson in enumerate(lessons):
        prompt, text = lesson.row.prompt[-(width - len(lesson.row.text)):], lesson.row.text
        whole = np.concatenate((prompt, text))
        ids[line, : len(whole)] = whole
        places.append(line * width + len(prompt) - 1 + np.arange(len(text)))
    parts = (np.concatenate(places), np.concatenate([lesson.row.text for lesson in lessons]),
             np.concatenate([lesson.tokens for lesson in lessons]).astype(np.int64),
             np.concatenate([lesson.shares for lesson in lessons]).astype(np.float32))
    return Batch(torch.from_numpy(ids), *map(torch.from_numpy, parts))


def _losses(model, batch: Batch, settings: Settings) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy of the texts, and KL divergence from the target's distributions."""
    batch = Batch(*(part.to(model.device) for part in batch))
    with torch.autocast(model.device.type, torch.bfloat16):
        hidden = model.base_model(input_ids=batch.ids, use_cache=False).last_hidden_state
        logits = model.get_output_embeddings()(hidden.flatten(0, 1)[batch.places])
    logits = logits.float()
    return (cross_entropy(logits, batch.following),
            divergence(logits / settings.temperature, batch.tokens, batch.shares))


def divergence(logits: torch.Tensor, tokens: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Mean KL of the target's law to that of logits (N, V), over the places of which it is known.

    tokens, shares (N, K): its most probable tokens; all others count as one.
    """
    logs = logits.log_softmax(-1)
    kept = logs.gather(1, tokens)
    rest, other = (1 - shares.sum(-1)).clamp_min(0), torch.log1p(-kept.exp().sum(-1).clamp_max(1 - 1e-6))
    found = (torch.xlogy(shares, shares) - shares * kept).sum(-1) + torch.xlogy(rest, rest) - rest * other
    known = shares[:, 0] > 0
    return (found * known).sum() / known.sum().clamp_min(1)


def _optimizers(model, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for all other weights."""
    ends = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    inner = [p for p in model.parameters() if p.dim() == 2 and id(p) not in ends]
    outer = [p for p in model.parameters() if p.dim() != 2 or id(p) in ends]
    muon = torch.optim.Muon(inner, lr=rate, momentum=0.95, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    return [torch.optim.AdamW(outer, lr=rate, betas=(0.9, 0.95), weight_decay=0.0), muon]

CHAIN = 4  # tokens that are drafted a step


def greedy(target: Target, model: LlamaForCausalLM, rows: list[Row], max_new_tokens: int | None) -> dict:
    """Over the rows, written strictly with a chain of ``CHAIN`` drafts a step.

    accepted         share of the drafted tokens that the target took
    tokens_per_step  of a row, the target's own included
    first_choice     share of the text's tokens that are the draft model's first choice behind those before
    """
    draft = Target(copy.deepcopy(model).to(target.device), check=False)
    settings = EngineSettings(batch_size=8, nodes=CHAIN, depth=CHAIN, score="never",
                              max_new_tokens=max_new_tokens)
    drafter = ModelDrafter(draft, "x".join("1" * CHAIN), vocabulary=target.vocabulary)
    requests = [Request(row.name, row.prompt.astype(np.int32)) for row in rows]
    results = {result.id: result for result in Engine(target, settings, drafter).run(requests)}
    if failed := [result for result in results.values() if result.error]:
        raise ModelError(f"held-out text {failed[0].id} could not be written: {failed[0].error}")
    steps = sum(result.target_steps for result in results.values())
    accepted = sum(result.accepted_tokens for result in results.values())
    tokens = sum(len(result.token_ids) for result in results.values())
    written = [Row(row.name, row.prompt, results[row.name].token_ids.astype(np.int64), True) for row in rows]
    same = sum(int((lesson.tokens[:, 0] == lesson.row.text).sum()) for lesson in lessons(draft, written))
    return {"rows": len(rows), "tokens": tokens, "accepted": _share(accepted, CHAIN * steps),
            "tokens_per_step": _share(accepted + steps, steps), "first_choice": _share(same, tokens)}


def _share(part: int, whole: int) -> float:
    return round(part / max(1, whole), 4)
