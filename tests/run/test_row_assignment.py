"""Where Spark places tonight's rows: as the arithmetic has it, whatever the partitions, by one shuffle."""

import random

import pytest
from pyspark.sql import functions as F
from run_helpers import place

from dare_job.generate import row_assignment, sharding
from dare_job.generate.row_assignment import PoolStatistics
from dare_job.refresh.value import TOKENS_PER_STEP
from dare_job.workspace import MANIFEST, write_json

COLUMNS = ("wave int, entity string, entity_id string, prompt string, error string, pool string, "
           "own_ids array<int>")


def tonight(seed: int = 0) -> list[tuple]:
    """Rows of two waves in uneven pools; some without old text, some without a prompt."""
    rng, rows = random.Random(seed), []
    for entity, count in (("user", 600), ("item", 120)):
        for n in range(count):
            old = [1] * rng.choice([0, 5, 20, 90, 400]) or None
            prompt = None if n % 50 == 7 else "x" * rng.randint(10, 900)
            error = "empty history" if prompt is None else None
            pool = f"pool-{min(int(rng.paretovariate(0.8)), 30):02d}"
            rows.append((1 if n < 40 else 2, entity, f"{entity}{n:04d}", prompt, error, pool, old))
    return rows


def cost(row: tuple, mean: int, token: int, most: int) -> int:
    """The formula of ``costs``, in Python."""
    _, _, _, prompt, _, _, old = row
    return 1 if prompt is None else 1 + len(prompt) // 4 + token * (min(len(old), most) if old else mean)


@pytest.fixture
def job(make_job):
    return make_job({"decode": {"max_new_tokens": 256, "batch_size": 4},
                     "spark": {"rows_per_commit": 7, "shards": 12}})


@pytest.mark.spark
def test_rows_are_placed_by_their_cost_whatever_the_partitions(job):
    rows, found = tonight(), []
    for partitions in (1, 5):
        random.Random(partitions).shuffle(rows)
        frame = job.spark.createDataFrame(rows, COLUMNS).repartition(partitions)
        record, placed = row_assignment.assign_rows(job, frame)
        found.append({(row.entity, row.entity_id): (row.cost, row.shard, row.chunk, row.position)
                      for row in placed.collect()})
    assert found[0] == found[1] and len(found[0]) == len(rows) == 720
    assert [count for count, _ in record] == [80, 640] and [count for _, count in record] == [12, 12]

    known = {}
    for row in rows:
        known.setdefault((row[0], row[1], row[5]), []).append(row)
    sums = {key: PoolStatistics(len(members), sum(row[3] is not None for row in members),
                       sum(len(row[3]) // 4 for row in members if row[3]),
                       sum(bool(row[3] and row[6]) for row in members),
                       sum(min(len(row[6]), 256) for row in members if row[3] and row[6]))
            for key, members in known.items()}
    means = row_assignment.mean_tokens(sums, 256)
    token = row_assignment.token_cost(TOKENS_PER_STEP)
    waves, table = sharding.assign_waves(row_assignment.pool_loads(sums, means, token), lambda rows: 12)
    assert waves == record
    for wave, entity, pool, *fields in table:
        where, before = sharding.PoolAssignment(*fields[:4], tuple(fields[4]), *fields[5:]), 0
        for rank, row in enumerate(sorted(known[wave, entity, pool], key=lambda row: row[2])):
            its = cost(row, means[wave, entity, pool], token, 256)
            shard, position = place(where, rank, before)
            assert found[0][entity, row[2]] == (its, shard, position // 7, position)
            before += its


@pytest.mark.spark
def test_shards_of_a_wave_cost_alike_and_the_costliest_come_first(job):
    _, placed = row_assignment.assign_rows(job, job.spark.createDataFrame(tonight(), COLUMNS))
    sums = placed.where("wave = 2").groupBy("shard").agg(F.sum("cost").alias("cost"))
    sums = sums.orderBy("shard").collect()
    by_shard = [row.cost for row in sums]
    assert [row.shard for row in sums] == list(range(12, 24))
    assert max(by_shard) < 1.3 * sum(by_shard) / 12
    assert sum(by_shard[:6]) > sum(by_shard[6:])


@pytest.mark.spark
def test_placing_takes_one_shuffle_and_one_sort(job):
    _, placed = row_assignment.assign_rows(job, job.spark.createDataFrame(tonight(), COLUMNS).cache())
    plan = placed._jdf.queryExecution().executedPlan().toString()
    assert plan.count("Exchange hashpartitioning") == 1 and plan.count("Sort [") == 1, plan
    assert "SortMergeJoin" not in plan


def test_rows_without_old_text_are_taken_to_be_like_their_pool_s_else_like_their_kind():
    known = {(1, "user", "a"): PoolStatistics(4, 4, 0, 2, 21),
             (1, "user", "b"): PoolStatistics(4, 4, 0, 0, 0),
             (1, "user", "c"): PoolStatistics(4, 2, 0, 1, 90),
             (1, "item", "a"): PoolStatistics(4, 4, 0, 0, 0)}
    means = row_assignment.mean_tokens(known, 192)
    assert means == {(1, "user", "a"): 10, (1, "user", "b"): 37, (1, "user", "c"): 90, (1, "item", "a"): 192}
    loads = row_assignment.pool_loads(known, means, 3)
    assert loads[1, "user", "a"].cost == 4 + 3 * (21 + 2 * 10) and loads[1, "user", "c"].cost == 4 + 3 * 180


@pytest.mark.spark
def test_a_token_costs_what_a_step_of_yesterday_wrote(make_job):
    job = make_job()
    assert row_assignment.text_token_cost(job) == 2  # nothing is known: four tokens a step
    for entity in ("user", "item"):
        folder = job.space.knowledge(entity, "2026-01-01")
        folder.mkdir(parents=True)
        write_json(folder / MANIFEST, {"mode": "dare", "totals": {"tokens": 100, "target_steps": 80}})
    assert row_assignment.text_token_cost(job) == 6
    assert (
        row_assignment.text_token_cost(make_job({"decode": {"mode": "resd"}})) == 2
    )  # another mode's steps tell nothing
    assert row_assignment.text_token_cost(make_job({"decode": {"mode": "autoregressive"}})) == 8


class Session:
    """A Spark session's settings."""

    def __init__(self, cores: int, **settings):
        self.sparkContext, self.conf = self, self
        self.defaultParallelism = cores
        self._settings = {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}

    def get(self, name, default):
        return self._settings.get(name, default)


def test_task_slots_are_cores_or_gpus():
    gpus = {"executor_resource_gpu_amount": "2", "task_resource_gpu_amount": "1", "executor_cores": "8"}
    assert row_assignment.task_slots(Session(32)) == 32
    assert row_assignment.task_slots(Session(32, task_cpus="4")) == 8
    assert row_assignment.task_slots(Session(32, **gpus)) == 8
    assert row_assignment.task_slots(Session(32, task_cpus="8", **gpus)) == 4
