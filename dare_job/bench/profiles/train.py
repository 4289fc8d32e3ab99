"""A small causal model of real profiles.

Trains a tokenizer and 5.5 M parameters on prompts and profiles of the training users, in minutes on a CPU.
``noise.perturb`` then makes greedy text a sample of what the model learned, because the most probable texts
of a small model are too much alike.
"""

import itertools
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from dare_job.bench.options import command
from dare_job.bench.profiles import data, noise
from dare_job.bench.profiles.data import Profile
from dare_job.config.options import option
from dare_job.errors import ConfigError
from dare_job.training.drafter.train import muon_and_adamw
from dare_job.training.embedded.corpus import Batch, padded, train_tokenizer
from dare_job.training.embedded.train import text_loss
from dare_job.training.loop import MovingAverages, Schedule, Stream, Training, fit
from dare_job.workspace import committing, digest, is_done

VERSION = 1  # of the recipe: a model of another one is trained again
TEXT_TOKENS = 320  # that the model writes at most
_WIDTHS = (160, 224, 288, 352, 448)  # tokens of a row, prompt included; a longer text is cut
_PROMPT_TOKENS = 80  # of a row at most; the oldest titles of a longer one are cut
_BATCH_TOKENS = 2048
_WARMUP_STEPS = 40
_RATE = 4e-3
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """Of one model, and the torch threads of its training."""

    architecture: str = option("Architecture of the model: llama, qwen2 or gpt2.", "llama")
    steps: int = option("Training updates of 2,048 tokens.", 300)
    seed: int = option("Random seed of the model.", 0)
    noise: float = option("Standard deviation, in nats, of the fixed noise on its logits that makes texts of "
                          "different prompts differ; 0: none.", 1.1)
    test_users: int = option("Users left out of its training.", 500)
    threads: int = 2

    def __post_init__(self):
        if self.architecture not in noise.NAMES:
            raise ConfigError(f"architecture {self.architecture!r} is unknown; choose from "
                              f"{', '.join(noise.NAMES)}")
        for name, least in (("steps", 1), ("noise", 0), ("test_users", 1), ("threads", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least {least}")


def model(folder: Path, work: Path, settings: Settings = Settings()) -> Path:  # noqa: B008 (frozen)
    """Folder of the model with these settings in ``work``, trained where it is not there yet.

    folder  of the data, see ``data.py``

    The trained model without noise has a folder of its own there, so that another noise needs no training. A
    folder is written whole or not at all.
    """
    profiles = data.load(folder)
    named = {**asdict(settings), "version": VERSION, "profiles": digest([asdict(p) for p in profiles])}
    del named["threads"]
    learned = data.split(profiles, settings.test_users)[0]
    name, without = f"profiles-{settings.architecture}", named | {"noise": 0.0}
    quiet = made(work, name, without, lambda out: without | train(learned, out, settings))
    if not settings.noise:
        return quiet
    return made(work, name, named, lambda out: named | _with_noise(quiet, learned, out, settings))


def made(work: Path, name: str, settings: Any, make: Callable[[Path], dict]) -> Path:
    """The folder that ``make`` fills for these settings, made where it is not there yet, with its record."""
    fingerprint = digest(settings)
    out = work / f"{name}-{fingerprint[:12]}"
    if not is_done(out, fingerprint):
        record: dict = {}
        with committing(out, fingerprint, record) as staging:
            record |= make(staging)
    return out


def _with_noise(quiet: Path, profiles: Sequence[Profile], out: Path, settings: Settings) -> dict:
    """The trained model with noise in ``out``."""
    tokenizer = AutoTokenizer.from_pretrained(quiet)
    network = AutoModelForCausalLM.from_pretrained(quiet, dtype=torch.float32)
    some = itertools.islice(batches(profiles, tokenizer, settings.seed), 3)
    noise.perturb(network, list(some), settings.noise, settings.seed)
    _save(network, tokenizer, out)
    return {"trained": quiet.name}


def train(profiles: Sequence[Profile], out: Path, settings: Settings) -> dict:
    """Train on these profiles and leave model and tokenizer in ``out``. Returns loss, tokens and minutes.

    AdamW, and Muon for the layers' matrices, in float32 with bfloat16 autocast.
    """
    torch.manual_seed(settings.seed)
    torch.set_num_threads(settings.threads)
    start = time.monotonic()
    asked = [data.later(profile) for profile in profiles]
    tokenizer = train_tokenizer([*asked, *(p.text for p in profiles)], noise.VOCABULARY,
                                noise.CONTEXT_TOKENS)
    network = noise.make(settings.architecture, tokenizer)
    parameters = sum(p.numel() for p in network.parameters())
    _LOG.info("%s: %.2f M parameters, %d entries, %d profiles, %d steps", settings.architecture,
              parameters / 1e6, len(tokenizer), len(profiles), settings.steps)
    noise.reserve(network)
    work = batches(profiles, tokenizer, settings.seed)
    loss, tokens = _fit(network, work, settings.steps)
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
        asked_with = [data.prompt(p.titles[:end]) for p, end in zip(profiles, ends, strict=True)]
        prompts = tokenizer(asked_with)["input_ids"]
        for i in rng.permutation(len(profiles)):
            asked, text = prompts[i][-_PROMPT_TOKENS:], texts[i] + [tokenizer.eos_token_id]
            width = next((w for w in _WIDTHS if w >= len(asked) + len(text)), _WIDTHS[-1])
            waiting[width].append((asked, text[:width - len(asked)]))
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
    out: Path = option("Work folder; the model gets a folder in it.")
    settings: Settings = Settings()
    threads: int = option("torch threads.", 2)


@command(Options)
def main(options: Options) -> None:
    """Train a small model on profiles of real users; print its folder."""
    print(model(options.data, options.out, replace(options.settings, threads=options.threads)))
