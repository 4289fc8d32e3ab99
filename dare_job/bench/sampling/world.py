"""The target with its prompts, and the draft model before and after distillation on the target's own texts.

The target is the embedded model on the synthetic data set, or a model of real profiles.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer

from dare_job import prompts
from dare_job.bench.kept import keep_named
from dare_job.bench.profiles import data, texts
from dare_job.bench.profiles import train as profiles
from dare_job.bench.profiles.drafter import distill
from dare_job.config.options import Device, Dtype, device, dtype, option
from dare_job.data.sample_world.simulate import DAYS, Example, simulate, user_examples
from dare_job.decode.model.target import Target
from dare_job.decode.prompt.tokens import prompt_ids
from dare_job.decode.request import Request
from dare_job.decode.sampling.engine import Sampling, SamplingEngine
from dare_job.decode.settings import MIN_TEMPERATURE, EngineSettings, Warp
from dare_job.errors import ConfigError, ModelError
from dare_job.models.files import EMBEDDED, resolve
from dare_job.models.files import fingerprint as fingerprint_of
from dare_job.publish.prompted_texts import MIN_ROWS, Row
from dare_job.training.drafter import teacher
from dare_job.training.drafter.settings import Settings
from dare_job.training.drafter.teacher import TeacherRow
from dare_job.workspace import done_record
from pools.index import Index

BATCH, BEFORE_STEPS = 8, 60
_LOG = logging.getLogger(__name__)
_QUIET = profiles.Settings(noise=0.0)
QUICK_DRAFTER = Settings(width=64, heads=2, steps=20, batch_tokens=512)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Common options of ``bench sample`` and ``bench beam``; all seeds have the same data and models."""

    rows: int = option("Users whose texts are generated in each way.", 32)
    tokens: int = option("Maximum number of new tokens per text.", 160)
    users: int = option("Users of the synthetic data set; the others train the draft model.", 400)
    items: int = option("Items of the synthetic data set.", 300)
    steps: int = option("Training updates of the draft model.", Settings.steps)
    work: Path | None = option("Folder that keeps the trained models for later calls of bench sample and "
                               "bench beam. Default: a temporary folder.", None)
    seed: int = option("Random seed of the samples.", 0)
    target: str = option("Target model, named as model.name.", EMBEDDED, flag="--model")
    device: Device = device()
    dtype: Dtype = dtype("Data type of both models' weights.")
    quick: bool = option("Few rows and a tiny draft model: tests the command; its measurements mean nothing "
                         "and no target is checked.", False)


@dataclass(frozen=True)
class Source:
    """A target and its prompts.

    Attributes
    ----------
    folder
        Of the target.
    rows
        Prompts, int32, by id, of the rows that are measured.
    others
        Prompts of users whose texts train the draft model and are retrieved.
    foreign
        Texts that the target did not generate, on which the draft model is trained before distillation.
    """

    folder: Path
    rows: dict[str, np.ndarray]
    others: dict[str, np.ndarray]
    foreign: list[Row]


