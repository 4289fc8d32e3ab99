"""The bench's figures: one line for each method and batch size, and the table of them."""

import numpy as np
from rich.console import Console
from rich.table import Table

from dare_job.bench.decode.methods import AUTOREGRESSIVE, GENERATE, LOOKUP, RELAXED, STRICT, Measured

Found = dict[tuple[str, int], Measured]  # by method and batch size
_BELOW = ("plain: the faster of generate and autoregressive; accepted_per_step: without the model's own; "
          "ratio_by_processor: to generate, by processor time; ceiling_to_plain: were a tree's forward as "
          "quick as one token's, and nothing else took time")
STRICT_OVER_GENERATE = {1: 2.2, 8: 1.8, 32: 1.2}  # at least, by batch size
RELAXED_OVER_STRICT = {1: 1.2}
DISTINCT, LIKENESS = 0.95, 0.2  # share of distinct texts at least; replay acceptance off the recorded one's
OVER_PLAIN = 0.98  # every way of the engine, at every batch size


def line(found: Found, method: str, batch: int) -> dict:
    """A line of the table and of the JSON object."""
    seen = found[method, batch]
    rate = {name: found[name, batch].tokens_per_s for name in (GENERATE, AUTOREGRESSIVE)}
    return {"method": method, "batch": batch, "tokens_per_s": round(seen.tokens_per_s, 1),
            "accepted_per_step": round(seen.accepted / max(1, seen.steps), 3), "target_steps": seen.steps,
            "ratio_to_generate": round(seen.tokens_per_s / rate[GENERATE], 3),
            "ratio_by_processor": round(seen.tokens_per_s_of_processor
                                        / found[GENERATE, batch].tokens_per_s_of_processor, 3),
            "ratio_to_plain": round(seen.tokens_per_s / max(rate.values()), 3),
            "ceiling_to_plain": round(found[AUTOREGRESSIVE, batch].steps / max(1, seen.steps), 3),
            "scored_share": round(seen.scored / seen.tokens, 4),
            "relaxed_share": round(seen.relaxed / seen.tokens, 4)}


def differing(found: Found) -> int:
    """Rows whose text is another than ``generate``'s in some repeat of a strict method: ties of two logits.

    ``generate`` at the smallest batch size is right; its prompt lookup is not the engine's to answer for.
    """
    expected = found[GENERATE, min(batch for _, batch in found)].texts[0]
    written = [texts for (method, _), seen in found.items() if method not in (LOOKUP, RELAXED)
               for texts in seen.texts]
    return sum(any(not np.array_equal(texts[row], expected[row]) for texts in written) for row in expected)


def targets(rows: list[dict], likeness: dict) -> list[dict]:
    """What lines and texts are held against: target, bound, what was measured, and whether that meets it."""
    by = {(row["method"], row["batch"]): row for row in rows}
    off = abs(likeness["accepted_ratio"] - 1)
    found = [{"target": "distinct texts, at least", "bound": DISTINCT, "measured": likeness["distinct"],
              "met": likeness["distinct"] >= DISTINCT},
             {"target": "replay acceptance off recorded profiles', at most", "bound": LIKENESS,
              "measured": round(off, 3), "met": off <= LIKENESS}]
    for batch in dict.fromkeys(row["batch"] for row in rows):
        held = [("dare strict over generate", STRICT_OVER_GENERATE.get(batch),
                 by[STRICT, batch]["ratio_to_generate"]),
                ("relaxed over strict", RELAXED_OVER_STRICT.get(batch),
                 by[RELAXED, batch]["tokens_per_s"] / by[STRICT, batch]["tokens_per_s"])]
        held += [(f"{row['method']} over plain", OVER_PLAIN, row["ratio_to_plain"]) for row in rows
                 if row["batch"] == batch and row["method"] not in (GENERATE, LOOKUP)]
        found += [{"target": f"batch {batch}: {what}, at least", "bound": bound, "measured": round(value, 3),
                   "met": bool(value >= bound)} for what, bound, value in held if bound is not None]
    return found


def show(rows: list[dict], likeness: dict, settings: str) -> None:
    """Print the table, relaxed over strict, targets, and how like recorded profiles the texts are.

    likeness  of ``night.likeness``; settings: of the run, in words
    """
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(str(value) for value in row.values()), end_section=row["method"] == RELAXED)
    console = Console(width=170)
    console.print(table)
    by = {(row["method"], row["batch"]): row for row in rows}
    for batch in dict.fromkeys(row["batch"] for row in rows):
        clock, processor = (by[RELAXED, batch][name] / by[STRICT, batch][name]
                            for name in ("tokens_per_s", "ratio_by_processor"))
        console.print(f"batch {batch}: relaxed over strict {clock:.3f}, by processor time {processor:.3f}")
    for one in targets(rows, likeness):
        console.print("{verdict}: {target} {bound}: {measured}".format(
            verdict="met" if one["met"] else "MISSED", **one))
    console.print(f"{settings}; {_BELOW}")
    console.print("texts (and recorded profiles): {distinct:.1%} ({distinct_real:.1%}) distinct; replayed at "
                  "16 nodes {accepted:.2f} ({accepted_real:.2f}) accepted, {accepted_ratio:.3f} times; "
                  "{tokens:.0f} ({tokens_real:.0f}) tokens, median".format(**likeness))
