"""Replays nights under a policy: which texts are written, at which cost, and which one serves each day."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dare_job.evaluate.refresh.nights import NONE, Nights
from dare_job.refresh import choice, learned, value
from dare_job.refresh.choice import BY_VALUE, HASHES, NO_TEXT, NOT_SAMPLED, SAMPLE_ONE_IN
from dare_job.refresh.learned import Coefficients

# Score (U,) of each row on a night, from the night (U,) on which its text was written (NONE: no text).
Score = Callable[[int, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Budget:
    """Share of what writing all rows that changed since the last night costs, in ``unit``: rows or tokens."""

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


@dataclass(frozen=True)
class Policy:
    """Which of the rows whose prompt changed are written; all of them without a ``score``.

    Attributes
    ----------
    by_id
        Rows of equal score come in order of id, and no row comes first for other reasons.
    """

    name: str
    score: Score | None
    by_id: bool = False


def replay(nights: Nights, first: int, policy: Policy | None, budget: Budget | None, seed: int) -> Replayed:
    """Replay all nights. Before the night ``first``, all texts are written on each night.

    Parameters
    ----------
    policy
        None: nothing is written from ``first`` on.
    budget
        None: all rows whose prompt changed are written.
    """
    written = np.full(nights.text.shape, NONE, np.int32)
    rows, tokens = np.zeros((2, len(written)), np.int64)
    for night, has_text in enumerate(nights.text != NONE):
        before = written[night - 1] if night else written[night].copy()
        chosen = np.zeros(len(before), bool)
        if night < first:
            chosen = has_text
        elif policy is not None:
            chosen = nights.changed(night, before)
            if budget is not None:
                places = np.flatnonzero(chosen)
                chosen[places] = _chosen(nights, night, before, places, policy, budget, seed)
        written[night] = np.where(chosen, night, before)
        rows[night], tokens[night] = chosen.sum(), nights.tokens[night, chosen].sum()
    return Replayed(written, rows, tokens)


def _chosen(nights: Nights, night: int, written: np.ndarray, places: np.ndarray, policy: Policy,
            budget: Budget, seed: int) -> np.ndarray:
    """(n,) which of the rows at ``places`` (n,) are written, by the choice that a run makes."""
    rng, changed = np.random.default_rng([seed, night]), nights.changed(night, _last_night(nights, night))
    tiers = np.where(written[places] == NONE, NO_TEXT, BY_VALUE)
    hashes, keys = rng.integers(HASHES, size=(2, len(written)))[:, places]
    sample = np.where((tiers == BY_VALUE) & (keys % SAMPLE_ONE_IN == 0), keys, NOT_SAMPLED)
    if policy.by_id:
        tiers, hashes, sample = np.full(len(places), BY_VALUE), places, np.full(len(places), NOT_SAMPLED)
    if budget.unit == "rows":
        limit = choice.Budget(rows=round(budget.share * int(changed.sum())))
    else:
        limit = choice.Budget(tokens=round(budget.share * int(nights.tokens[night, changed].sum())))
    scores = policy.score(night, written)[places]
    return choice.choose(tiers, scores, hashes, sample, nights.tokens[night, places], limit)


def _last_night(nights: Nights, night: int) -> np.ndarray:
    """(U,) the night before where it has a text; NONE elsewhere."""
    return np.where(nights.text[night - 1] == NONE, NONE, night - 1) if night else np.full(
        nights.text.shape[1], NONE)


def features(nights: Nights, night: int, written: np.ndarray, max_history: int) -> dict[str, np.ndarray]:
    """Arguments (U,) of ``learned.value`` of all rows on a night, and the clicks ``missed`` by their texts.

    The traffic is unknown, so that it counts as in a run: all clicks of a row without a text, else none.
    """
    no_text = written == NONE
    shown = np.clip(nights.clicks[night], 1, max_history)
    missed = new_clicks(nights, night, written).astype(float)
    moved = nights.moved[night, np.arange(len(written)), np.minimum(missed, max_history).astype(int)]
    distance = np.where(no_text, 0.0, moved)
    return {"missed": missed, "traffic": missed * no_text,
            "new": value.new_share(np.minimum(missed, shown), shown.astype(float)),
            "age_days": np.where(no_text, 0, night - written).astype(float),
            "no_text": no_text.astype(float), "distance": distance}


def new_clicks(nights: Nights, night: int, written: np.ndarray) -> np.ndarray:
    """(U,) clicks up to ``night`` that the text of the night ``written`` (U,) does not know."""
    known = np.where(written == NONE, 0, nights.at(nights.clicks, written))
    return nights.clicks[night] - known


def simple(nights: Nights) -> Iterator[Policy]:
    """Policies without a value: what a nightly script would do."""
    ones = np.ones(nights.text.shape[1])
    yield Policy("first ids", lambda night, written: ones, by_id=True)
    yield Policy("random", lambda night, written: ones)
    yield Policy("oldest first", lambda night, written: (night - written).astype(float))
    yield Policy("most new interactions",
                 lambda night, written: new_clicks(nights, night, written).astype(float))


def valued(nights: Nights, max_history: int, coefficients: Coefficients | None = None,
           by_clicks: Nights | None = None) -> Iterator[Policy]:
    """Ours: value per cost by the formula, and by learned coefficients.

    Parameters
    ----------
    by_clicks
        The nights with distances by LightGCN vectors, for a policy to compare with.
    """
    def policy(name: str, worth: Callable[..., np.ndarray], known: Nights = nights) -> Policy:
        def score(night: int, written: np.ndarray) -> np.ndarray:
            mean = nights.text_tokens[night - 1].mean() if night else 1.0
            expected = np.where(written == NONE, mean, nights.at(nights.text_tokens, written))
            cost = value.cost(nights.prompt_tokens[night], expected / value.TOKENS_PER_STEP)
            return worth(**features(known, night, written, max_history)) / np.maximum(cost, 1)
        return Policy(name, score)

    def formula(missed: np.ndarray, **known: np.ndarray) -> np.ndarray:
        return value.value(**known)

    def learned_formula(missed: np.ndarray, **known: np.ndarray) -> np.ndarray:
        return learned.value(coefficients=coefficients, **known)

    yield policy("value", formula)
    if by_clicks is not None:
        yield policy("value, LightGCN vectors", formula, by_clicks)
    if coefficients is not None:
        yield policy("value, learned", learned_formula)


def hindsight(nights: Nights, vectors: np.ndarray) -> Policy:
    """A bound, not a policy: knows how far each text will move."""
    def score(night: int, written: np.ndarray) -> np.ndarray:
        then, now = nights.at(nights.text, written), nights.text[night]
        moved = np.where(written == NONE, 1.0, 1 - np.einsum("ud,ud->u", vectors[then], vectors[now]))
        return np.maximum(moved, 0)
    return Policy("hindsight", score)
