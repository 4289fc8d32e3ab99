"""What scoring old text behind the prompt saves on the second of two dates of the sample.

    python -m dare_job.bench.scoring [--rows 32] [--batch 1,8] [--nodes 16,8] [--repeats 3]

Night one is written by the model. Two kinds of rows are then written again, each by a seeded sample:

    changed  users whose history has grown since, so that each title stands a place further
    same     users and items whose prompt is what it was, stale by a setting that changes no text

Strict text, once without scoring, once as much of it as is worth its cost, once all of it. Fails where a text
is not what it is without scoring. The last line is JSON.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dare_job.bench.night import STAGES, Measured, Old, once, prepared, sampled
from dare_job.decode.engine.prefill import ReuseEstimator
from dare_job.generate import loading
from dare_job.job import Job
from dare_job.pipeline import run_stage
from dare_job.workspace import Workspace

SCORES = ("never", "auto", "always")


def main(
    rows: Annotated[int, typer.Option(help="Rows of each kind.")] = 32,
    batch: Annotated[str, typer.Option(help="Batch sizes.")] = "1,8",
    nodes: Annotated[str, typer.Option(help="Draft nodes a row for each batch size.")] = "16,8",
    threads: Annotated[int, typer.Option(help="torch threads, as one Spark worker has.")] = 1,
    repeats: Annotated[int, typer.Option(help="Times each case runs.")] = 3,
    users: Annotated[int, typer.Option(help="Users of the sample world.")] = 400,
    items: Annotated[int, typer.Option(help="Items of the sample world.")] = 300,
    work: Annotated[Path | None, typer.Option(help="Folder to work in; else a temporary one.")] = None,
) -> None:
    """Measure steps and tokens a second with and without scoring on two consecutive dates."""
    with TemporaryDirectory() as temporary:
        kinds = _kinds(work or Path(temporary), rows, users, items, threads)
        budgets = dict(zip(map(int, batch.split(",")), map(int, nodes.split(",")), strict=True))
        found = {(kind, size, score): Measured()
                 for kind in kinds for size in budgets for score in SCORES}
        scorings = {key: ReuseEstimator() for key in found}
        for kind in kinds:
            task, sample = kinds[kind]
            once("dare", task, sample[:2], batch_size=2, nodes=8)  # compiled and warm
        for _ in range(repeats):
            for (kind, size, score), seen in found.items():
                measured = once("dare", *kinds[kind], scorings[kind, size, score], batch_size=size,
                                nodes=budgets[size], score=score)
                found[kind, size, score] = measured.after(seen)
                if measured.texts != found[kind, size, "never"].texts:
                    raise SystemExit(f"{kind} rows, batch {size}: scoring ({score}) changed a text")
        _report(found, {kind: len(sample) for kind, (_, sample) in kinds.items()}, threads, repeats)


def _kinds(folder: Path, rows: int, users: int, items: int, threads: int) -> dict:
    """(Task, sample) of each kind of rows."""
    job = prepared(folder, Old.model, users, items)
    changed = sampled(job, users + items)
    again = folder / "again"  # with the same night before
    shutil.copytree(folder / "out" / "knowledge", again / "knowledge")
    update = {"out": str(again), "decode": job.config.decode.model_copy(update={"min_new_tokens": 1})}
    other = Job(job.config.model_copy(update=update), Workspace(again, job.space.day), "bench-2")
    for stage in STAGES:
        run_stage(other, stage)
    same = sampled(other, rows, [row["entity_id"] for row in changed])
    tasks = [replace(loading.Task.of(each), threads=threads) for each in (job, other)]
    job.spark.stop()  # its JVM would share the processors with what is measured
    return {"changed": (tasks[0], changed[:rows]), "same": (tasks[1], same)}


def _report(found: dict, rows: dict[str, int], threads: int, repeats: int) -> None:
    lines = []
    for (kind, size, score), seen in found.items():
        without = found[kind, size, "never"]
        lines.append({
            "rows": kind, "batch": size, "score": score, "target_steps": seen.steps,
            "steps_saved": round(1 - seen.steps / without.steps, 3),
            "scored_share": round(seen.scored / seen.tokens, 3),
            "accepted_per_step": round(seen.accepted / seen.steps, 2) if seen.steps else None,
            "tokens_per_s": round(seen.tokens_per_s, 1),
            "ratio": round(seen.tokens_per_s / without.tokens_per_s, 3)})
    table = Table(*lines[0])
    for line in lines:
        table.add_row(*(str(value) for value in line.values()))
    console = Console(width=130)
    console.print(table)
    console.print(f"rows: {rows}, {threads} torch thread(s), medians of {repeats}; "
                  "ratio: of tokens/s, to none scored")
    print(json.dumps({"rows": rows, "cases": lines}))


if __name__ == "__main__":
    typer.run(main)
