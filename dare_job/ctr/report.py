"""The result of a CTR check: a table for people, and the JSON object that ends standard output."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

from dare_job.ctr import stats
from dare_job.ctr.examples import Examples
from dare_job.ctr.inputs import BASE, Inputs
from dare_job.ctr.train import Fitted

if TYPE_CHECKING:
    from dare_job.ctr.command import Options

_ALPHA = 0.05
Results = dict[tuple[str, str], list[Fitted]]


def result(options: "Options", made: Examples, sets: list[Inputs], results: Results) -> dict:
    """``rows`` (one a model and set), ``equivalence`` (one a model and pair), counts of data and texts."""
    rows = [_row(model, inputs.name, results) for model in options.models for inputs in sets]
    pairs = [_pair(model, pair, results, options.margin)
             for model in options.models for pair in options.equivalent]
    return {"rows": rows, "equivalence": pairs, "data": _data(made),
            "texts": {inputs.name: inputs.counts for inputs in sets if inputs.counts}}


def show(found: dict, console: Console | None = None) -> None:
    """Print the rows and the verdicts on pairs."""
    console = console or Console(width=130)
    table = Table("model", "knowledge", "AUC", "95 % interval", "log loss", "over base", "p")
    for row in found["rows"]:
        low, high = row["auc_ci95"]
        lift = ("", "") if row["lift"] is None else (f"{row['lift']:+.4f}", f"{row['p_value']:.2g}")
        table.add_row(row["model"], row["knowledge"], f"{row['auc_mean']:.4f}", f"{low:.4f} to {high:.4f}",
                      f"{row['logloss_mean']:.4f}", *lift)
    console.print(table)
    for pair in found["equivalence"]:
        low, high = pair["ci90"]
        verdict = "equivalent" if pair["equivalent"] else "not shown to be equivalent"
        console.print(f"{pair['model']}: {pair['pair'][0]} and {pair['pair'][1]} are {verdict} within "
                      f"{pair['margin']:g} (difference {pair['auc_difference']:+.4f}, 90 % interval "
                      f"{low:+.4f} to {high:+.4f}, p {pair['p_value']:.2g})")


def _row(model: str, name: str, results: Results) -> dict:
    auc, base = _auc(model, name, results), _auc(model, BASE, results)
    over = stats.paired(auc, base) if name != BASE else None
    return {
        "model": model, "knowledge": name, "auc_mean": _figure(auc.mean()),
        "auc_ci95": [_figure(value) for value in stats.interval(auc)],
        "logloss_mean": _figure(np.mean([fitted.logloss for fitted in results[model, name]])),
        "seeds": len(auc), "auc": [_figure(value) for value in auc],
        "lift": over and _figure(over.mean), "lift_ci95": over and [_figure(over.low), _figure(over.high)],
        "p_value": over and over.p_value}


def _pair(model: str, pair: tuple[str, str], results: Results, margin: float) -> dict:
    found = stats.equivalence(*(_auc(model, name, results) for name in pair), margin)
    return {"model": model, "pair": list(pair), "margin": margin, "auc_difference": _figure(found.mean),
            "ci90": [_figure(found.low), _figure(found.high)], "p_value": found.p_value,
            "equivalent": found.p_value < _ALPHA}


def _auc(model: str, name: str, results: Results) -> np.ndarray:
    return np.array([fitted.auc for fitted in results[model, name]])


def _data(made: Examples) -> dict:
    return {"users": len(made.users.ids), "items": len(made.items.ids),
            "rows": {name: len(rows) for name, rows in made.rows.items()},
            "clicks": round(float(made.label.mean()), 4), "first_label": _time(made.second.min()),
            "first_test_label": _time(made.second[made.rows["test"]].min())}


def _time(second: int) -> str:
    return datetime.fromtimestamp(int(second), UTC).isoformat(timespec="seconds")


def _figure(value: float) -> float:
    return round(float(value), 6)
