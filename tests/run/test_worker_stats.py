"""How evenly workers were busy, read from chunk files, and what the last screen says of it."""

from datetime import date

import pytest
from run_helpers import text

from dare_job.generate import worker_stats
from dare_job.generate.shard_plan import ShardPlan
from dare_job.publish.report import screen
from dare_job.tables import chunk_files
from dare_job.workspace import Workspace


@pytest.fixture
def work(tmp_path):
    """A cut of two waves: shards 0 and 1, then 2 to 4."""
    for entity in ("user", "item"):
        (tmp_path / f"entity={entity}").mkdir()
    return ShardPlan(tmp_path, "f", 5, 9, 0, token="cut-1", waves=[[2, 2], [7, 3]])


def write(work: ShardPlan, shard: int, chunk: int, worker: str | None, busy_s: float, size: int = 8,
          **maker) -> None:
    entity = work.entities[shard % 2]
    records = {"maker": {"worker": worker, "batch_size": size, **maker}} if worker else {}
    chunk_files.write(entity / chunk_files.name(shard, chunk), [text("u0", "done")], busy_s, **records)


def utilization(work: ShardPlan, before: set) -> dict | None:
    return worker_stats.utilization_record(work, before, worker_stats.read_footers(work))


def test_each_wave_waits_for_its_own_busiest_worker(work):
    write(work, 0, 0, "a:1", 500.0)  # of a run before
    before = worker_stats.committed_files(work)
    assert utilization(work, before) is None
    write(work, 0, 1, "a:1", 10.0)
    write(work, 1, 0, "b:1", 30.0)
    write(work, 2, 0, "a:1", 30.0)
    write(work, 2, 1, "a:1", 30.0, size=2)
    write(work, 3, 0, "b:1", 20.0)
    found = utilization(work, before)
    # imbalance: (30 + 60) / (20 + 40)
    assert found == {"workers": 2, "imbalance": 1.5, "waited_s": 30.0, "batch_size": 2,
                     "busy_s": {"a:1": 70.0, "b:1": 50.0}, "concurrent": 0, "spans": {}}


def test_spans_of_workers_include_earlier_commands_and_join_the_chunks_of_a_shard(work):
    write(work, 0, 0, "a:1", 50.0, ended=1050.0)  # of a run that was killed
    before = worker_stats.committed_files(work)
    write(work, 0, 1, "a:1", 10.0, ended=2010.0)
    write(work, 0, 2, "a:1", 5.0, ended=2015.5)
    write(work, 2, 0, "a:1", 20.0, ended=2036.0)
    write(work, 1, 0, "b:1", 30.0, ended=2030.0)
    found = utilization(work, before)
    assert found["spans"] == {
        "a:1": [[1000.0, 1050.0, 0, 1], [2000.0, 2015.5, 0, 1], [2016.0, 2036.0, 2, 2]],
        "b:1": [[2000.0, 2030.0, 1, 1]]}
    assert found["busy_s"] == {"a:1": 35.0, "b:1": 30.0} and found["concurrent"] == 2


def test_the_baseline_is_compared_with_the_workers_of_the_killed_command_too(work):
    write(work, 0, 0, "a:1", 50.0, ended=1050.0)
    write(work, 1, 0, "b:1", 50.0, ended=1051.0)
    before = worker_stats.committed_files(work)
    write(work, 2, 0, "c:1", 20.0, ended=2036.0)
    found = utilization(work, before)
    assert (found["workers"], found["concurrent"]) == (1, 2)


def test_too_many_spans_are_joined_over_the_shortest_gaps():
    spans = {"a": [[float(10 * n), 10 * n + 9.5, n, 1] for n in range(500)],
             "b": [[0.0, 10.0, 500, 1], [4000.0, 4100.0, 501, 1]]}
    assert worker_stats.merged_spans(spans) == spans
    assert worker_stats.merged_spans(spans, 3) == {"a": [[0.0, 4999.5, 0, 1]], "b": spans["b"]}


def test_files_that_do_not_say_who_wrote_them_tell_nothing(work):
    write(work, 0, 0, None, 10.0)
    assert chunk_files.read_totals(*worker_stats.committed_files(work)).busy_s == 10.0
    assert utilization(work, set()) is None


def test_the_last_screen_tells_of_workers_that_waited_where_it_cost_time():
    workers = {"workers": 8, "imbalance": 1.34, "waited_s": 3700.0, "batch_size": 8, "busy_s": {}}
    line = screen.uneven(workers)
    assert "busiest of 8 workers decoded 1.34 times" in line
    assert "62 min" in line and "spark.shards" in line
    assert screen.uneven(workers | {"imbalance": 1.1}) is None
    assert screen.uneven(workers | {"waited_s": 5.0}) is None
    assert screen.uneven(workers | {"imbalance": None}) is None and screen.uneven(None) is None


def test_the_next_command_can_be_pasted(tmp_path):
    """An id with a blank made two arguments of one."""
    space = Workspace(tmp_path / "my out", date(2026, 1, 2))
    lines = "\n".join(screen._next_steps(space, {"entity_id": "u 5"}))
    assert f"dare-job show '{tmp_path}/my out' 'user:u 5'" in lines
