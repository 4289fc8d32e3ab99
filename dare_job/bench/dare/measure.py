"""One cell of the tables: the same rows by every method in turn, several times over."""

import statistics
from collections.abc import Mapping, Sequence

from dare_job.bench.night import Measured, once
from dare_job.decode.scoring import Scoring
from dare_job.spark import loading

PLAIN = "autoregressive"
METHODS = (PLAIN, "resd", "dare strict", "dare relaxed")


def cell(task: loading.Task, rows: Sequence[dict], batch: int, nodes: int, repeats: int) -> list[dict]:
    """A line of figures for each method: medians over ``repeats``, methods taking turns."""
    for method in METHODS:  # compiled and warm
        once(method, task, rows[:2], batch_size=batch, nodes=nodes)
    found = {method: Measured(seconds=[]) for method in METHODS}
    scorings = {method: Scoring() for method in METHODS}
    for _ in range(repeats):
        for method, seen in found.items():
            measured = once(method, task, rows, scorings[method], batch_size=batch, nodes=nodes)
            found[method] = measured.after(seen)
    return [_line(method, seen, found[PLAIN], batch, nodes, len(rows)) for method, seen in found.items()]


def _line(method: str, seen: Measured, plain: Measured, batch: int, nodes: int, rows: int) -> dict:
    ratios = [(seen.tokens / seconds) / (plain.tokens / at_plain)
              for seconds, at_plain in zip(seen.seconds, plain.seconds, strict=True)]
    drafted = method != PLAIN
    return {
        "batch": batch, "nodes": nodes, "method": method,
        "tokens_per_s": round(seen.tokens_per_s, 1), "ratio": round(statistics.median(ratios), 3),
        "ratio_range": [round(min(ratios), 3), round(max(ratios), 3)],
        "accepted_per_step": round(seen.accepted / max(1, seen.steps), 3), "steps": seen.steps,
        "scored_share": round(seen.scored / max(1, seen.tokens), 4),
        "retrieval_us_per_step": round(1e3 * seen.retrieval_ms / max(1, seen.steps), 1) if drafted else None,
        "retrieval_ms_per_text": round(seen.retrieval_ms / rows, 3) if drafted else None,
        "rows": rows, "tokens": seen.tokens, "relaxed_share": round(seen.relaxed / max(1, seen.tokens), 4),
        "differ_from_autoregressive": _differ(seen.texts, plain.texts)}


def _differ(texts: Mapping, plain: Mapping) -> int:
    """Rows whose tokens are not those of plain decoding."""
    return sum(texts[key] != plain[key] for key in plain)
