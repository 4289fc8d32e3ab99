"""Tables, and the targets that the figures are held against."""

from collections.abc import Sequence

FLOOR = 1.25  # times the bandwidth floor, a step of one token
TREE = 1.3  # times that step, 64 queries
SPEED_UP = {1: 5.0, 32: 2.5, 128: 1.3}  # of scheduled drafts over plain, by batch


def table(lines: Sequence[dict], columns: Sequence[str]) -> str:
    """A Markdown table; what a line lacks is empty."""
    rows = [[_text(line.get(column)) for column in columns] for line in lines]
    head = [column.replace("_", " ") for column in columns]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(columns), *rows])


def _text(value) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def targets(curves: Sequence[dict], replay: Sequence[dict]) -> list[dict]:
    """Each target with what was measured of it, and whether that meets it. Without a measurement: none."""
    found = []
    for model in dict.fromkeys(line["model"] for line in curves):
        found += _of_curve(model, {(line["rows"], line["queries"]): line for line in reversed(curves)
                                   if line["model"] == model})
    for batch in dict.fromkeys(line["batch"] for line in replay):
        speed = {line["way"]: line["tokens_per_s"] for line in replay
                 if line["batch"] == batch and "tokens_per_s" in line}
        if not {"plain", "scheduled"} <= speed.keys():
            continue
        if batch in SPEED_UP:
            found.append(_target(f"batch {batch}: scheduled drafts over plain, at least", SPEED_UP[batch],
                                 speed["scheduled"] / speed["plain"], most=False))
        for peer in ("generate", "generate_batch"):
            if peer in speed:
                found.append(_target(f"batch {batch}: scheduled drafts over {peer}, above", 1.0,
                                     speed["scheduled"] / speed[peer], most=False))
    return found


def _of_curve(model: str, points: dict) -> list[dict]:
    found = []
    if one := points.get((1, 1)):
        found.append(_target(f"{model}: a step of 1 token over its floor, at most", FLOOR,
                             one["ms"] / one["floor_ms"], most=True))
        if tree := points.get((1, 64)):
            found.append(_target(f"{model}: 64 queries over a step of 1, at most", TREE,
                                 tree["ms"] / one["ms"], most=True))
    return found


def _target(what: str, bound: float, value: float, most: bool) -> dict:
    met = value <= bound if most else value > bound if bound == 1.0 else value >= bound
    return {"target": what, "bound": bound, "measured": round(value, 3), "met": bool(met)}
