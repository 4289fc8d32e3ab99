"""Sentences about the choice of a run, for the log, the screen and the report."""

from dare_job.observe.progress import counted
from dare_job.schemas import ENTITIES

FAILED, LIMIT = "failed", "limit"  # reasons that only the end of a run knows


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
    sums: dict[str, list[int]] = {}
    for entity in ENTITIES:
        for age, numbers in choice[entity]["ages"].items():
            sums[age] = [a + b for a, b in zip(sums.get(age, (0, 0)), numbers, strict=True)]
    parts = [f"{age}: {written:,} of {written + left:,}" for age, (written, left) in sums.items()]
    return f"Changed rows that are written, by the age of their text: {', '.join(parts)}"


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
    return f"{sum(totals.values()):,} changed rows carried over ({named})"


def more_value(curve: dict, cost: float) -> float | None:
    """Share of the value left that ``cost`` more would buy, by a curve; None: nothing is left."""
    left = curve["value"][-1] - curve["chosen_value"]
    if left <= 0:
        return None
    wanted, points = curve["chosen_cost"] + cost, list(zip(curve["cost"], curve["value"], strict=True))
    for (cost_0, value_0), (cost_1, value_1) in zip(points, points[1:], strict=False):
        if cost_1 >= wanted:
            reached = value_0 + (value_1 - value_0) * (wanted - cost_0) / max(1, cost_1 - cost_0)
            return min(1.0, max(0.0, (reached - curve["chosen_value"]) / left))
    return 1.0
