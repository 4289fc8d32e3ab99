"""A job of the synthetic data set that is ready to generate, and methods that generate some of its rows."""

from dataclasses import replace
from datetime import date, timedelta
from enum import StrEnum
from pathlib import Path

from dare_job import pipeline
from dare_job.config.settings import load
from dare_job.data.sample_world.write import write_world
from dare_job.decode.engine.prefill import ReuseEstimator
from dare_job.evaluate.measured import Measured, generate_once, timed
from dare_job.generate import baseline, loading
from dare_job.job import Job
from dare_job.stages import generate
from dare_job.workspace import Workspace

DATE = date(2026, 1, 2)
STAGES = ("plan", "embed", "group", "route", "pools")


class Old(StrEnum):
    """Who wrote the previous texts: the synthetic data set's grammar, or the model on an earlier date."""

    shipped = "shipped"
    model = "model"


def prepare_job(folder: Path, old: Old, users: int, items: int) -> Job:
    """The job of the synthetic data set, with all stages before generate done."""
    write_world(folder / "sample", users=users, items=items, date=DATE)
    settings = load(Path(__file__).parents[2] / "conf" / "demo.yaml", [
        f"input.path={folder / 'sample'}", f"out={folder / 'out'}", "baseline.rows=0"])
    if old is Old.model:
        pipeline.run(Job(settings, Workspace(folder / "out", DATE - timedelta(days=1)), "bench-0"))
    job = Job(settings, Workspace(folder / "out", DATE), "bench-1")
    for stage in STAGES:
        pipeline.run_stage(job, stage)
    return job


def sample_rows(job: Job, count: int) -> list[dict]:
    """A seeded sample of the job's stale rows that have a prompt."""
    from pyspark.sql import functions as F

    rows = generate.rows_to_write(job, None).where(F.col("prompt").isNotNull())
    order = F.xxhash64(F.lit(job.config.seed), "entity", "entity_id")
    return [row.asDict() for row in rows.orderBy(order, "entity_id").limit(count).collect()]


def run_method(method: str, task: loading.Task, rows: list[dict], reuse: ReuseEstimator | None = None,
               **decode) -> Measured:
    """Generate the rows once.

    Parameters
    ----------
    method
        "generate", or a mode, and a rule if it is not strict: "dare relaxed".
    reuse
        What earlier calls learned about previous texts; None: nothing.
    decode
        Settings of the section decode.
    """
    mode, _, rule = method.partition(" ")
    config = task.config
    decode = decode | {"mode": "autoregressive" if mode == "generate" else mode}
    task = replace(task, config=config.model_copy(update={
        "decode": config.decode.model_copy(update=decode),
        "verify": config.verify.model_copy(update={"rule": rule or "strict"})}))
    requests = sorted((loading.make_request(row, task) for row in rows), key=lambda r: len(r.prompt_ids))
    if mode == "generate":
        target, settings = loading.load_task_model(task).target, task.config.decode
        texts, seconds, processor = timed(lambda: baseline.generate_greedy(
            target, requests, settings.batch_size, settings.max_new_tokens,
            min_new_tokens=settings.min_new_tokens or None))
        return Measured(sum(map(len, texts)), 0, 0, texts=[dict(enumerate(texts))], seconds=[seconds],
                        processor=[processor])
    engine = loading.make_engine(task)
    engine.reuse_estimator = reuse or ReuseEstimator()
    return generate_once(engine, requests)
