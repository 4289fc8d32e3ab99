"""The lines of the bench as the paper's tables."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from dare_job.bench.dare.frameworks import ADVERTISEMENT

_FIGURES = ("tokens_per_s", "ratio", "ratio_by_processor", "accepted_per_step", "retrieval_us_per_step",
            "differ_from_autoregressive")
_HEADS = ("tokens/s", "times plain", "by CPU time", "accepted a step", "retrieval us a step",
          "rows that differ")


def show(lines: Sequence[dict]) -> None:
    """Print tables 2 (speed), 4 with 7, and 5 of each data set."""
    for data in dict.fromkeys(line["data"] for line in lines):
        own = [line for line in lines if line["data"] == data]
        first = own[0]["architecture"]
        plain = [line for line in own if line["prompts"] != ADVERTISEMENT]
        main = "kar" if any(line["prompts"] == "kar" for line in plain) else None
        _table(f"Table 2 (speed), {data}: prompt sets, {first}", ("prompts", "side"),
               [line for line in plain if line["architecture"] == first])
        _table(f"Tables 4 and 7, {data}: architectures, {main}", ("architecture", "side"),
               [line for line in plain if line["prompts"] == main])
        _table(f"Table 5, {data}: advertisements", ("architecture", "side"),
               [line for line in own if line["prompts"] == ADVERTISEMENT])


def _table(title: str, keys: Sequence[str], lines: Sequence[dict]) -> None:
    if not lines:
        return
    table = Table(*keys, "batch", "method", *_HEADS, title=title, title_justify="left")
    before = None
    for line in lines:
        row = tuple(line[key] for key in (*keys, "batch"))
        table.add_row(*(str(value) if row != before else "" for value in row), line["method"],
                      *("" if line[name] is None else str(line[name]) for name in _FIGURES))
        before = row
    Console(width=130).print(table)
