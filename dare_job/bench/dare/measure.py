"""One cell of the tables: the same rows by every method in turn, repeated; and the paper's tables."""

import statistics
from collections.abc import Sequence

from dare_job.bench.sample_job import run_method
from dare_job.decode.engine.prefill import ReuseEstimator
from dare_job.errors import DataError
from dare_job.evaluate.measured import Measured, print_table, take_turns
from dare_job.generate import loading

PLAIN = "autoregressive"
METHODS = (PLAIN, "resd", "dare strict", "dare relaxed")


def cell(task: loading.Task, rows: Sequence[dict], batch: int, nodes: int, repeats: int) -> list[dict]:
    """Figures of each method: medians over ``repeats``, methods taking turns.

    Ratios are given by wall-clock and by processor time, which other work on the machine disturbs less.

    Raises
    ------
    DataError
        A row fails.
    """
    reuse = {method: ReuseEstimator() for method in METHODS}

    def measure(method: str) -> Measured:
        once = run_method(method, task, rows, reuse[method], batch_size=batch, nodes=nodes)
        if empty := [key for key, text in once.texts[0].items() if not len(text)]:
            raise DataError(f"{method}: no text for {empty[0]} and {len(empty) - 1} more rows")
        return once

    for method in METHODS:  # compiled and warm
        run_method(method, task, rows[:2], batch_size=batch, nodes=nodes)
    measured = take_turns(METHODS, measure, repeats)
    max_tokens = task.config.decode.max_new_tokens
    return [{"batch": batch, "nodes": nodes, **_figures(method, each, measured[PLAIN], max_tokens)}
            for method, each in measured.items()]


def _ratios(measured: Measured, plain: Measured, times: str) -> list[float]:
    """Speed-up over autoregressive decoding in each repeat."""
    return [own / other for own, other in zip(measured.rates(getattr(measured, times)),
                                              plain.rates(getattr(plain, times)), strict=True)]


def _figures(method: str, measured: Measured, plain: Measured, max_tokens: int) -> dict:
    texts, expected = ({row: text.tolist() for row, text in each.texts[-1].items()}
                       for each in (measured, plain))
    ratios, rows, drafted = _ratios(measured, plain, "seconds"), len(texts), method != PLAIN
    steps, tokens, retrieval = max(1, measured.steps), max(1, measured.tokens), measured.retrieval_ms
    return {
        "method": method,
        "tokens_per_s": round(measured.tokens_per_s, 1), "ratio": round(statistics.median(ratios), 3),
        "ratio_range": [round(min(ratios), 3), round(max(ratios), 3)],
        "accepted_per_step": round(measured.accepted / steps, 3), "steps": measured.steps,
        "scored_share": round(measured.scored / tokens, 4),
        "retrieval_us_per_step": round(1e3 * retrieval / steps, 1) if drafted else None,
        "retrieval_ms_per_text": round(retrieval / rows, 3) if drafted else None,
        "rows": rows, "tokens": measured.tokens, "relaxed_share": round(measured.relaxed / tokens, 4),
        "distinct_share": round(len(set(map(tuple, texts.values()))) / rows, 4),
        "ended_share": round(sum(len(text) < max_tokens for text in texts.values()) / rows, 4),
        "differ_from_autoregressive": sum(texts[row] != text for row, text in expected.items()),
        "ratio_by_processor": round(statistics.median(_ratios(measured, plain, "processor")), 3)}


_COLUMNS = ("side", "batch", "method", "tokens_per_s", "ratio", "ratio_by_processor", "accepted_per_step",
            "retrieval_us_per_step", "differ_from_autoregressive")


def show(rows: Sequence[dict]) -> None:
    """Print tables 2 (speed), and 4 with 7, of each data set."""
    for data in dict.fromkeys(row["data"] for row in rows):
        own = [row for row in rows if row["data"] == data]
        first, sets = own[0]["architecture"], [row["prompts"] for row in own]
        main = "kar" if "kar" in sets else sets[0]
        print_table(f"Table 2 (speed), {data}: prompt sets, {first}",
                    [row for row in own if row["architecture"] == first], ("prompts", *_COLUMNS))
        print_table(f"Tables 4 and 7, {data}: architectures, {main}",
                    [row for row in own if row["prompts"] == main], ("architecture", *_COLUMNS))
