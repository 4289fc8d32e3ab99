"""Every decoding mode beside autoregressive decoding on the synthetic data set, in one run.

The previous texts are those of the synthetic data set, as in ``make demo``. With ``--old model`` they are the
model's own texts of a first date without pools, so that only users with a new interaction are generated. The
job's stages make plan, groups, routes and pools of the next date. Each method decodes the same seeded sample
of rows ``repeats`` times; figures are medians. The last line is JSON.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dare_job.bench.cli import command, ints
from dare_job.bench.kept import work_folder
from dare_job.bench.sample_job import Old, prepare_job, run_method, sample_rows
from dare_job.config.options import option, words
from dare_job.decode.engine.prefill import ReuseEstimator
from dare_job.evaluate.measured import Measured, print_table, take_turns
from dare_job.generate import loading

METHODS = ("generate", "autoregressive", "resd", "dare strict", "dare relaxed")


@dataclass(frozen=True)
class Options:
    """Options of ``bench modes``."""

    old: Old = option("Who wrote the previous texts: shipped or model.", Old.shipped)
    rows: int = option("Rows decoded by each method.", 32)
    batch: Sequence[int] = option("Batch sizes.", (1, 8), parse=ints)
    nodes: Sequence[str] = option("decode.nodes for each batch size: auto, or draft tokens per row.",
                                  ("auto", "auto"), parse=words)
    threads: int = option("torch threads, as one Spark worker has.", 1)
    repeats: int = option("Number of runs of each method.", 3)
    users: int = option("Users of the synthetic data set.", 400)
    items: int = option("Items of the synthetic data set.", 300)
    work: Path | None = option("Folder to work in. Default: a temporary folder.", None)


@command(Options)
def main(options: Options) -> dict:
    """Measure tokens per second and accepted tokens per step on the synthetic data set."""
    with work_folder(options.work) as work:
        job = prepare_job(work, options.old, options.users, options.items)
        sample = sample_rows(job, options.rows)
        task = replace(loading.Task.of(job), threads=options.threads)
        job.spark.stop()  # its JVM would share the processors with what is measured
        nodes = {batch: nodes if nodes == "auto" else int(nodes)
                 for batch, nodes in zip(options.batch, options.nodes, strict=False)}
        rows = _rows(_measure(task, sample, nodes, options.repeats))
    print_table(f"{len(sample)} rows, previous texts: {options.old}, {options.threads} torch "
                f"thread(s), medians of {options.repeats}", rows)
    print("baseline: the faster of generate and autoregressive; accepted_per_step: draft tokens alone")
    return {"old": options.old, "rows": rows}


def _measure(task: loading.Task, sample: list[dict], nodes: dict[int, int | str],
             repeats: int) -> dict[tuple[str, int], Measured]:
    """By method and batch size; ``nodes`` has decode.nodes of each batch size."""
    reuse = {(method, batch): ReuseEstimator() for batch in nodes for method in METHODS}
    for method in ("dare relaxed", "generate"):  # compiled and warm
        run_method(method, task, sample[:2], batch_size=2, nodes=8)
    return take_turns(reuse, lambda key: run_method(key[0], task, sample, reuse[key], batch_size=key[1],
                                                    nodes=nodes[key[1]]), repeats)


def _rows(measured: dict[tuple[str, int], Measured]) -> list[dict]:
    rows = []
    for (method, batch), each in measured.items():
        plain = max(measured[name, batch].tokens_per_s for name in ("generate", "autoregressive"))
        steps = each.steps or None
        rows.append({
            "method": method, "batch": batch, "tokens_per_s": round(each.tokens_per_s, 1),
            "accepted_per_step": round(each.accepted / steps, 3) if steps else None,
            "target_steps": steps, "scored_share": round(each.scored / each.tokens, 4),
            "relaxed_share": round(each.relaxed / each.tokens, 4),
            "retrieval_us_per_step": round(1e3 * each.retrieval_ms / steps, 1) if steps else None,
            "busy_slots": round(each.steps / each.slot_steps, 3) if each.slot_steps else None,
            "ratio_to_baseline": round(each.tokens_per_s / plain, 2)})
    return rows