def sample_world(rows: int, users: int, items: int, tokens: int, seed: int, target: str = EMBEDDED) -> Source:
    """The embedded model, or another by folder or hub name. Foreign: the grammar's texts of another
    synthetic data set.
    """
    folder = resolve(target, setting="--model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts_of = {f"user:{example.row}": prompt_ids(tokenizer, example.prompt)
                  for example in examples(users, items, seed)}
    foreign, end = [], [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    for example in examples(users, items, seed + 1):
        ids = [*tokenizer(example.text, add_special_tokens=False)["input_ids"], *end][:tokens]
        foreign.append(_row(f"user:{example.row}", prompt_ids(tokenizer, example.prompt), ids))
    return Source(folder, *_split(prompts_of, rows), foreign)


def real_profiles(folder: Path, work: Path, rows: int, users: int, tokens: int,
                  settings: profiles.Settings = _QUIET) -> Source:
    """The model of ``bench decode`` without noise, trained unless ``work`` has it. Foreign: recorded profiles
    of its training users.
    """
    learned, test = data.split(data.load(folder), settings.test_users)
    _require_rows(rows, len(test))
    model = profiles.model(folder, work, settings)
    learned = learned[: max(MIN_ROWS, users - rows)]
    others, of_test = (texts.encode(model, {profile.user: data.later(profile) for profile in profiles})
                       for profiles in (learned, test))
    foreign = [_row(user, others[user], ids[:tokens]) for user, ids in texts.recorded(model, learned).items()]
    return Source(model, _split(of_test, rows)[0], others, foreign)


def _require_rows(rows: int, users: int) -> None:
    if not 0 < rows <= users - MIN_ROWS:
        raise ConfigError(f"--rows {rows} of {users} users with a history: {MIN_ROWS} must be left to learn "
                          "from; give fewer rows or more --users")


def _split(prompts_of: dict[str, np.ndarray], rows: int) -> tuple[dict, dict]:
    """The measured rows, whose ids have the smallest SHA-256, and the others."""
    _require_rows(rows, len(prompts_of))
    order = sorted(prompts_of, key=lambda name: hashlib.sha256(name.encode()).digest())
    return tuple({name: prompts_of[name] for name in names} for names in (order[:rows], order[rows:]))


def examples(users: int, items: int, seed: int) -> list[Example]:
    """Prompts and texts of the synthetic data set's users with a history; ids are ``user:`` and the row."""
    return list(user_examples(simulate(users, items, seed), prompts.load(prompts.SAMPLE), DAYS))


def _row(name: str, prompt: np.ndarray, text) -> Row:
    """A row whose prompt the target does not read."""
    return Row(name, prompt.astype(np.int64), np.asarray(text, np.int64), has_prompt=False)


@dataclass(frozen=True)
class World:
    """The target, the measured rows and the trained draft models.

    Attributes
    ----------
    requests
        The measured rows, with a pool of the other users' texts, which the target sampled.
    drafters
        Before: trained on texts that the target did not generate; after: distilled on its own.
    training
        The record of each training.
    seed
        Of the samples.
    """

    target: Target
    requests: list[Request]
    drafters: dict[str, Target]
    training: dict[str, dict]
    seed: int = 0


def prepare(source: Source, tokens: int, settings: Settings, work: Path, device: str = "cpu",
            dtype: str = "float32") -> World:
    """The target samples a text of every other user at temperature 1; the draft models are trained.

    Parameters
    ----------
    work
        Folder that keeps the draft models.
    """
    target = Target.load(source.folder, dtype, device)
    others = [Request(name, prompt) for name, prompt in source.others.items()]
    _LOG.info("the target samples %d texts for the training of the draft model", len(others))
    texts = sample(target, others, tokens)
    before = replace(settings, kl=0.0, steps=min(BEFORE_STEPS, settings.steps))
    trained = {
        "before": _drafter("before", lambda: teacher.teacher_rows(target, source.foreign), target, source,
                           before, work, tokens),
        "after": _drafter("after", lambda: teacher.teacher_rows(
            target, texts, settings.top_k, settings.temperature), target, source, settings, work, tokens)}
    pool = Index.build([row.text.astype(np.int32) for row in texts])
    requests = [Request(name, prompt, (pool,)) for name, prompt in source.rows.items()]
    return World(target, requests, {name: model for name, (model, _) in trained.items()},
                 {name: record for name, (_, record) in trained.items()})


def sample(target: Target, requests: list[Request], tokens: int, temperature: float = 1.0) -> list[Row]:
    """The target's own texts.

    Raises
    ------
    ModelError
        A row fails.
    """
    settings = EngineSettings(max_new_tokens=tokens, batch_size=BATCH, nodes=0, score="never")
    engine = SamplingEngine(target, settings, Sampling(Warp(temperature)))
    results = {result.id: result for result in engine.run(requests)}
    if failed := [result for result in results.values() if result.error]:
        raise ModelError(f"row {failed[0].id} could not be sampled: {failed[0].error}")
    return [Row(request.id, request.prompt_ids.astype(np.int64),
                results[request.id].token_ids.astype(np.int64), True) for request in requests]


@torch.inference_mode()
def entropy(world: World, temperature: float, tokens: int) -> dict:
    """Of the target's distributions along texts that it samples: mean and 90th percentile of the entropy in
    nats, and the mean probability of the argmax token.
    """
    nats, first = [], []
    for row in sample(world.target, world.requests, tokens, temperature):
        shares = torch.softmax(logits_of(world.target, row).double() / max(temperature, MIN_TEMPERATURE), -1)
        nats.append(-torch.xlogy(shares, shares).sum(-1))
        first.append(shares.amax(-1))
    nats = torch.cat(nats)
    return {"mean": round(float(nats.mean()), 4), "p90": round(float(nats.quantile(0.9)), 4),
            "first_choice": round(float(torch.cat(first).mean()), 4)}


def _drafter(name: str, rows: Callable[[], list[TeacherRow]], target: Target, source: Source,
             settings: Settings, work: Path, tokens: int) -> tuple[Target, dict]:
    """The draft model, and the record of its training."""
    device, dtype = target.device.type, str(target.dtype).removeprefix("torch.")
    made_of = [name, asdict(settings), tokens, list(source.rows), list(source.others), len(source.foreign),
               fingerprint_of(source.folder), device, dtype]
    folder = keep_named(work, f"drafter-{name}", made_of, lambda out: {
        "training": distill(target, source.folder, rows(), settings, out)})
    record = done_record(folder)["training"]
    _LOG.info("draft model %s: %s", name, record)
    return Target.load(folder, dtype, device), record


def logits_of(target: Target, row: Row) -> torch.Tensor:
    """Logits (tokens, V) of a text's tokens after its prompt."""
    ids = np.concatenate((row.prompt, row.text[:-1]))[None]
    lengths, scored = np.array([len(row.prompt)]), np.array([len(row.text) - 1])
    return target.prefill(target.new_cache(1), np.arange(1), ids, lengths, scored)
