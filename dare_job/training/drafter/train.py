"""Train a small Llama as draft model: cross-entropy of the target's texts, mixed with KL divergence.

Also the measure of a draft model: how many of its tokens the target accepts.
"""

import copy
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dare_job.decode.draft.model import ModelDrafter
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.errors import ModelError
from dare_job.publish.prompted_texts import Row
from dare_job.training.batches import IGNORED, padded
from dare_job.training.drafter.settings import Settings
from dare_job.training.drafter.teacher import TeacherRow, teacher_rows
from dare_job.training.embedded.corpus import special_ids
from dare_job.training.embedded.initialise import add_copy_circuit
from dare_job.training.loop import MovingAverages, Schedule, Stream, Training, autocast, fit

CHAIN = 4  # drafted tokens per step of the measure
_WARMUP = 0.1  # of the steps
_WIDTH_STEP = 32  # rows are padded to a multiple: CPU kernels are compiled again for each shape
_CIRCUIT_HEADS, _CIRCUIT_SIZE = 4, 48  # minimum heads, and size of a head, of ``add_copy_circuit``


class Batch(NamedTuple):
    """Token ids (B, W), padded on the right, and N places to learn.

    Attributes
    ----------
    places : int64 (N)
        Index in the flattened batch.
    following : int64 (N)
        Next token.
    tokens, shares : (N, K)
        The target's most probable tokens and their probabilities.
    """

    ids: torch.Tensor
    places: torch.Tensor
    following: torch.Tensor
    tokens: torch.Tensor
    shares: torch.Tensor


def network(tokenizer: PreTrainedTokenizerBase, vocabulary: int, context: int,
            settings: Settings) -> LlamaForCausalLM:
    """An untrained model; with large enough heads it starts with a circuit that copies (``initialise``)."""
    torch.manual_seed(settings.seed)
    special = special_ids(tokenizer)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=vocabulary, hidden_size=settings.width, intermediate_size=2 * settings.width,
        num_hidden_layers=settings.layers, num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads, max_position_embeddings=context, tie_word_embeddings=True,
        **special))
    model.generation_config = GenerationConfig(**special, do_sample=False)
    large = settings.heads >= _CIRCUIT_HEADS and settings.width // settings.heads >= _CIRCUIT_SIZE
    if large and settings.layers >= 2:
        add_copy_circuit(model, torch.Generator().manual_seed(settings.seed))
    return model


def train(model: LlamaForCausalLM, rows: list[TeacherRow], settings: Settings, device: str) -> dict:
    """Train in place. Returns steps, tokens (padding included), moving averages of loss and kl, seconds.

    Raises
    ------
    ModelError
        The loss is not finite.
    """
    averages, tokens = MovingAverages(), 0

    def loss(batch: Batch) -> torch.Tensor:
        nonlocal tokens
        tokens += batch.ids.numel()
        text, divergence = _losses(model, batch, settings)
        averages.add(loss=text.item(), kl=divergence.item())
        return (1 - settings.kl) * text + settings.kl * divergence

    stream = Stream(batches(rows, settings), settings.steps)
    schedule = Schedule(1, settings.rate, 0.0, round(_WARMUP * settings.steps), 0)
    record = fit(model.to(device), Training(lambda epoch: stream, loss, name="draft model"), schedule,
                 optimizers=muon_and_adamw(model, settings.rate))
    model.cpu()
    return {"steps": settings.steps, "tokens": tokens, "seconds": record["seconds"],
            **{name: round(value, 4) for name, value in averages.values.items()}}


