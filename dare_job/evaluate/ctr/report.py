"""The result of ``dare-job ctr``: a table, and the JSON object that ends standard output.

Intervals and tests are over seeds; they do not cover another sample of test rows.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats

from dare_job.evaluate.ctr.examples import Examples
from dare_job.evaluate.ctr.inputs import BASE, Inputs
from dare_job.evaluate.ctr.options import Options
from dare_job.evaluate.ctr.train import Fitted

_ALPHA = 0.05
Results = dict[tuple[str, str], list[Fitted]]


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences a - b over seeds, with an interval and a p value."""

    mean: float
    low: float
    high: float
    p_value: float


def interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Student's interval of the mean of values (n,), at least two."""
    low, high = stats.t.interval(level, len(values) - 1, np.mean(values), stats.sem(values))
    return float(low), float(high)


def paired(a: np.ndarray, b: np.ndarray) -> Difference:
    """Paired t test of "no difference", two-sided, with the 95 % interval of the mean difference.

    ``a`` and ``b`` (seeds,) have the values of the same seeds.
    """
    gap = np.asarray(a, float) - np.asarray(b, float)
    if np.ptp(gap) == 0:  # the t statistic is not defined
        return Difference(float(gap[0]), float(gap[0]), float(gap[0]), 0.0 if gap[0] else 1.0)
    return Difference(float(gap.mean()), *interval(gap), float(stats.ttest_1samp(gap, 0.0).pvalue))


def equivalence(a: np.ndarray, b: np.ndarray, margin: float) -> Difference:
    """Two one-sided t tests (TOST) of "the mean of a - b is -margin or less, or margin or more".

    The p value is the larger of both; below 0.05 exactly where the 90 % interval, which is returned, lies
    within the margin. ``a`` and ``b`` (seeds,) as in ``paired``.
    """
    gap = np.asarray(a, float) - np.asarray(b, float)
    if np.ptp(gap) == 0:
        mean = float(gap[0])
        return Difference(mean, mean, mean, 0.0 if abs(mean) < margin else 1.0)
    above = stats.ttest_1samp(gap, -margin, alternative="greater").pvalue
    below = stats.ttest_1samp(gap, margin, alternative="less").pvalue
    return Difference(float(gap.mean()), *interval(gap, 0.90), float(max(above, below)))


def result(options: Options, examples: Examples, sets: list[Inputs], results: Results) -> dict:
    """Return ``rows`` (per model and set), ``equivalence`` (per model and pair), counts of data and texts."""
    rows = [_row(model, inputs.name, results) for model in options.models for inputs in sets]
    pairs = [_pair(model, pair, results, options.margin)
             for model in options.models for pair in options.equivalent]
    return {"rows": rows, "equivalence": pairs, "data": _data(examples),
            "texts": {inputs.name: inputs.counts for inputs in sets if inputs.counts}}


def show(result: dict, console: Console) -> None:
    """Print the rows and the tests of pairs."""
    table = Table("model", "knowledge", *("AUC", "95 % interval", "over base", "p"),
                  *("log loss", "95 % interval", "over base", "p"))
    for row in result["rows"]:
        table.add_row(row["model"], row["knowledge"],
                      *_cells(row["auc_mean"], row["auc_ci95"], row["lift"], row["p_value"]),
                      *_cells(row["logloss_mean"], row["logloss_ci95"], row["logloss_lift"],
                              row["logloss_p_value"]))
    console.print(table)
    for pair in result["equivalence"]:
        low, high = pair["ci90"]
        conclusion = "equivalent" if pair["equivalent"] else "not shown to be equivalent"
        console.print(f"{pair['model']}: {pair['pair'][0]} and {pair['pair'][1]} are {conclusion} within "
                      f"{pair['margin']:g} (difference {pair['auc_difference']:+.4f}, 90 % interval "
                      f"{low:+.4f} to {high:+.4f}, p {pair['p_value']:.2g})")


def _cells(mean: float, interval: list[float], lift: float | None, p_value: float | None) -> list[str]:
    over = ("", "") if lift is None else (f"{lift:+.4f}", f"{p_value:.2g}")
    return [f"{mean:.4f}", f"{interval[0]:.4f} to {interval[1]:.4f}", *over]


def _row(model: str, name: str, results: Results) -> dict:
    """For AUC and log loss: mean, interval, values by seed, and paired difference from the base."""
    auc, loss = (_measured(model, name, results, key) for key in ("auc", "logloss"))
    over = {key: paired(values, _measured(model, BASE, results, key)) if name != BASE else None
            for key, values in (("auc", auc), ("logloss", loss))}
    return {
        "model": model, "knowledge": name, "auc_mean": _figure(auc.mean()), "auc_ci95": _interval(auc),
        "logloss_mean": _figure(loss.mean()), "logloss_ci95": _interval(loss),
        "seeds": len(auc), "auc": list(map(_figure, auc)), "logloss": list(map(_figure, loss)),
        **_lift("", over["auc"]), **_lift("logloss_", over["logloss"])}


def _lift(prefix: str, over: Difference | None) -> dict:
    """Mean, interval and p value. For log loss, a negative lift is an improvement."""
    return {f"{prefix}lift": over and _figure(over.mean),
            f"{prefix}lift_ci95": over and [_figure(over.low), _figure(over.high)],
            f"{prefix}p_value": over and over.p_value}


def _interval(values: np.ndarray) -> list[float]:
    return list(map(_figure, interval(values)))


def _pair(model: str, pair: tuple[str, str], results: Results, margin: float) -> dict:
    test = equivalence(*(_measured(model, name, results, "auc") for name in pair), margin)
    return {"model": model, "pair": list(pair), "margin": margin, "auc_difference": _figure(test.mean),
            "ci90": [_figure(test.low), _figure(test.high)], "p_value": test.p_value,
            "equivalent": test.p_value < _ALPHA}


def _measured(model: str, name: str, results: Results, key: str) -> np.ndarray:
    return np.array([getattr(fitted, key) for fitted in results[model, name]])


def _data(examples: Examples) -> dict:
    return {"users": len(examples.users.ids), "items": len(examples.items.ids),
            "rows": {name: len(rows) for name, rows in examples.rows.items()},
            "clicks": round(float(examples.label.mean()), 4), "first_label": _time(examples.second.min()),
            "first_test_label": _time(examples.second[examples.rows["test"]].min())}


def _time(second: int) -> str:
    return datetime.fromtimestamp(int(second), UTC).isoformat(timespec="seconds")


def _figure(value: float) -> float:
    return round(float(value), 6)
