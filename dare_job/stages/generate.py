"""Stage generate: generates texts with the model, in Spark tasks that commit chunk by chunk."""

import json
import logging
from contextlib import contextmanager
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dare_job import errors
from dare_job.generate import baseline, hangs, previous_text, shard_plan, wave_index, worker_stats
from dare_job.generate.task import CHUNK_STATS, Task
from dare_job.job import Job
from dare_job.observe import progress
from dare_job.schemas import ENTITIES, GLOBAL, MODES_WITH_GROUP_POOLS, MODES_WITHOUT_POOLS
from dare_job.spark import workers
from dare_job.storage import lock
from dare_job.storage.local_copy import local_copy
from dare_job.storage.paths import AnyPath, atomic_writer, path
from dare_job.tables import chunk_files, published, stage_inputs
from dare_job.workspace import DONE, digest, done_record, write_json
from pools.errors import PoolError
from pools.store import Store

_LOG = logging.getLogger("dare_job")
TASKS = "_tasks.jsonl"
_ROUTE_OF_MODE = dict.fromkeys(("resd", *MODES_WITHOUT_POOLS), GLOBAL)  # the modes that use no group's pool


def run(job: Job) -> dict:
    """Generate all rows of the run, wave by wave. A resumed run generates only the missing chunks.

    Returns rows, those ``written_now``, the sums of ``chunks.Totals`` with their rates, those of each wave,
    ``widths`` of beams, and the baseline's.
    """
    stage_inputs.require_plan(job)
    work = load_shard_plan(job)
    tally = chunk_files.Tally(work.entities)
    before, files = tally.update().rows, worker_stats.committed_files(work)
    if before < work.rows:
        _write(job, work)
    totals = tally.update()
    if totals.rows != work.rows:
        raise errors.InfrastructureError(
            f"{work.folder} holds {totals.rows} of {work.rows} rows after all tasks ended: run it again")
    record = {"rows": totals.rows, "written_now": totals.rows - before, **totals.record(),
              "waves": wave_index.wave_record(work), "workers": _utilization(job, work, files),
              "beams": _beams(job, work), "baseline": baseline.measure_baseline(job, work)}
    lock.require_held()
    write_json(work.folder / DONE, {"fingerprint": work.fingerprint, **record})
    return record


def _beams(job: Job, work: shard_plan.ShardPlan) -> dict | None:
    """What ``widths`` says of all rows of a night of beams."""
    return (
        worker_stats.beam_statistics(sorted(worker_stats.committed_files(work)))
        if job.config.decode.mode == "beam"
        else None
    )


def load_shard_plan(job: Job) -> shard_plan.ShardPlan:
    """The shard plan of this run: the existing one, or a new one."""
    return shard_plan.load_or_create(job, _fingerprint(job), partial(rows_to_write, job))


def _utilization(job: Job, work: shard_plan.ShardPlan, before: set[AnyPath]) -> dict | None:
    """What ``busy`` and ``hangs`` say of this run's workers, or of those of the last one that wrote."""
    found = worker_stats.utilization_record(work, before)
    if found is None:
        try:
            return done_record(work.folder).get("workers")
        except (OSError, ValueError):
            return None
    asked, hung = job.config.decode.batch_size, hangs.hang_count(work.folder, work.token)
    if found["batch_size"] < asked:
        _LOG.warning("out of memory with %d rows in a batch: workers reduced their batch to %d rows; set "
                     "a lower decode.batch_size to avoid the failed attempts", asked, found["batch_size"])
    if hung:
        _LOG.warning("workers hung, or their device failed, %d times, and were restarted: which rows "
                     "they were decoding, and what happened, is in %s", hung, work.folder / hangs.FOLDER)
    return found | {"hangs": hung}


def rows_to_write(job: Job, limit: int | None) -> DataFrame:
    """``entity`` and ``shard_plan.ROW_COLUMNS`` of the rows to write: stale rows with their pool.

    ``limit`` applies to rows with a prompt. Rows without one cost nothing and are always included.
    """
    frames = []
    for entity in ENTITIES:
        stale = stage_inputs.stage_table(job, "plan", entity).where("stale")
        asked = stale.where(F.col("prompt").isNotNull())
        if limit is not None:
            asked = asked.orderBy("entity_id").limit(limit)
        rows = asked.unionByName(stale.where(F.col("prompt").isNull()))
        routes = stage_inputs.stage_table(job, "route", entity).select("entity_id", "pool", "pool_kind")
        rows = _with_previous_tokens(job, entity, rows.join(routes, "entity_id", "left"))
        frames.append(rows.withColumn("entity", F.lit(entity)))
    rows = frames[0].unionByName(frames[1])
    only = _ROUTE_OF_MODE.get(job.config.decode.mode)
    for column in ("pool", "pool_kind"):
        rows = rows.withColumn(column, F.lit(only) if only else F.coalesce(column, F.lit(GLOBAL)))
    return rows.select("entity", *shard_plan.ROW_COLUMNS)


