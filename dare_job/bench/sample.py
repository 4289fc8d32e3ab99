"""Every decoding mode beside plain decoding on the sample world, in one run: the README's speed figures.

    python -m dare_job.bench.sample [--old shipped|model] [--rows 32] [--batch 1,8] [--nodes 16,8]

The old text is what comes with the sample, as in ``make demo``; or, with ``--old model``, the model's own of
a first night without pools, so that only users with a new interaction are written, all of them changed.
Tonight's plan, groups, routes and pools are made by the job's stages. A seeded sample of tonight's rows is
decoded by each method in turn, ``repeats`` times; medians. The last line is JSON.
"""

import json
import statistics
import time
from dataclasses import dataclass, replace
from datetime import date, timedelta
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dare_job import baseline, pipeline
from dare_job.config import load
from dare_job.data.world import write_world
from dare_job.job import Job
from dare_job.spark import loading
from dare_job.stages import generate
from dare_job.workspace import Workspace

NIGHT = date(2026, 1, 2)
METHODS = ("generate", "autoregressive", "resd", "dare strict", "dare relaxed")


class Old(StrEnum):
    shipped = "shipped"
    model = "model"


@dataclass
class Measured:
    """Sums over the rows of one method and batch size; ``seconds`` holds one entry a repeat."""

    tokens: int = 0
    steps: int = 0
    accepted: int = 0
    relaxed: int = 0
    retrieval_ms: float = 0.0
    seconds: list[float] | None = None

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / statistics.median(self.seconds)


def main(
    old: Annotated[Old, typer.Option(help="Whose text drafts.")] = Old.shipped,
    rows: Annotated[int, typer.Option(help="Rows decoded by each method.")] = 32,
    batch: Annotated[str, typer.Option(help="Batch sizes.")] = "1,8",
    nodes: Annotated[str, typer.Option(help="Draft nodes a row for each batch size.")] = "16,8",
    threads: Annotated[int, typer.Option(help="torch threads, as one Spark worker has.")] = 1,
    repeats: Annotated[int, typer.Option(help="Times each method runs.")] = 3,
    users: Annotated[int, typer.Option(help="Users of the sample world.")] = 400,
    items: Annotated[int, typer.Option(help="Items of the sample world.")] = 300,
    work: Annotated[Path | None, typer.Option(help="Folder to work in; else a temporary one.")] = None,
) -> None:
    """Measure tokens a second and accepted tokens a step on the sample world."""
    with TemporaryDirectory() as temporary:
        task, sample = _prepare(work or Path(temporary), old, rows, users, items, threads)
        budgets = dict(zip(map(int, batch.split(",")), map(int, nodes.split(",")), strict=False))
        found = _measure(task, sample, budgets, repeats)
        _report(found, old, len(sample), threads, repeats)


def _prepare(folder: Path, old: Old, rows: int, users: int, items: int, threads: int):
    """The job up to tonight's pools; the Task of a worker and a seeded sample of its rows."""
    from pyspark.sql import functions as F

    write_world(folder / "sample", users=users, items=items, date=NIGHT)
    conf = Path(__file__).parents[2] / "conf" / "demo.yaml"
    config = load(conf, [f"input.path={folder / 'sample'}", f"out={folder / 'out'}", "baseline.rows=0"])
    if old is Old.model:
        pipeline.run(Job(config, Workspace(folder / "out", NIGHT - timedelta(days=1)), "bench-0"))
    job = Job(config, Workspace(folder / "out", NIGHT), "bench-1")
    for stage in ("plan", "embed", "group", "route", "pools"):
        pipeline.run_stage(job, stage)
    asked = generate.tonight(job, None).where(F.col("prompt").isNotNull())
    order = F.xxhash64(F.lit(config.baseline.seed), "entity", "entity_id")
    sample = [row.asDict() for row in asked.orderBy(order, "entity_id").limit(rows).collect()]
    task = replace(loading.Task.of(job), threads=threads)
    job.spark.stop()  # its JVM would share the processors with what is measured
    return task, sample


def _measure(task: loading.Task, sample: list[dict], budgets: dict[int, int], repeats: int) -> dict:
    """Measured by (method, batch size); ``budgets`` has the draft nodes a row of each batch size."""
    found = {(method, batch): Measured(seconds=[]) for batch in budgets for method in METHODS}
    _once("dare relaxed", task, sample[:2], 2, 8)  # compiled and warm
    _once("generate", task, sample[:2], 2, 8)
    for _ in range(repeats):
        for method, batch in found:
            seen, measured = found[method, batch], _once(method, task, sample, batch, budgets[batch])
            found[method, batch] = replace(measured, seconds=seen.seconds + measured.seconds)
    return found


def _once(method: str, task: loading.Task, sample: list[dict], batch: int, nodes: int) -> Measured:
    task = _with(method, task, batch, nodes)
    requests = sorted((loading.request(row, task) for row in sample), key=lambda r: len(r.prompt_ids))
    began = time.perf_counter()
    if method == "generate":
        tokens = baseline.by_generate(requests, task)
        return Measured(tokens, seconds=[time.perf_counter() - began])
    results = list(loading.engine(task).run(requests))
    seconds = time.perf_counter() - began

    def total(name: str):
        return sum(getattr(result, name) for result in results)

    tokens = sum(len(result.token_ids) for result in results)
    return Measured(tokens, total("target_steps"), total("accepted_tokens"), total("relaxed_tokens"),
                    total("retrieval_ms"), [seconds])


def _with(method: str, task: loading.Task, batch: int, nodes: int) -> loading.Task:
    """The task with the settings of a method; every row keeps the same pools folder."""
    mode, _, rule = method.partition(" ")
    mode = "autoregressive" if mode == "generate" else mode
    config = task.config
    return replace(task, config=config.model_copy(update={
        "decode": config.decode.model_copy(update={"mode": mode, "batch_size": batch, "nodes": nodes}),
        "verify": config.verify.model_copy(update={"rule": rule or "strict"})}))


def _report(found: dict, old: Old, rows: int, threads: int, repeats: int) -> None:
    lines = []
    for (method, batch), seen in found.items():
        plain = max(found[name, batch].tokens_per_s for name in ("generate", "autoregressive"))
        steps = seen.steps or None
        lines.append({
            "method": method, "batch": batch, "tokens_per_s": round(seen.tokens_per_s, 1),
            "accepted_per_step": round(seen.accepted / steps, 3) if steps else None,
            "target_steps": steps, "relaxed_share": round(seen.relaxed / seen.tokens, 4),
            "retrieval_us_per_step": round(1e3 * seen.retrieval_ms / steps, 1) if steps else None,
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


if __name__ == "__main__":
    typer.run(main)
