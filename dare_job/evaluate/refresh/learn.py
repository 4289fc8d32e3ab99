"""Learns what a new text is worth: how far texts, or CTR scores, moved, as a sum of what was known before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.optimize import nnls

from dare_job.evaluate.refresh.nights import NONE, Nights, distances
from dare_job.evaluate.refresh.policies import Replayed, features
from dare_job.refresh import learned, value
from dare_job.refresh.learned import Coefficients

CAUGHT_AT = 0.3  # share of the rows
FEATURES = ("new", "distance", "age")


@dataclass(frozen=True)
class Moved:
    """n rows whose prompt changed since their text was written, on the nights of a replay.

    Attributes
    ----------
    night, user : int64 (n,)
    known
        By name (n,): ``missed`` interactions, and ``new``, ``age_days``, ``no_text`` and ``distance`` as of
        ``learned.value``.
    text : float64 (n,)
        1 - cosine of the text that the row has and of the one that a refresh would write.
    scores : float64 (n,)
        Mean absolute difference of CTR predictions with either text, over what the user is shown on the next
        day; NaN if that is nothing.
    """

    night: np.ndarray
    user: np.ndarray
    known: dict[str, np.ndarray]
    text: np.ndarray
    scores: np.ndarray

    def part(self, rows: np.ndarray) -> "Moved":
        """Some rows, (n,) bool."""
        known = {name: column[rows] for name, column in self.known.items()}
        return Moved(self.night[rows], self.user[rows], known, self.text[rows], self.scores[rows])


def movements(nights: Nights, vectors: np.ndarray, replayed: Replayed, first: int, max_history: int,
              score_moved: np.ndarray) -> Moved:
    """Rows of the nights from ``first`` on, as they were before anything was written on each night.

    Parameters
    ----------
    score_moved : float64 (D, U)
        ``Moved.scores`` of every night and user.
    """
    parts = []
    for night in range(first, len(nights.text)):
        before = replayed.written[night - 1]
        rows = np.flatnonzero(nights.changed(night, before) & (before != NONE))
        known = {name: column[rows] for name, column in features(nights, night, before, max_history).items()}
        text = distances(vectors, nights.at(nights.text, before)[rows], nights.text[night, rows])
        parts.append(Moved(np.full(len(rows), night), rows, known, text, score_moved[night, rows]))
    night, user, text, scores = (np.concatenate([getattr(part, name) for part in parts])
                                 for name in ("night", "user", "text", "scores"))
    known = {name: np.concatenate([part.known[name] for part in parts]) for name in parts[0].known}
    return Moved(night, user, known, text, scores)


def coefficients(moved: Moved) -> Coefficients:
    """Coefficients by how far scores moved, relative to the mean; by texts, if no user was shown anything."""
    seen = np.isfinite(moved.scores)
    rows, target = (moved.part(seen), "scores") if seen.any() else (moved, "text")
    distance = getattr(rows, target)
    weights = fit(rows.known | {"age": learned.aged(rows.known["age_days"])},
                  distance / max(float(distance.mean()), 1e-12), FEATURES)
    return Coefficients(**weights, no_text=sum(weights.values()))


def rankings(moved: Moved, weights: Coefficients) -> dict:
    """``ranking`` of each priority by how far texts moved, and by how far scores moved."""
    known = moved.known
    of_formula = {name: known[name] for name in known if name != "missed"} | {"traffic": 0.0}
    rng = np.random.default_rng(0)
    priorities = {"random": rng.random(len(moved.night)), "oldest first": known["age_days"],
                  "most new interactions": known["missed"],
                  "share of new history": known["new"], "distance of vectors": known["distance"],
                  "value": value.value(**of_formula),
                  "value, learned": learned.value(**of_formula, coefficients=weights)}
    seen = np.isfinite(moved.scores)
    return {name: {"text": ranking(priority, moved.text, moved.night),
                   "scores": ranking(priority[seen], moved.scores[seen], moved.night[seen])}
            for name, priority in priorities.items()}


def fit(features: Mapping[str, np.ndarray], moved: np.ndarray, names: Sequence[str]) -> dict[str, float]:
    """Weights >= 0 by least squares (Lawson and Hanson, 1974): moved = sum of weight * feature + constant.

    A negative weight would say that a newer history makes a text less wrong; it is noise, and as an order it
    would write rows last that it should write first.

    Parameters
    ----------
    features : float (n,) each
    moved : float (n,)
        How far each row's text or scores moved.

    Returns
    -------
    dict
        Weight by name, and ``constant``.
    """
    columns = [np.asarray(features[name], float) for name in names]
    scale = [max(float(np.abs(column).max(initial=0)), 1e-12) for column in columns]
    matrix = np.column_stack([*(column / size for column, size in zip(columns, scale, strict=True)),
                              np.ones(len(moved))])
    weights, _ = nnls(matrix, moved)
    by_name = {name: float(weight / size) for name, weight, size in zip(names, weights, scale, strict=False)}
    return by_name | {"constant": float(weights[-1])}


def ranking(priority: np.ndarray, moved: np.ndarray, group: np.ndarray) -> dict[str, float]:
    """How well a priority (n,) ranks rows by how far they ``moved`` (n,), on each night of ``group`` (n,).

    Returns
    -------
    spearman
        Mean over nights with at least three rows, weighted by rows; 0 for a night without any order.
    caught
        Share of all movement that the first ``CAUGHT_AT`` of each night's rows have; ties are cut by place.
    """
    total, weights, caught = [], [], 0.0
    for night in np.unique(group):
        rows = np.flatnonzero(group == night)
        order = rows[np.argsort(-priority[rows], kind="stable")]
        caught += moved[order[:round(CAUGHT_AT * len(rows))]].sum()
        if len(rows) > 2:
            flat = np.ptp(priority[rows]) == 0 or np.ptp(moved[rows]) == 0
            total.append(0.0 if flat else float(stats.spearmanr(priority[rows], moved[rows]).statistic))
            weights.append(len(rows))
    return {"spearman": float(np.average(total, weights=weights)) if total else 0.0,
            "caught": float(caught / moved.sum()) if moved.sum() else 0.0}
