"""Trains the embedded model: ``python -m dare_job.training.embedded.train --save DIR [--steps N --seed S]``.
``--start DIR`` continues from an earlier model, with its tokenizer, at a lower rate, without first drills.

Trains the tokenizer, then a small Llama on grammar text of fresh synthetic data sets, for a number of steps.
A copy that can be used is written every few minutes, so an early stop loses little.
"""

import itertools
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import torch
import typer
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from dare_job import prompts
from dare_job.data.sample_world.simulate import Example
from dare_job.prompts.sets import PromptSet
from dare_job.training.batches import Batch, text_loss
from dare_job.training.checkpoint import write_model
from dare_job.training.embedded import corpus
from dare_job.training.embedded.initialise import add_copy_circuit
from dare_job.training.loop import MovingAverages, Schedule, Stream, Training, adamw, fit

CONTEXT_TOKENS = 1024
VOCABULARY = 2304
DRILL_STEPS = 60  # copying first
PEAK_RATE = 2e-3
PEAK_RATE_GOING_ON = 6e-4
_TOKENIZER_WORLDS = 6
_BATCH_TOKENS = 4096
_DRILL_EVERY = 10
_WARMUP_STEPS = 100
_SAVE_EVERY_S = 180.0
_LOG = logging.getLogger(__name__)


def make_config(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """About 3.6 million parameters, wide and shallow: on a CPU each layer costs more than its arithmetic."""
    return LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=256, intermediate_size=640, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True, **corpus.special_ids(tokenizer))


def train(save: Annotated[Path, typer.Option(help="Folder to write.")],
          steps: Annotated[int, typer.Option(min=1, help="Updates.")] = 3600,
          seed: Annotated[int, typer.Option(help="Seed of the weights and the texts.")] = 0,
          start: Annotated[Path | None, typer.Option(help="Model folder to go on from.")] = None) -> None:
    """Train for ``steps`` updates and leave model and tokenizer in ``save``.

    AdamW with float32 weights and ``loop.autocast`` on one thread. The same start, steps and seed give the
    same weights on one kind of processor and version of torch.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    prompt_set = prompts.load(prompts.SAMPLE)
    if start is None:
        tokenizer, model = _fresh(prompt_set, seed)
        peak_rate, drills = PEAK_RATE, DRILL_STEPS
    else:
        tokenizer = AutoTokenizer.from_pretrained(start)
        model = LlamaForCausalLM.from_pretrained(start, dtype=torch.float32).train()
        peak_rate, drills = PEAK_RATE_GOING_ON, 0
    _LOG.info("%d tokens in the vocabulary, %d parameters", len(tokenizer),
              sum(p.numel() for p in model.parameters()))
    began = time.monotonic()
    work = schedule(corpus.worlds(prompt_set, seed), tokenizer, seed, drills)
    tokens, losses = fit_steps(model, work, steps, peak_rate, lambda: write(model, tokenizer, save))
    minutes = round((time.monotonic() - began) / 60, 1)
    print(json.dumps({"steps": steps, "tokens": tokens, "loss": losses, "minutes": minutes, "seed": seed}))


def fit_steps(model: PreTrainedModel, work: Iterator[tuple[str, Batch]], steps: int, peak_rate: float,
              keep: Callable[[], None]) -> tuple[int, dict[str, float]]:
    """Train for ``steps`` updates with the (kind, batch) pairs of ``work``.

    Returns the number of tokens, padding included, and a moving average of the loss of each kind. ``keep`` is
    called every few minutes and at the end.
    """
    averages, tokens = MovingAverages(), 0

    def loss(work: tuple[str, Batch]) -> torch.Tensor:
        nonlocal tokens
        kind, batch = work
        tokens += batch.tokens.numel()
        value = text_loss(model, batch)
        averages.add(**{kind: value.item()})
        return value

    schedule = Schedule(1, peak_rate, 0.0, _WARMUP_STEPS, 0, save_every_s=_SAVE_EVERY_S)
    stream = Stream(work, steps)
    fit(model, Training(lambda epoch: stream, loss, save=keep, name="embedded model"), schedule,
        optimizers=[adamw(model, peak_rate, 0.05, fused=True)])
    return tokens, averages.values


def schedule(texts: Iterator[list[Example]], tokenizer: PreTrainedTokenizerFast, seed: int,
             drills: int) -> Iterator[tuple[str, Batch]]:
    """("drill" or "text", batch) while there are ``texts``: ``drills`` copy drills, then one step in ten."""
    texts_left = corpus.batches(texts, tokenizer, _BATCH_TOKENS, seed)
    drills_left = corpus.copy_drills(len(tokenizer.all_special_ids), len(tokenizer), _BATCH_TOKENS, seed)
    for step in itertools.count():
        if step < drills or step % _DRILL_EVERY == 0:
            yield "drill", next(drills_left)
        else:
            yield "text", next(texts_left)


def _fresh(prompt_set: PromptSet, seed: int) -> tuple[PreTrainedTokenizerFast, LlamaForCausalLM]:
    sample = itertools.islice(corpus.worlds(prompt_set, seed), _TOKENIZER_WORLDS)
    texts = [text for world in sample for example in world for text in (example.prompt, example.text)]
    tokenizer = corpus.train_tokenizer(texts, VOCABULARY, CONTEXT_TOKENS)
    model = LlamaForCausalLM(make_config(tokenizer))
    add_copy_circuit(model, torch.Generator().manual_seed(seed))
    return tokenizer, model


def write(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the model with the settings of its texts."""
    generation = GenerationConfig(**corpus.special_ids(tokenizer), do_sample=False, max_new_tokens=320)
    write_model(model, tokenizer, generation, folder)


if __name__ == "__main__":
    typer.run(train)
