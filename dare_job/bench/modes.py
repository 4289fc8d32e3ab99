"""Every decoding mode beside autoregressive decoding on the sample world, in one run.

The previous texts are those of the sample, as in ``make demo``. With ``--old model`` they are the model's own
texts of a first date without pools, so that only users with a new interaction are generated. The job's stages
make plan, groups, routes and pools of the next date. Each method decodes the same seeded sample of rows
``repeats`` times; figures are medians. The last line is JSON.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from dare_job.bench import reports
from dare_job.bench.measured import Measured
from dare_job.bench.night import Old, once, prepared, sampled
from dare_job.bench.options import command, ints
from dare_job.config.options import option, words
from dare_job.decode.engine.prefill import ReuseEstimator
from dare_job.generate import loading

METHODS = ("generate", "autoregressive", "resd", "dare strict", "dare relaxed")


@dataclass(frozen=True)
class Options:
    """Options of ``bench modes``."""

    old: Old = option("Whose text drafts.", Old.shipped)
    rows: int = option("Rows decoded by each method.", 32)
    batch: Sequence[int] = option("Batch sizes.", (1, 8), parse=ints)
    nodes: Sequence[str] = option("decode.nodes for each batch size: auto, or draft nodes of each row.",
                                  ("auto", "auto"), parse=words)
    threads: int = option("torch threads, as one Spark worker has.", 1)
    repeats: int = option("Times each method runs.", 3)
    users: int = option("Users of the sample world.", 400)
    items: int = option("Items of the sample world.", 300)
    work: Path | None = option("Folder to work in; else a temporary one.", None)


@command(Options)
def main(options: Options) -> dict:
    """Measure tokens a second and accepted tokens a step on the sample world."""
    with TemporaryDirectory() as temporary:
        job = prepared(options.work or Path(temporary), options.old, options.users, options.items)
        sample = sampled(job, options.rows)
        task = replace(loading.Task.of(job), threads=options.threads)
        job.spark.stop()  # its JVM would share the processors with what is measured
        budgets = {batch: nodes if nodes == "auto" else int(nodes)
                   for batch, nodes in zip(options.batch, options.nodes, strict=False)}
        lines = _lines(_measure(task, sample, budgets, options.repeats))
    console = Console(width=130)
    console.print(reports.table(lines))
    console.print(f"{len(sample)} rows, old text: {options.old}, {options.threads} torch thread(s), medians "
                  f"of {options.repeats}; plain: the faster of generate and autoregressive; "
                  "accepted_per_step: the model's own token not counted")
    return {"old": options.old, "rows": lines}


def _measure(task: loading.Task, sample: list[dict], budgets: dict[int, int | str], repeats: int) -> dict:
    """Measured by (method, batch size); ``budgets`` has decode.nodes of each batch size."""
    scorings = {(method, batch): ReuseEstimator() for batch in budgets for method in METHODS}
    found: dict[tuple, Measured] = {}
    once("dare relaxed", task, sample[:2], batch_size=2, nodes=8)  # compiled and warm
    once("generate", task, sample[:2], batch_size=2, nodes=8)
    for _ in range(repeats):
        for (method, batch), scoring in scorings.items():
            measured = once(method, task, sample, scoring, batch_size=batch, nodes=budgets[batch])
            found[method, batch] = measured.after(found.get((method, batch)))
    return found


def _lines(found: dict) -> list[dict]:
    lines = []
    for (method, batch), seen in found.items():
        plain = max(found[name, batch].tokens_per_s for name in ("generate", "autoregressive"))
        steps = seen.steps or None
        lines.append({
            "method": method, "batch": batch, "tokens_per_s": round(seen.tokens_per_s, 1),
            "accepted_per_step": round(seen.accepted / steps, 3) if steps else None,
            "target_steps": steps, "scored_share": round(seen.scored / seen.tokens, 4),
            "relaxed_share": round(seen.relaxed / seen.tokens, 4),
            "retrieval_us_per_step": round(1e3 * seen.retrieval_ms / steps, 1) if steps else None,
            "busy_slots": round(seen.steps / seen.slot_steps, 3) if seen.slot_steps else None,
            "ratio_to_plain": round(seen.tokens_per_s / plain, 2)})
    return lines
