"""Every decoding mode beside autoregressive decoding on the sample world, in one run.

The previous texts are those of the sample, as in ``make demo``. With ``--old model`` they are the model's own
texts of a first date without pools, so that only users with a new interaction are generated. The job's stages
make plan, groups, routes and pools of the next date. Each method decodes the same seeded sample of rows
``repeats`` times; figures are medians. The last line is JSON.
"""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dare_job.bench.night import Measured, Old, once, prepared, sampled
from dare_job.decode.engine.prefill import ReuseEstimator
from dare_job.generate import loading

METHODS = ("generate", "autoregressive", "resd", "dare strict", "dare relaxed")


def main(
    old: Annotated[Old, typer.Option(help="Whose text drafts.")] = Old.shipped,
    rows: Annotated[int, typer.Option(help="Rows decoded by each method.")] = 32,
    batch: Annotated[str, typer.Option(help="Batch sizes.")] = "1,8",
    nodes: Annotated[str, typer.Option(
        help="decode.nodes for each batch size: auto, or draft nodes of each row.")] = "auto,auto",
    threads: Annotated[int, typer.Option(help="torch threads, as one Spark worker has.")] = 1,
    repeats: Annotated[int, typer.Option(help="Times each method runs.")] = 3,
    users: Annotated[int, typer.Option(help="Users of the sample world.")] = 400,
    items: Annotated[int, typer.Option(help="Items of the sample world.")] = 300,
    work: Annotated[Path | None, typer.Option(help="Folder to work in; else a temporary one.")] = None,
) -> None:
    """Measure tokens a second and accepted tokens a step on the sample world."""
    with TemporaryDirectory() as temporary:
        job = prepared(work or Path(temporary), old, users, items)
        sample, task = sampled(job, rows), replace(loading.Task.of(job), threads=threads)
        job.spark.stop()  # its JVM would share the processors with what is measured
        asked = [word if word == "auto" else int(word) for word in nodes.split(",")]
        budgets = dict(zip(map(int, batch.split(",")), asked, strict=False))
        found = _measure(task, sample, budgets, repeats)
        _report(found, old, len(sample), threads, repeats)


def _measure(task: loading.Task, sample: list[dict], budgets: dict[int, int | str], repeats: int) -> dict:
    """Measured by (method, batch size); ``budgets`` has decode.nodes of each batch size."""
    found = {(method, batch): Measured() for batch in budgets for method in METHODS}
    scorings = {key: ReuseEstimator() for key in found}
    once("dare relaxed", task, sample[:2], batch_size=2, nodes=8)  # compiled and warm
    once("generate", task, sample[:2], batch_size=2, nodes=8)
    for _ in range(repeats):
        for (method, batch), seen in found.items():
            measured = once(method, task, sample, scorings[method, batch], batch_size=batch,
                            nodes=budgets[batch])
            found[method, batch] = measured.after(seen)
    return found


def _report(found: dict, old: Old, rows: int, threads: int, repeats: int) -> None:
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
    table = Table(*lines[0])
    for line in lines:
        table.add_row(*(str(value) for value in line.values()))
    console = Console(width=130)
    console.print(table)
    console.print(f"{rows} rows, old text: {old}, {threads} torch thread(s), medians of {repeats}; "
                  "plain: the faster of generate and autoregressive; accepted_per_step: the model's own "
                  "token not counted")
    print(json.dumps({"old": old, "rows": lines}))