def batches(rows: list[TeacherRow], settings: Settings) -> Iterator[Batch]:
    """Yield batches without end, determined by the seed. Long prompts are truncated at their start."""
    rng = np.random.default_rng(settings.seed)
    waiting: dict[int, list[TeacherRow]] = defaultdict(list)
    usable = [row for row in rows if len(row.row.text) < settings.context]
    while True:
        for place in rng.permutation(len(usable)):
            row = usable[place].row
            length = min(settings.context, len(row.prompt) + len(row.text))
            width = math.ceil(length / _WIDTH_STEP) * _WIDTH_STEP
            waiting[width].append(usable[place])
            if len(waiting[width]) == max(1, settings.batch_tokens // width):
                yield _padded(waiting.pop(width), width)


def _padded(rows: list[TeacherRow], width: int) -> Batch:
    texts = [(row.row.prompt[-(width - len(row.row.text)):].tolist(), row.row.text.tolist()) for row in rows]
    batch = padded(texts, width, 0)
    following = batch.targets.flatten()
    places = (following != IGNORED).nonzero()[:, 0]
    tokens = torch.from_numpy(np.concatenate([row.tokens for row in rows])).long()
    shares = torch.from_numpy(np.concatenate([row.shares for row in rows])).float()
    return Batch(batch.tokens, places, following[places], tokens, shares)


def _losses(model, batch: Batch, settings: Settings) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy of the texts, and KL divergence from the target's distributions."""
    batch = Batch(*(part.to(model.device) for part in batch))
    with autocast(model.device):
        hidden = model.base_model(input_ids=batch.ids, use_cache=False).last_hidden_state
        logits = model.get_output_embeddings()(hidden.flatten(0, 1)[batch.places])
    logits = logits.float()
    return (cross_entropy(logits, batch.following),
            divergence(logits / settings.temperature, batch.tokens, batch.shares))


def divergence(logits: torch.Tensor, tokens: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Mean KL(target || draft) over the places whose target distribution is known.

    Parameters
    ----------
    logits : (N, V)
        Of the draft model.
    tokens, shares : (N, K)
        The target's most probable tokens and their probabilities; all others are one.
    """
    logs = logits.log_softmax(-1)
    kept = logs.gather(1, tokens)
    rest, other = (1 - shares.sum(-1)).clamp_min(0), torch.log1p(-kept.exp().sum(-1).clamp_max(1 - 1e-6))
    places = (torch.xlogy(shares, shares) - shares * kept).sum(-1) + torch.xlogy(rest, rest) - rest * other
    known = shares[:, 0] > 0
    return (places * known).sum() / known.sum().clamp_min(1)


def muon_and_adamw(model: PreTrainedModel, rate: float, fused: bool = False) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for all other weights."""
    embeddings = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    inner = [p for p in model.parameters() if p.dim() == 2 and id(p) not in embeddings]
    outer = [p for p in model.parameters() if p.dim() != 2 or id(p) in embeddings]
    muon = torch.optim.Muon(inner, lr=rate, momentum=0.95, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    return [torch.optim.AdamW(outer, lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=fused), muon]


def greedy(target: Target, model: LlamaForCausalLM, rows: list[Row], max_new_tokens: int | None) -> dict:
    """Generate the rows greedily with a chain of ``CHAIN`` drafted tokens per step.

    Returns rows, tokens, accepted (share of the drafted tokens), tokens_per_step (per row, the target's own
    token included), first_choice (share of the text's tokens that are the draft model's argmax).

    Raises
    ------
    ModelError
        A row cannot be generated.
    """
    draft = Target(copy.deepcopy(model).to(target.device), check=False)
    settings = EngineSettings(batch_size=8, nodes=CHAIN, depth=CHAIN, score="never",
                              max_new_tokens=max_new_tokens)
    drafter = ModelDrafter(draft, "x".join("1" * CHAIN), vocabulary=target.vocabulary)
    requests = [Request(row.name, row.prompt.astype(np.int32)) for row in rows]
    results = {result.id: result for result in Engine(target, settings, drafter).run(requests)}
    if failed := [result for result in results.values() if result.error]:
        raise ModelError(f"held-out text {failed[0].id} could not be generated: {failed[0].error}")
    steps = sum(result.target_steps for result in results.values())
    accepted = sum(result.accepted_tokens for result in results.values())
    tokens = sum(len(result.token_ids) for result in results.values())
    written = [Row(row.name, row.prompt, results[row.name].token_ids.astype(np.int64), True) for row in rows]
    argmax = sum(int((row.tokens[:, 0] == row.row.text).sum()) for row in teacher_rows(draft, written))
    return {"rows": len(rows), "tokens": tokens, "accepted": _share(accepted, CHAIN * steps),
            "tokens_per_step": _share(accepted + steps, steps), "first_choice": _share(argmax, tokens)}


def _share(part: int, whole: int) -> float:
    return round(part / max(1, whole), 4)
