"""Sentences about the choice of a run, for the log, the screen and the report."""

import numpy as np

from dare_job.observe.progress import counted
from dare_job.schemas import ENTITIES

FAILED, LIMIT = "failed", "limit"  # reasons that only the end of a run knows
_ROUNDED = 1e-5  # a difference of values that may come from rounding
_ROUNDED_PART = 1e-9  # of their sum, the same


def of_plan(record: dict) -> str:
    """What the stage plan chose, from its record; empty if every changed row is written."""
    choice = record.get("refresh")
    if not choice:
        return ""
    parts = [copies(sum(choice[entity]["copied"] for entity in ENTITIES),
                    sum(record[entity]["stale"] for entity in ENTITIES)),
             carried([choice[entity]["carried"] for entity in ENTITIES])]
    left, curve = sum(choice[entity]["value_left"] for entity in ENTITIES), choice.get("curve")
    if left and curve:
        total = left + sum(choice[entity]["value"] for entity in ENTITIES)
        parts.append(f"{left / total:.0%} of the expected value is left for later runs")
    return "; ".join(filter(None, parts))


def of_choice(choice: dict) -> str:
    """Changed rows by the age of their text, written and left; empty if every changed row is written."""
    if not any(choice[entity]["carried"] for entity in ENTITIES):
        return ""
    parts = [f"{age}: {written:,} of {written + left:,}"
             for age, (written, left) in ages([choice[entity] for entity in ENTITIES]).items()]
    return f"Changed rows that are written, by the age of their text: {', '.join(parts)}"


def ages(records: list[dict]) -> dict[str, list[int]]:
    """Changed rows of all entity types, written and left, by the age of their text: rows without one last."""
    sums: dict[str, list[int]] = {}
    for record in records:
        for age, (written, left) in record.get("ages", {}).items():
            before = sums.get(age, [0, 0])
            sums[age] = [before[0] + written, before[1] + left]
    order = sorted(sums, key=lambda age: (not age[0].isdigit(), int(age.split()[0].partition("-")[0])
                                          if age[0].isdigit() else 0))
    return {age: sums[age] for age in order}


def of_row(row: dict) -> str:
    """Since when a published row is stale, and why it was not written; empty if its text is current."""
    if not row["stale_since"]:
        return ""
    unseen = row["unseen_interactions"]
    return (f"stale since {row['stale_since']}, carried over ({row['carried_reason']})"
            + (f", {counted(unseen, 'unseen interaction')}" if unseen else ""))


def hour(share: float) -> str:
    """What ``one_more_hour`` says."""
    return f"Another hour of each worker would buy {share:.0%} of the value left"


def copies(rows: int, stale: int) -> str:
    """How many rows share the text of an identical prompt, of ``stale`` changed rows; empty if none."""
    return f"{counted(rows, 'row')} ({rows / stale:.0%}) with the prompt of another row" if rows else ""


def carried(reasons: list[dict[str, int]]) -> str:
    """The rows carried over by reason, summed over entity types; empty if there are none."""
    totals: dict[str, int] = {}
    for counts in reasons:
        for reason, rows in counts.items():
            totals[reason] = totals.get(reason, 0) + rows
    if not totals:
        return ""
    ordered = sorted(totals.items(), key=lambda pair: -pair[1])
    named = ", ".join(f"{reason} {rows:,}" for reason, rows in ordered)
    return f"{counted(sum(totals.values()), 'changed row')} carried over ({named})"


def one_more_hour(curve: dict | None, busy_s: float | None, workers: int | None, cost: float | None = None
                  ) -> float | None:
    """Share of the value left that another hour of each worker would buy; None if that is not known.

    Parameters
    ----------
    busy_s
        Decoding time, summed over workers, of texts of this cost; by default of the chosen ones.
    """
    if not curve or not busy_s or not workers:
        return None
    cost = curve["chosen_cost"] if cost is None else cost
    return more_value(curve, cost / busy_s * workers * 3600) if cost else None


def more_value(curve: dict, cost: float) -> float | None:
    """Share of the value left that ``cost`` more would buy, by a curve; None: nothing is left.

    Some of what is left no time can buy: rows that failed before, for example.
    """
    rest = curve["value"][-1] - curve["chosen_value"]
    left = max(rest, curve.get("left_value", rest))
    if left < max(_ROUNDED, _ROUNDED_PART * (left + curve["chosen_value"])):
        return None
    reached = float(np.interp(curve["chosen_cost"] + cost, curve["cost"], curve["value"]))
    return min(1.0, max(0.0, (reached - curve["chosen_value"]) / left))


def stopped(curve: dict, share: float) -> dict:
    """The curve of a run that stops after this share of the cost of what it chose."""
    cost = share * curve["chosen_cost"]
    rows, value = (float(np.interp(cost, curve["cost"], curve[name])) for name in ("rows", "value"))
    value = min(value, curve["chosen_value"])
    return curve | {"chosen_rows": min(round(rows), curve["chosen_rows"]), "chosen_cost": cost,
                    "chosen_value": value,
                    "left_value": curve["left_value"] + curve["chosen_value"] - value}


def value_left(curve: dict) -> float:
    """Share of the expected value of texts that is left for later runs, by a curve."""
    return curve["left_value"] / max(_ROUNDED, curve["left_value"] + curve["chosen_value"])
