"""What loads the model runs in no more Python workers than there are task slots, whatever ran before."""

import os

import pyarrow as pa
import pytest

from dare_job.spark.workers import map_in_dedicated_workers

pytestmark = pytest.mark.spark


def named(rows) -> set[int]:
    return {row.pid for row in rows.collect()}


@pytest.mark.slow
def test_there_is_one_a_slot_and_it_runs_nothing_else(spark):
    """A task of three Python steps leaves three workers a slot, which Spark lends in turn."""
    def pids(batches):
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"pid": pa.array([os.getpid()] * batch.num_rows, pa.int32())})

    slots = spark.sparkContext.defaultParallelism
    rows = spark.range(0, 16, 1, 4 * slots).selectExpr("cast(id as int) as pid")
    others = named(rows.mapInArrow(pids, "pid int").mapInArrow(pids, "pid int").mapInArrow(pids, "pid int"))
    first = named(map_in_dedicated_workers(rows, pids, "pid int"))
    again = named(map_in_dedicated_workers(rows, pids, "pid int"))
    assert 1 <= len(first) <= slots and again <= first
    assert not others & first
    assert named(rows.mapInArrow(pids, "pid int")).isdisjoint(first)
