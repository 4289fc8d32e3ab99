"""Targets and their prompts: the embedded model on the sample world, or a model of real profiles."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

from dare_job import prompts
from dare_job.bench.profiles import data, texts
from dare_job.bench.profiles import train as profiles
from dare_job.data.world.simulate import DAYS, Example, simulate, user_examples
from dare_job.decode.prompt import prompt_ids
from dare_job.drafter.texts import LEAST, Row
from dare_job.errors import ConfigError
from dare_job.model_files import EMBEDDED, resolve

_QUIET = profiles.Settings(noise=0.0)


@dataclass(frozen=True)
class Source:
    """folder  of the target
    tonight    prompts, int32, by id, of the rows that are measured
    others     prompts of users whose texts the draft model learns, and retrieval looks up
    foreign    texts that the target did not write, which the draft model is fitted on before
    """

    folder: Path
    tonight: dict[str, np.ndarray]
    others: dict[str, np.ndarray]
    foreign: list[Row]


def sample_world(rows: int, users: int, items: int, tokens: int, seed: int, target: str = EMBEDDED) -> Source:
    """The embedded model, or another by folder or hub name. Foreign: what the grammar writes of another
    world.
    """
    folder = resolve(target, setting="--target")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    asked = {f"user:{one.row}": prompt_ids(tokenizer, one.prompt) for one in examples(users, items, seed)}
    foreign, end = [], [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    for one in examples(users, items, seed + 1):
        ids = [*tokenizer(one.text, add_special_tokens=False)["input_ids"], *end][:tokens]
        foreign.append(_row(f"user:{one.row}", prompt_ids(tokenizer, one.prompt), ids))
    return Source(folder, *_divided(asked, rows), foreign)


def real_profiles(folder: Path, work: Path, rows: int, users: int, tokens: int,
                  settings: profiles.Settings = _QUIET) -> Source:
    """The model of ``bench decode`` without noise, trained where ``work`` lacks it. Foreign: real profiles
    of the users that it has learned from.
    """
    learned, test = data.split(data.load(folder), settings.test_users)
    _require_rows(rows, len(test))
    model = profiles.model(folder, work, settings)
    learned = learned[: max(LEAST, users - rows)]
    written = texts.recorded(model, learned)
    own = texts.encoded(model, {one.user: data.later(one) for one in learned})
    foreign = [_row(user, own[user], ids[:tokens]) for user, ids in written.items()]
    asked = texts.encoded(model, {one.user: data.later(one) for one in test})
    tonight, _ = _divided(asked, rows)
    return Source(model, tonight, own, foreign)


def _require_rows(rows: int, users: int) -> None:
    if not 0 < rows <= users - LEAST:
        raise ConfigError(f"--rows {rows} of {users} users with a history: {LEAST} must be left to learn "
                          "from; take fewer rows or more --users")


def _divided(asked: dict[str, np.ndarray], rows: int) -> tuple[dict, dict]:
    """Tonight's, whose ids have the smallest SHA-256, and the others'."""
    _require_rows(rows, len(asked))
    order = sorted(asked, key=lambda name: hashlib.sha256(name.encode()).digest())
    return {name: asked[name] for name in order[:rows]}, {name: asked[name] for name in order[rows:]}


def examples(users: int, items: int, seed: int) -> list[Example]:
    """Of the sample world's users with a history; a row is named ``user:`` and its number."""
    return list(user_examples(simulate(users, items, seed), prompts.load(prompts.SAMPLE), DAYS))


def _row(name: str, prompt: np.ndarray, text) -> Row:
    return Row(name, prompt.astype(np.int64), np.asarray(text, np.int64), True)
