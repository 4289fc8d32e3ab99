"""One cell of the tables: the same rows by every method in turn, several times over.

The lines of the bench as the paper's tables.
"""

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from dare_job.bench.dare.models import ADVERTISEMENT
from dare_job.bench.measured import Measured
from dare_job.bench.night import once
from dare_job.decode.engine.prefill import ReuseEstimator
from dare_job.errors import DataError
from dare_job.generate import loading

PLAIN = "autoregressive"
METHODS = (PLAIN, "resd", "dare strict", "dare relaxed")


def cell(task: loading.Task, rows: Sequence[dict], batch: int, nodes: int, repeats: int) -> list[dict]:
    """A line of figures for each method: medians over ``repeats``, methods taking turns.

    Ratios are given in wall-clock time and by processor time, which neighbours on the machine disturb less.
    Raises DataError where a row cannot be written.
    """
    for method in METHODS:  # compiled and warm
        once(method, task, rows[:2], batch_size=batch, nodes=nodes)
    found: dict[str, Measured] = {}
    scorings = {method: ReuseEstimator() for method in METHODS}
    for _ in range(repeats):
        for method, scoring in scorings.items():
            measured = once(method, task, rows, scoring, batch_size=batch, nodes=nodes)
            if empty := [key for key, text in measured.texts[0].items() if not len(text)]:
                raise DataError(f"{method}: {empty[0]} and {len(empty) - 1} more rows could not be written")
            found[method] = measured.after(found.get(method))
    most = task.config.decode.max_new_tokens
    return [{"batch": batch, "nodes": nodes, **_line(method, seen, found[PLAIN], most)}
            for method, seen in found.items()]


def _ratios(seen: Measured, plain: Measured, times: str) -> list[float]:
    """Of the rates in each repeat: a relaxed text may be of another length."""
    rates = [[written / took for written, took in zip(one.written, getattr(one, times), strict=True)]
             for one in (seen, plain)]
    return [own / other for own, other in zip(*rates, strict=True)]


def _line(method: str, seen: Measured, plain: Measured, most: int) -> dict:
    """Figures of one method; ``most``: tokens that a text may have."""
    texts, theirs = ({row: text.tolist() for row, text in one.texts[-1].items()} for one in (seen, plain))
    ratios, rows, drafted = _ratios(seen, plain, "seconds"), len(texts), method != PLAIN
    return {
        "method": method,
        "tokens_per_s": round(seen.tokens_per_s, 1), "ratio": round(statistics.median(ratios), 3),
        "ratio_range": [round(min(ratios), 3), round(max(ratios), 3)],
        "accepted_per_step": round(seen.accepted / max(1, seen.steps), 3), "steps": seen.steps,
        "scored_share": round(seen.scored / max(1, seen.tokens), 4),
        "retrieval_us_per_step": round(1e3 * seen.retrieval_ms / max(1, seen.steps), 1) if drafted else None,
        "retrieval_ms_per_text": round(seen.retrieval_ms / rows, 3) if drafted else None,
        "rows": rows, "tokens": seen.tokens, "relaxed_share": round(seen.relaxed / max(1, seen.tokens), 4),
        "distinct_share": round(len(set(map(tuple, texts.values()))) / rows, 4),
        "ended_share": round(sum(len(text) < most for text in texts.values()) / rows, 4),
        "differ_from_autoregressive": sum(texts[row] != text for row, text in theirs.items()),
        "ratio_by_processor": round(statistics.median(_ratios(seen, plain, "processor")), 3)}


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
