"""The curve as a table for people."""

from rich.console import Console
from rich.table import Table

from dare_job.curve.table import Entry, QualityCurve


def show(curve: QualityCurve, console: Console | None = None) -> None:
    """Print a line for each setting: speed, distances, AUC lost, each with its bound."""
    console = console or Console(width=150)
    models = list(next((entry.auc for entry in curve.entries if entry.auc), {}))
    table = Table("setting", "tokens/s", "speed", "least to most", "accepted", "relaxed", "other texts",
                  "cosine", "ROUGE-L", "length", *(f"AUC lost, {model}" for model in models))
    for entry in curve.entries:
        table.add_row(*_cells(entry, models))
    console.print(table)
    console.print(f"{curve.rows} rows, {curve.timed} of them timed {curve.turns} times; speed: rows a second "
                  f"over strict's; in brackets bounds of the means at {curve.level:.0%}, for all settings "
                  "together")


def _cells(entry: Entry, models: list[str]) -> list[str]:
    median, least, most = entry.speed
    accepted = "" if entry.accepted_per_step is None else f"{entry.accepted_per_step:.2f}"
    cells = [entry.name, f"{entry.tokens_per_s:.0f}", f"{median:.2f}", f"{least:.2f} to {most:.2f}", accepted]
    if entry.k is None:
        return [*cells, *[""] * (5 + len(models))]
    cells += [f"{entry.relaxed_share:.2%}", f"{entry.differing:.1%}"]
    distances = (entry.cosine, entry.rouge_l, entry.length)
    cells += [_with_bound(part.mean, part.bound, ".4f") for part in distances]
    return cells + [_with_bound(entry.auc[model].mean, entry.auc[model].bound, "+.4f") for model in models]


def _with_bound(mean: float, bound: float | None, form: str) -> str:
    return f"{mean:{form}} ({'none' if bound is None else format(bound, form)})"
