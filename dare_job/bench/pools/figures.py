"""What the tables say: measured sums as rates and ratios, and comparisons in pairs of texts.

The bench's tables: pools against their size, sources, rules, and comparisons in pairs.
"""

import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from dare_job.bench.pools.pools import (
    BLEND,
    BLENDED,
    CRP,
    GLOBAL,
    GROUP,
    GRP,
    NONE,
    OWN,
    PUBLISHED,
    RRP,
    RULES,
    SOURCES,
    Cell,
)
from dare_job.evaluate.replay.measure import ratio

Seen = Mapping[str, list[dict[Cell, dict]]]  # by block: of each repeat, what was measured of its cells


def lines(seen: Seen) -> list[dict]:
    """One line for each block and cell.

    Times are medians over repeats; a ratio is to autoregressive decoding of the same block and repeat.
    retrieval_us_per_step, retrieval_ms_a_text (table 3): by the engine's clock, all that drafting takes
    between two forwards; retrieval_share: of all the time (figure 2). accepted_along and retrieval_median_us
    (of the call alone): of strict cells, along known texts. differ: rows with another text than plain
    decoding's; cut: rows that had not ended at the most tokens.
    """
    return [_line(block, cell, repeats) for block, repeats in seen.items() for cell in repeats[0]]


def _line(block: str, cell: Cell, repeats: Sequence[dict[Cell, dict]]) -> dict:
    found = [repeat[cell] for repeat in repeats]
    plain = [next(iter(repeat.values())) for repeat in repeats]
    first, steps = found[0], max(1, found[0]["steps"])

    def ratio_by(name: str) -> float:
        rates = [(one["tokens"] / one[name]) / (other["tokens"] / other[name])
                 for one, other in zip(found, plain, strict=True)]
        return round(statistics.median(rates), 3)

    def median(name: str) -> float:
        return statistics.median(one[name] for one in found)

    line = {"block": block, "pool": cell.pool, "retrieval": cell.retrieval, "rule": cell.named,
            "pool_texts": round(first["pool_texts"], 1),
            "accepted_per_step": round(first["accepted"] / steps, 3),
            "retrieval_us_per_step": round(1e6 * median("retrieval") / steps, 1),
            "retrieval_ms_a_text": round(1e3 * median("retrieval") / first["rows"], 3),
            "retrieval_share": round(statistics.median(x["retrieval"] / x["seconds"] for x in found), 4),
            "tokens_per_s": round(first["tokens"] / median("seconds"), 1),
            "ratio_to_plain": ratio_by("seconds"), "ratio_by_processor": ratio_by("processor"),
            "mean_tokens": round(first["tokens"] / first["rows"], 1),
            "seconds_a_text": round(median("seconds") / first["rows"], 3),
            "relaxed_share": round(first["relaxed"] / first["tokens"], 4),
            "edit_distance": round(first["edit_distance"], 4), "differ": first["differ"], "cut": first["cut"]}
    if "along" in first:
        gained, taken = np.sum(first["along"], axis=0)
        line |= {"accepted_along": round(float(gained / max(1, taken)), 3),
                 "retrieval_median_us": round(1e6 * median("retrieval_median"), 1)}
    return line


def comparisons(seen: Seen) -> list[dict]:
    """Accepted a step of one pool over another's along the same texts, with the 95 % interval over texts."""
    found = []
    sizes = [block for block in seen if block not in (SOURCES, RULES)]
    for block in sizes:
        by = _along(seen[block])
        pairs = [((CRP, BLENDED), (RRP, BLENDED)), ((CRP, BLENDED), (GRP, BLENDED)),
                 ((GRP, BLENDED), (GRP, PUBLISHED)), ((CRP, BLENDED), (CRP, PUBLISHED))]
        found += [_compared(block, *map(_name, pair), by[pair[0]], by[pair[1]]) for pair in pairs
                  if set(pair) <= set(by)]
    everybody = _along(seen[sizes[-1]])[GRP, BLENDED]
    for block in sizes[:-1]:
        by = _along(seen[block])
        found += [_compared(block, f"everybody's {GRP}", pool, everybody, by[pool, BLENDED])
                  for pool in (GRP, CRP)]
    by = _along(seen[SOURCES])
    return found + [_compared(SOURCES, BLEND, pool, by[BLEND, BLENDED], by[pool, BLENDED])
                    for pool in (OWN, GROUP, GLOBAL)]


def _along(repeats: Sequence[dict[Cell, dict]]) -> dict[tuple[str, str], np.ndarray]:
    """int64 (texts, 2), accepted and steps, by pool and retrieval of the strict cells."""
    return {(cell.pool, cell.retrieval): np.array(figures["along"]) for cell, figures in repeats[0].items()
            if cell.strict and cell.pool != NONE}


def _name(pair: tuple[str, str]) -> str:
    return pair[0] if pair[1] == BLENDED else f"{pair[0]}, published rule"


def _compared(block: str, one: str, other: str, ours: np.ndarray, theirs: np.ndarray) -> dict:
    return {"block": block, "of": one, "over": other, **ratio(ours, theirs)}

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
          "alone, along known texts; ratios: to autoregressive decoding of the same block, in wall-clock "
          "and in processor time; edit distance: to the text of autoregressive decoding, over the longer "
          "one's tokens; differ: rows whose text does; cut: rows that had not ended")


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
