"""A small causal model of real profiles.

Trains a tokenizer and 5.5 M parameters on prompts and profiles of the training users, in minutes on a CPU.
``noise.perturb`` then makes greedy text a sample of what the model learned, because the most probable texts
of a small model are too much alike.
"""

import itertools
import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from dare_job.bench.cli import command
from dare_job.bench.kept import keep_named
from dare_job.bench.profiles import data, noise
from dare_job.bench.profiles.data import Profile
from dare_job.config.options import option
from dare_job.training.batches import Batch, padded, text_loss
from dare_job.training.checks import require_at_least
from dare_job.training.drafter.train import muon_and_adamw
from dare_job.training.embedded.corpus import train_tokenizer
from dare_job.training.loop import MovingAverages, Schedule, Stream, Training, fit
from dare_job.workspace import digest

VERSION = 1  # of the recipe: a model of another one is trained again
TEXT_TOKENS = 320  # maximum that the model generates
_WIDTHS = (160, 224, 288, 352, 448)  # tokens of a row, prompt included; a longer text is cut
_PROMPT_TOKENS = 80  # maximum in a row; the oldest titles of a longer prompt are cut
_BATCH_TOKENS = 2048
_WARMUP_STEPS = 40
_RATE = 4e-3
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """Of one model, and the torch threads of its training."""

    steps: int = option("Training updates of 2,048 tokens.", 300)
    seed: int = option("Random seed of the model.", 0)
    noise: float = option("Standard deviation, in nats, of the fixed noise on its logits that makes texts of "
                          "different prompts differ; 0: none.", 1.1)
    test_users: int = option("Number of users on whose texts the model is not trained.", 500)
    threads: int = 2

    def __post_init__(self):
        require_at_least(self, steps=1, noise=0, test_users=1, threads=1)


def model(folder: Path, work: Path, settings: Settings = Settings()) -> Path:  # noqa: B008 (frozen)
    """Folder of the model with these settings in ``work``, trained if it is missing.

    The trained model without noise has a folder of its own there, so that another noise needs no training. A
    folder is written whole or not at all.

    Parameters
    ----------
    folder
        Folder of the data, see ``data.py``.
    """
    profiles = data.load(folder)
    made_of = {**asdict(settings), "architecture": "llama", "version": VERSION,
               "profiles": digest([asdict(p) for p in profiles])}
    del made_of["threads"]
    learned = data.split(profiles, settings.test_users)[0]
    name, without = "profiles-llama", made_of | {"noise": 0.0}
    quiet = keep_named(work, name, without, lambda out: without | train(learned, out, settings))
    if not settings.noise:
        return quiet
    return keep_named(work, name, made_of,
                      lambda out: made_of | _with_noise(quiet, learned, out, settings))


def _with_noise(quiet: Path, profiles: Sequence[Profile], out: Path, settings: Settings) -> dict:
    """Write the trained model with noise."""
    tokenizer = AutoTokenizer.from_pretrained(quiet)
    network = AutoModelForCausalLM.from_pretrained(quiet, dtype=torch.float32)
    first = itertools.islice(batches(profiles, tokenizer, settings.seed), 3)
    noise.perturb(network, list(first), settings.noise, settings.seed)
    _save(network, tokenizer, out)
    return {"trained": quiet.name}


def train(profiles: Sequence[Profile], out: Path, settings: Settings) -> dict:
    """Train on these profiles and write model and tokenizer. Returns loss, tokens and minutes.

    AdamW, and Muon for the layers' matrices, with float32 weights and ``loop.autocast``.
    """
    torch.manual_seed(settings.seed)
    torch.set_num_threads(settings.threads)
    start = time.monotonic()
    prompts = [data.later(profile) for profile in profiles]
    tokenizer = train_tokenizer([*prompts, *(p.text for p in profiles)], noise.VOCABULARY,
                                noise.CONTEXT_TOKENS)
    network = noise.make(tokenizer)
    parameters = network.num_parameters()
    _LOG.info("%.2f M parameters, %d entries, %d profiles, %d steps", parameters / 1e6, len(tokenizer),
              len(profiles), settings.steps)
    noise.reserve(network)
    loss, tokens = _fit(network, batches(profiles, tokenizer, settings.seed), settings.steps)
    _save(network, tokenizer, out)
    return {"parameters": parameters, "tokens": tokens, "loss": round(loss, 4),
            "minutes": round((time.monotonic() - start) / 60, 1)}


def batches(profiles: Sequence[Profile], tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[Batch]:
    """Batches of prompts and profiles without end, the same for the same seed; each width has one batch size.

    Each time that a profile comes round, its prompt is of another moment in the last third of the history.
    """
    rng = np.random.default_rng(seed)
    texts = tokenizer([p.text for p in profiles], add_special_tokens=False)["input_ids"]
    waiting: dict[int, list] = defaultdict(list)
    while True:
        ends = [int(rng.integers(max(1, 2 * len(p.titles) // 3), len(p.titles) + 1)) for p in profiles]
        prompts = tokenizer([data.prompt(p.titles[:end])
                             for p, end in zip(profiles, ends, strict=True)])["input_ids"]
        for i in rng.permutation(len(profiles)):
            prompt, text = prompts[i][-_PROMPT_TOKENS:], texts[i] + [tokenizer.eos_token_id]
            width = next((w for w in _WIDTHS if w >= len(prompt) + len(text)), _WIDTHS[-1])
            waiting[width].append((prompt, text[:width - len(prompt)]))
            if len(waiting[width]) == _BATCH_TOKENS // width:
                yield padded(waiting.pop(width), width, tokenizer.pad_token_id)


def _fit(network: PreTrainedModel, work: Iterator[Batch], steps: int) -> tuple[float, int]:
    """Train for a number of updates. Returns a moving average of the loss, and the number of tokens."""
    averages, tokens, stream = MovingAverages(), 0, Stream(work, steps)

    def loss(batch: Batch) -> torch.Tensor:
        nonlocal tokens
        tokens += batch.tokens.numel()
        value = text_loss(network, batch)
        averages.add(loss=value.item())
        return value

    fit(network, Training(lambda epoch: stream, loss, name="profile model"),
        Schedule(1, _RATE, 0.0, _WARMUP_STEPS, 0), optimizers=muon_and_adamw(network, _RATE, fused=True))
    return averages.values["loss"], tokens


def _save(network: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    network.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, do_sample=False, max_new_tokens=TEXT_TOKENS)
    network.save_pretrained(out)
    tokenizer.save_pretrained(out)


@dataclass(frozen=True)
class Options:
    """Options of ``bench train-profiles``."""

    data: Path = option("Folder of the data: see docs/how-to/datasets.md.")
    out: Path = option("Work folder; the model gets a folder in it.", flag="--save")
    settings: Settings = Settings()
    threads: int = option("torch threads.", 2)


@command(Options)
def main(options: Options) -> None:
    """Train a small model on profiles of real users; print its folder."""
    print(model(options.data, options.out, replace(options.settings, threads=options.threads)))
