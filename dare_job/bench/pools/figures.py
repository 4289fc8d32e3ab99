"""The figures of ``bench pools`` from measured sums, their comparison in pairs of texts, and the tables."""

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

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
from dare_job.evaluate.measured import print_table
from dare_job.evaluate.replay.measure import ratio

Repeats = Mapping[str, list[dict[Cell, dict]]]  # by block: of each repeat, the measured sums of its cells


def rows(measured: Repeats) -> list[dict]:
    """One row per block and cell.

    Times are medians over repeats; a ratio is to autoregressive decoding of the same block and repeat.
    retrieval_us_per_step, retrieval_ms_per_text (table 3): the engine's drafting time between two forward
    passes; retrieval_share: of all the time (figure 2). accepted_along and retrieval_median_us (of the call
    alone): of strict cells, along known texts. differ: rows whose text differs from that of autoregressive
    decoding; cut: rows that had not ended at the maximum number of tokens.
    """
    return [_row(block, cell, repeats) for block, repeats in measured.items() for cell in repeats[0]]


def _row(block: str, cell: Cell, repeats: Sequence[dict[Cell, dict]]) -> dict:
    own = [repeat[cell] for repeat in repeats]
    plain = [next(iter(repeat.values())) for repeat in repeats]
    first, steps = own[0], max(1, own[0]["steps"])

    def ratio_by(time: str) -> float:
        ratios = [(sums["tokens"] / sums[time]) / (other["tokens"] / other[time])
                  for sums, other in zip(own, plain, strict=True)]
        return round(statistics.median(ratios), 3)

    def median(name: str) -> float:
        return statistics.median(sums[name] for sums in own)

    row = {"block": block, "pool": cell.pool, "retrieval": cell.retrieval, "rule": cell.named,
           "pool_texts": round(first["pool_texts"], 1),
           "accepted_per_step": round(first["accepted"] / steps, 3),
           "retrieval_us_per_step": round(1e6 * median("retrieval") / steps, 1),
           "retrieval_ms_per_text": round(1e3 * median("retrieval") / first["rows"], 3),
           "retrieval_share": round(statistics.median(x["retrieval"] / x["seconds"] for x in own), 4),
           "tokens_per_s": round(first["tokens"] / median("seconds"), 1),
           "ratio_to_baseline": ratio_by("seconds"), "ratio_by_processor": ratio_by("processor"),
           "mean_tokens": round(first["tokens"] / first["rows"], 1),
           "seconds_per_text": round(median("seconds") / first["rows"], 3),
           "relaxed_share": round(first["relaxed"] / first["tokens"], 4),
           "edit_distance": round(first["edit_distance"], 4), "differ": first["differ"], "cut": first["cut"]}
    if "along" in first:
        accepted, steps = np.sum(first["along"], axis=0)
        row |= {"accepted_along": round(float(accepted / max(1, steps)), 3),
                "retrieval_median_us": round(1e6 * median("retrieval_median"), 1)}
    return row


def comparisons(measured: Repeats) -> list[dict]:
    """Ratios of accepted tokens per step along the same texts, with the 95 % interval over texts."""
    sizes = [block for block in measured if block not in (SOURCES, RULES)]
    counts = {block: _along(measured[block]) for block in (*sizes, SOURCES)}
    all_users = counts[sizes[-1]][GRP, BLENDED]
    compared = []
    for block in sizes:
        pairs = [((CRP, BLENDED), (RRP, BLENDED)), ((CRP, BLENDED), (GRP, BLENDED)),
                 ((GRP, BLENDED), (GRP, PUBLISHED)), ((CRP, BLENDED), (CRP, PUBLISHED))]
        compared += [(block, _name(pair[0]), _name(pair[1]), counts[block][pair[0]], counts[block][pair[1]])
                     for pair in pairs if set(pair) <= set(counts[block])]
    compared += [(block, f"all users' {GRP}", pool, all_users, counts[block][pool, BLENDED])
                 for block in sizes[:-1] for pool in (GRP, CRP)]
    compared += [(SOURCES, BLEND, pool, counts[SOURCES][BLEND, BLENDED], counts[SOURCES][pool, BLENDED])
                 for pool in (OWN, GROUP, GLOBAL)]
    return [{"block": block, "of": name, "over": other, **ratio(ours, theirs)}
            for block, name, other, ours, theirs in compared]


def _along(repeats: Sequence[dict[Cell, dict]]) -> dict[tuple[str, str], np.ndarray]:
    """int64 (texts, 2), accepted and steps, by pool and retrieval of the strict cells."""
    return {(cell.pool, cell.retrieval): np.array(sums["along"]) for cell, sums in repeats[0].items()
            if cell.strict and cell.pool != NONE}


def _name(pair: tuple[str, str]) -> str:
    return pair[0] if pair[1] == BLENDED else f"{pair[0]}, published rule"


_CELL = ("pool", "pool_texts", "retrieval", "rule")
_TIME = ("retrieval_us_per_step", "retrieval_share")
_SPEED = ("tokens_per_s", "ratio_to_baseline", "ratio_by_processor", "mean_tokens")
_FIGURE_2 = (*_CELL, *_TIME, "retrieval_median_us", "accepted_per_step", "accepted_along")
_TABLE_3 = (*_CELL, "accepted_per_step", *_TIME, "retrieval_ms_per_text", *_SPEED)
_SOURCES = (*_CELL, "accepted_per_step", "accepted_along", *_TIME, "retrieval_median_us", *_SPEED)
_RULES = ("rule", "accepted_per_step", *_SPEED, "seconds_per_text", "relaxed_share",
          "edit_distance", "differ",
          "cut")


def show(rows: Sequence[dict], comparisons: Sequence[dict]) -> None:
    """Print all tables."""
    sizes = [row for row in rows if row["block"] not in (SOURCES, RULES)]
    print_table("Retrieval and acceptance by pool size, strict (figure 2)",
                [row for row in sizes if row["rule"] == "strict"], _FIGURE_2)
    print_table("Pools by size, strict and relaxed (table 3)", sizes, _TABLE_3)
    for title, block, columns in (("Sources, each alone and blended", SOURCES, _SOURCES),
                                  ("Rules of verification (figure 5, table 8)", RULES, _RULES)):
        print_table(title, [row for row in rows if row["block"] == block], columns)
    print_table("Accepted per step along the same texts, in pairs, strict", comparisons)
    print("accepted: draft tokens alone; along: of known texts, strict, without the model; retrieval: all "
          "drafting, and its share of all the time; its median: of the call alone, along known texts; "
          "ratios: to autoregressive decoding of the same block, by wall-clock and processor time; edit "
          "distance: to the text of autoregressive decoding, over the longer one's tokens; differ: rows "
          "whose text does; cut: rows that had not ended")