def _with_previous_tokens(job: Job, entity: str, rows: DataFrame) -> DataFrame:
    """Add ``own_ids``: token ids of each row's previous text, null if it has none."""
    old = published.previous_folder(job, entity)
    if old is None or not job.config.pools.own or job.config.decode.mode not in MODES_WITH_GROUP_POOLS:
        return rows.withColumn("own_ids", F.lit(None).cast("array<int>"))
    tokens = previous_text.previous_token_ids(job, old)
    own = tokens.groupBy("entity_id").agg(F.max("token_ids").alias("own_ids"))  # an id may occur twice
    return rows.join(own, "entity_id", "left")


def _fingerprint(job: Job) -> str:
    """Changes with the rows and with what can change their text, not with limit, batch sizes or budgets."""
    return digest(
        [
            "generate",
            shard_plan.ROW_COLUMNS,
            shard_plan.ASSIGNMENT_COLUMNS,
            stage_inputs.require_stage(job, "plan")["fingerprint"],
            stage_inputs.require_stage(job, "route")["fingerprint"],
            job.config.decode.mode,
        ]
    )


def _write(job: Job, work: shard_plan.ShardPlan) -> None:
    task = Task.of(job, stage_inputs.require_stage(job, "pools")["fingerprint"], work.token)
    workers.warn_gpu_sharing(job.spark)
    (work.folder / DONE).unlink(missing_ok=True)
    (work.folder / shard_plan.FAILED).unlink(missing_ok=True)
    with _marking_damage(job):
        _check_pools(task)
        for wave in range(1, 1 + len(work.waves)):
            if wave_index.unfinished_rows(work, wave):
                _write_wave(job, work, wave, task.of_wave(job, wave_index.build_indexes(job, work, wave)))


def write_shard(batches, task: Task):
    """``worker.write_shard``, imported where it runs: torch and transformers are none of the driver's."""
    from dare_job.generate import worker

    yield from worker.write_shard(batches, task)


def _write_wave(job: Job, work: shard_plan.ShardPlan, wave: int, task: Task) -> None:
    """Write what is left of a wave, all of whose texts are there before the next one starts."""
    def write(batches):
        yield from write_shard(batches, task)

    lock.require_held()
    if len(work.waves) > 1:
        _LOG.info("%s: %d rows", wave_index.wave_name(work, wave), work.waves[wave - 1][0])
    watched = progress.watching(work.entities, work.rows, wave_index.wave_name(work, wave))
    with small_batches(job), watched:
        stats = _run_tasks(job, work, wave, write)
    _record_tasks(work.folder / TASKS, stats)
    shard_plan.raise_failure(work.folder)
    wave_index.require_complete(work, wave)


def _run_tasks(job: Job, work: shard_plan.ShardPlan, wave: int, write) -> list:
    """STATS of the tasks that write what is left of a wave."""
    return hangs.retry_after_hangs(work.folder, work.token, lambda: workers.map_in_dedicated_workers(
        shard_plan.remaining_rows(job, work, wave), write, CHUNK_STATS).collect())


def _record_tasks(file: AnyPath, stats: list) -> None:
    """Add a line of JSON for each shard: who wrote it, on which GPU, from when to when (seconds since 1970).

    ``loads`` is how often that worker's process had loaded a model by then.
    """
    shards: dict[int, dict] = {}
    for row in sorted(stats, key=lambda row: row.ended):
        before = shards.get(row.shard, {"rows": 0})
        shards[row.shard] = {**row.asDict(), "rows": before["rows"] + row.rows}
    lines = file.read_text(encoding="utf-8") if file.exists() else ""
    for _, record in sorted(shards.items()):
        lines += json.dumps({name: value for name, value in record.items() if name != "chunk"}) + "\n"
    with atomic_writer(file, f".{file.name}.partial") as whole:
        whole.write(lines.encode())


@contextmanager
def _marking_damage(job: Job):
    """A damaged pool makes the stage pools unfinished, so that the next run builds them again."""
    try:
        yield
    except errors.PoolError as error:
        (job.space.stage("pools") / DONE).unlink(missing_ok=True)
        raise errors.PoolError(f"{error} (the pools of {job.space.dt} now count as unfinished: the next "
                               "`dare-job run` builds them again)") from None


def _check_pools(task: Task) -> None:
    """Stop before a model is loaded where a pool is damaged; sizes only, workers compare checksums."""
    for entity in ENTITIES:
        folder = local_copy(path(task.pools) / f"entity={entity}", task.pools_version)
        store = Store(folder, task.tokenizer, verify=False, capacity=1)
        for name in store.names():
            try:
                store.get(name)
            except PoolError as error:
                raise errors.PoolError(str(error)) from None


@contextmanager
def small_batches(job: Job):
    """Arrow batches of one engine's batch: a worker holds few more rows than its engine took."""
    key = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = job.spark.conf.get(key)
    job.spark.conf.set(key, str(job.config.decode.batch_size))
    try:
        yield
    finally:
        job.spark.conf.set(key, before)
