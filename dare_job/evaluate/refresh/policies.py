"""Replays nights under a policy: which texts are written, at which cost, and which one serves each day."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dare_job.evaluate.refresh.nights import NONE, Nights

# Priority (U,) of each row on a night, from the night (U,) on which its text was written (NONE: no text).
Priority = Callable[[int, np.ndarray, np.random.Generator], np.ndarray]
FULL, FROZEN, CHANGED = "full refresh", "frozen", "all that changed"


@dataclass(frozen=True)
class Budget:
    """Share of what a full refresh costs on a night, counted in ``unit``: rows or tokens."""

    unit: str
    share: float


@dataclass(frozen=True)
class Replayed:
    """D nights under a policy.

    Attributes
    ----------
    written : int32 (D, U)
        Night on which the text that the row has after each night was written; NONE: no text.
    rows, tokens : int64 (D,)
        Written on each night.
    """

    written: np.ndarray
    rows: np.ndarray
    tokens: np.ndarray


def replay(nights: Nights, first: int, priority: Priority | None, budget: Budget | None,
           seed: int) -> Replayed:
    """Replay all nights; before ``first``, all texts are written on each night.

    Only rows whose prompt changed since their text are written. Of these, the first by ``priority`` that fit
    the budget are written; the sort is stable, so that rows of equal priority are taken in order of id.

    Parameters
    ----------
    priority
        None: nothing is written from ``first`` on.
    budget
        None: all rows whose prompt changed are written.
    """
    written = np.full(nights.text.shape, NONE, np.int32)
    counts = np.zeros((2, len(written)), np.int64)
    for night, has_text in enumerate(nights.text != NONE):
        if night < first:
            written[night] = np.where(has_text, night, NONE)
            counts[:, night] = has_text.sum(), nights.tokens[night].sum()
            continue
        before = written[night - 1] if night else written[night]
        written[night] = before
        if priority is None:
            continue
        candidates = np.flatnonzero(nights.changed(night, before))
        if budget is not None:
            value = priority(night, before, np.random.default_rng([seed, night]))
            candidates = candidates[np.argsort(-value[candidates], kind="stable")]
            candidates = candidates[:_fits(nights, night, candidates, budget)]
        written[night, candidates] = night
        counts[:, night] = len(candidates), nights.tokens[night, candidates].sum()
    return Replayed(written, *counts)


def _fits(nights: Nights, night: int, ordered: np.ndarray, budget: Budget) -> int:
    """How many of the ordered rows the budget of a night allows."""
    has_text = nights.text[night] != NONE
    if budget.unit == "rows":
        return int(budget.share * has_text.sum())
    limit = budget.share * nights.tokens[night][has_text].sum()
    return int(np.searchsorted(np.cumsum(nights.tokens[night, ordered]), limit, "right"))


def simple(nights: Nights) -> Iterator[tuple[str, Priority]]:
    """Policies without a value: what a nightly script would do."""
    users = nights.text.shape[1]
    yield "first ids", lambda night, written, rng: np.zeros(users)
    yield "random", lambda night, written, rng: rng.random(users)
    yield "oldest first", lambda night, written, rng: -written + rng.random(users)
    yield "most new interactions", lambda night, written, rng: new_clicks(nights, night, written) + (
        rng.random(users))


def new_clicks(nights: Nights, night: int, written: np.ndarray) -> np.ndarray:
    """(U,) clicks up to ``night`` that the text of the night ``written`` (U,) does not know."""
    known = np.where(written == NONE, 0, nights.at(nights.clicks, written))
    return nights.clicks[night] - known
