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


def targets(curves: Sequence[dict], replay: Sequence[dict], models: Sequence[str],
            batches: Sequence[int], text: str) -> list[dict]:
    """Every target of these models and batch sizes with its verdict: met, missed, or not measured and why.

    text  what the replay writes: another text has another verdict
    """
    found = []
    for model in dict.fromkeys(models):
        found += _of_curve(model, {(line["rows"], line["queries"]): line for line in reversed(curves)
                                   if line["model"] == model})
    for batch in dict.fromkeys(batches):
        lines = _of_replay(batch, {line["way"]: line for line in replay if line["batch"] == batch})
        found += [{**line, "text": text} for line in lines]
    return found


def _of_curve(model: str, points: dict) -> list[dict]:
    one, tree = points.get((1, 1)), points.get((1, 64))
    lacking = [str(queries) for queries, line in ((1, one), (64, tree)) if line is None]
    why = f"its latency curve has no step of one row with so many queries: {', '.join(lacking)}"
    return [_target(f"{model}: a step of 1 token over its floor, at most", FLOOR,
                    one and one["ms"] / one["floor_ms"], why, most=True),
            _target(f"{model}: 64 queries over a step of 1, at most", TREE,
                    one and tree and tree["ms"] / one["ms"], why, most=True)]


def _of_replay(batch: int, lines: dict) -> list[dict]:
    bounds = {"plain": SPEED_UP.get(batch), "generate": 1.0, "generate_batch": 1.0}
    found = []
    for way, bound in bounds.items():
        if bound is None:
            continue
        ours, other = (lines.get(name, {"error": "not run"}) for name in ("scheduled", way))
        why = "; ".join(f"{name}: {line['error']}" for name, line in (("scheduled", ours), (way, other))
                        if "error" in line)
        found.append(_target(
            f"batch {batch}: scheduled drafts over {way}, {'at least' if way == 'plain' else 'above'}", bound,
            None if why else ours["tokens_per_s"] / other["tokens_per_s"], why, most=False))
    return found


def _target(what: str, bound: float, value: float | None, why: str, most: bool) -> dict:
    """value None: not measured, and ``why``."""
    line = {"target": what, "bound": bound}
    if value is None:
        return {**line, "verdict": "not measured", "why": why}
    met = value <= bound if most else value > bound if bound == 1.0 else value >= bound
    return {**line, "measured": round(value, 3), "verdict": "met" if met else "missed"}
