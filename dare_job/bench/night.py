"""What benches of the sample share: a night ready to be written, and a timed pass over some of its rows."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import date, timedelta
from enum import StrEnum
from pathlib import Path

from dare_job import pipeline
from dare_job.bench.measured import Measured, run, timed
from dare_job.config.settings import load
from dare_job.data.sample_world.write import write_world
from dare_job.decode.engine.prefill import ReuseEstimator
from dare_job.generate import baseline, loading
from dare_job.job import Job
from dare_job.stages import generate
from dare_job.workspace import Workspace

DATE = date(2026, 1, 2)
STAGES = ("plan", "embed", "group", "route", "pools")


class Old(StrEnum):
    shipped = "shipped"
    model = "model"


def prepared(folder: Path, old: Old, users: int, items: int, settings: Iterable[str] = ()) -> Job:
    """The job of the sample world up to tonight's pools.

    old       whose text the night before left: what comes with the sample, or the model's own
    settings  of tonight alone, as on a command line
    """
    write_world(folder / "sample", users=users, items=items, date=DATE)
    conf = Path(__file__).parents[2] / "conf" / "demo.yaml"
    given = [f"input.path={folder / 'sample'}", f"out={folder / 'out'}", "baseline.rows=0"]
    if old is Old.model:
        before = Workspace(folder / "out", DATE - timedelta(days=1))
        pipeline.run(Job(load(conf, given), before, "bench-0"))
    job = Job(load(conf, [*given, *settings]), Workspace(folder / "out", DATE), "bench-1")
    for stage in STAGES:
        pipeline.run_stage(job, stage)
    return job


def sampled(job: Job, rows: int, without: Iterable[str] = ()) -> list[dict]:
    """A seeded sample of tonight's rows that have a prompt, but for those with these ids."""
    from pyspark.sql import functions as F

    asked = generate.rows_to_write(job, None).where(F.col("prompt").isNotNull())
    asked = asked.where(~F.col("entity_id").isin(list(without)))
    order = F.xxhash64(F.lit(job.config.seed), "entity", "entity_id")
    return [row.asDict() for row in asked.orderBy(order, "entity_id").limit(rows).collect()]


def once(method: str, task: loading.Task, sample: list[dict], scoring: ReuseEstimator | None = None,
         **decode) -> Measured:
    """Write the rows once.

    method   "generate", or a mode, and a rule where that is not strict: "dare relaxed"
    scoring  what was seen of old text before; None: nothing
    decode   settings of the section decode
    """
    mode, _, rule = method.partition(" ")
    config = task.config
    decode = decode | {"mode": "autoregressive" if mode == "generate" else mode}
    task = replace(task, config=config.model_copy(update={
        "decode": config.decode.model_copy(update=decode),
        "verify": config.verify.model_copy(update={"rule": rule or "strict"})}))
    requests = sorted((loading.make_request(row, task) for row in sample), key=lambda r: len(r.prompt_ids))
    if mode == "generate":
        target, asked = loading.load_task_model(task).target, task.config.decode
        texts, took = timed(lambda: baseline.generate_greedy(
            target, requests, asked.batch_size, asked.max_new_tokens,
            min_new_tokens=asked.min_new_tokens or None))
        return Measured(sum(map(len, texts)), 0, 0, texts=[dict(enumerate(texts))], **took)
    engine = loading.make_engine(task)
    engine.reuse_estimator = scoring or ReuseEstimator()
    return run(engine, requests)
