"""Learns what a new text is worth: how far texts, or CTR scores, moved, as a sum of what was known before."""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats
from scipy.optimize import nnls

CAUGHT_AT = 0.3  # share of the rows


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
    found = {name: float(weight / size) for name, weight, size in zip(names, weights, scale, strict=False)}
    return found | {"constant": float(weights[-1])}


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
