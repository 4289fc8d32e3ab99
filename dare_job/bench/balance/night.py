"""A made-up night: pools of uneven sizes, texts of uneven lengths, and what was known of them beforehand.

Pool sizes follow a Zipf law. Old lengths are those of recorded profiles where there are any, else lognormal;
each pool has a level of its own, and ids that were given early belong to users of longer texts. Tonight's
text is as long as the old one but for a lognormal factor, whose spread is that between two recorded profiles
of a user.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dare_job.errors import DataError
from dare_job.evaluate.replay.texts import read

LENGTHS = "knowledge/ml1m_users_llama3chatqa.jsonl.gz", "plain", "user"
PAIRS = [(f"knowledge/ml100k_users_{month}.csv.gz", "summary", "user_id")
         for month in ("2024-12", "2025-02")]
SPREAD = 0.30  # of log(new / old) length: measured on PAIRS, two profiles of each of 943 users
_TOKENS_A_WORD = 1.25
MOST = 512  # new tokens
_WITHOUT = 0.2  # share of rows that have no old text


@dataclass(frozen=True)
class Lengths:
    """What is drawn from: tokens of old texts (None: lognormal), and the spread of log(new / old)."""

    old: np.ndarray | None = None
    spread: float = SPREAD


@dataclass(frozen=True)
class Night:
    """Rows of one entity type, in the order of their ids.

    pool    int: by size, 0 is the largest
    prompt  tokens; old: tokens of the old text, 0: there is none; new: tokens of tonight's
    steps   forwards that tonight's text takes
    """

    pool: np.ndarray
    prompt: np.ndarray
    old: np.ndarray
    new: np.ndarray
    steps: np.ndarray


def recorded(data: Path) -> Lengths:
    """Lengths of real profiles below ``data``. Raises DataError where a file is missing or damaged."""
    old = np.array([len(text.split()) for text in read(data / LENGTHS[0], *LENGTHS[1:]).texts])
    pairs = []
    for name, column, id_column in PAIRS:
        found = read(data / name, column, id_column)
        pairs.append({key: len(text.split()) for key, text in zip(found.ids, found.texts, strict=True)})
    both = [key for key in pairs[0] if pairs[1].get(key) and pairs[0][key]]
    if not both:
        raise DataError(f"{data}: no user has a profile in both of {PAIRS[0][0]} and {PAIRS[1][0]}")
    spread = np.std([math.log(pairs[1][key] / pairs[0][key]) for key in both])
    return Lengths(np.maximum(1, old * _TOKENS_A_WORD), float(spread))


def draw(rows: int, pools: int, scale: float, lengths: Lengths, rng: np.random.Generator) -> Night:
    """A night of one entity type. scale: its texts' lengths against a user's."""
    weights = 1 / np.arange(1, pools + 1)
    pool = rng.choice(pools, rows, p=weights / weights.sum())
    level = np.exp(rng.normal(0, 0.2, pools))[pool] * np.linspace(1.2, 0.8, rows)
    old = 225 * np.exp(rng.normal(0, 0.35, 10_000)) if lengths.old is None else lengths.old
    before = rng.choice(old, rows)
    before = np.clip(scale * level * before, 8, MOST).astype(int)
    new = np.clip(before * np.exp(rng.normal(0, lengths.spread, rows)), 8, MOST).astype(int)
    prompt = np.clip(300 * np.exp(rng.normal(0, 0.4, rows)), 60, 1500).astype(int)
    old = np.where(rng.random(rows) < _WITHOUT, 0, before)
    per_step = np.maximum(1, np.where(old, 5, 4) * np.exp(rng.normal(0, 0.25, rows)))
    return Night(pool, prompt, old, new, np.ceil(new / per_step).astype(int))
