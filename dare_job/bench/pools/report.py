"""The bench's tables: pools against their size, sources, rules, and comparisons in pairs."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from dare_job.bench.pools.cells import RULES, SOURCES

_TIME = ("retrieval_us_per_step", "retrieval_share")
_SPEED = ("tokens_per_s", "ratio_to_plain", "ratio_by_processor", "mean_tokens")
_FIGURE_2 = ("pool", "pool_texts", "retrieval", "rule", *_TIME, "retrieval_median_us", "accepted_per_step",
             "accepted_along")
_TABLE_3 = ("pool", "pool_texts", "retrieval", "rule", "accepted_per_step", *_TIME, "retrieval_ms_a_text",
            *_SPEED)
_SOURCES = ("pool", "pool_texts", "retrieval", "rule", "accepted_per_step", "accepted_along", *_TIME,
            "retrieval_median_us", *_SPEED)
_RULES = ("rule", "accepted_per_step", "tokens_per_s", "ratio_to_plain", "ratio_by_processor", "mean_tokens",
          "seconds_a_text", "relaxed_share", "edit_distance", "differ", "cut")
_BELOW = ("accepted: draft tokens, without the model's own; along: of known texts, strict, without the "
          "model; retrieval: all that drafting takes, its share of the whole time; its median: of the call "
          "alone, along known texts; ratios: to plain decoding of the same block, by the clock and by "
          "processor time; edit distance: to plain decoding's text, over the longer one's tokens; differ: "
          "rows whose text does; cut: rows that had not ended")


def show(lines: Sequence[dict], comparisons: Sequence[dict], settings: str) -> None:
    """Print all tables; settings: of the run, in words."""
    console = Console(width=190)
    sizes = [line for line in lines if line["block"] not in (SOURCES, RULES)]
    strict = [line for line in sizes if line["rule"] == "strict"]
    console.print(_table("Retrieval and what it gains, by pool size, strict (figure 2)", strict, _FIGURE_2))
    console.print(_table("Pools by size, strict and relaxed (table 3)", sizes, _TABLE_3))
    console.print(_table("Sources, each alone and blended", _of(lines, SOURCES), _SOURCES))
    console.print(_table("Rules of verification (figure 5, table 8)", _of(lines, RULES), _RULES))
    console.print(_table("Accepted a step along the same texts, in pairs, strict", comparisons,
                         tuple(comparisons[0])))
    console.print(f"{settings}; {_BELOW}")


def _of(lines: Sequence[dict], block: str) -> list[dict]:
    return [line for line in lines if line["block"] == block]


def _table(title: str, lines: Sequence[dict], columns: Sequence[str]) -> Table:
    table = Table(*(column.replace("_", " ") for column in columns), title=title, title_justify="left")
    for column in table.columns[:columns.index("rule") + 1] if "rule" in columns else ():
        column.no_wrap = True
    for line, after in zip(lines, [*lines[1:], None], strict=True):
        table.add_row(*(str(line.get(column, "")) for column in columns),
                      end_section=after is not None and after["block"] != line["block"])
    return table
