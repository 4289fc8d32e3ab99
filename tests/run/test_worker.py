"""One task of generate with a made-up engine: chunks, bad rows, and exceptions in a whole batch."""

import json
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dare_job import errors
from dare_job.config.settings import JobConfig
from dare_job.decode.request import BeamStatistics, Request, Result
from dare_job.generate import live_progress, loading, shard_plan, worker, worker_stats
from dare_job.generate.task import Task
from dare_job.inference import engines
from dare_job.refresh import stopping
from dare_job.tables import chunk_files, chunk_progress

RECORD = {"token": "cut-1", "fingerprint": "f", "shards": 1, "rows": 9, "kept": 0}


def result(request: Request) -> Result:
    ids = np.arange(3, dtype=np.int32)
    return Result(request.id, ids, "eos", None, 5, 2, 0, 0, 0, 0, np.ones(3, np.int16), ids[:0], 0.5, 2.0,
                  2.5)


class FakeEngine:
    """Decodes ``batch_size`` rows at once, the later first; an id in ``bad`` breaks its whole batch."""

    def __init__(self, batch_size: int, bad: set[str]):
        self.batch_size, self.bad = batch_size, bad

    def run(self, requests):
        requests = iter(requests)
        while batch := [request for _, request in zip(range(self.batch_size), requests, strict=False)]:
            if any(request.id in self.bad for request in batch):
                raise RuntimeError("device trouble\nand its trace")
            yield from (result(request) for request in reversed(batch))

    def active_ids(self) -> list:
        return []

    def unfinished(self) -> dict:
        return {"tokens": 7, "target_steps": 5}


@pytest.fixture
def task(tmp_path, monkeypatch):
    """Task of a folder with a cut; ``task.bad`` are the ids that break a batch."""
    bad: set[str] = set()
    for entity in ("user", "item"):
        (tmp_path / f"entity={entity}").mkdir()
    (tmp_path / shard_plan.SHARD_PLAN).write_text(json.dumps(RECORD))
    made = Task(JobConfig(), "m", "t", str(tmp_path), "p", "", RECORD["token"], "2026-01-02", "run-1", 1)
    monkeypatch.setattr(loading, "load_task_model", lambda task: None)
    monkeypatch.setattr(loading, "decode_text", lambda ids, task: "a text")
    monkeypatch.setattr(loading, "make_engine", lambda task, batch_size=2: FakeEngine(batch_size, bad))
    monkeypatch.setattr(loading, "make_request", request)
    return SimpleNamespace(task=made, bad=bad, folder=tmp_path)


def request(row: dict, task) -> Request:
    if row["prompt"] == "too long":
        raise errors.RowError("the prompt has too many tokens")
    if row["prompt"] == "damaged pool":
        raise errors.PoolError("the pool is damaged")
    return Request(row["entity_id"], np.ones(2, np.int32))


def batches(rows: int, chunk_rows: int, **prompts: str):
    """Arrow batches of a shard's rows ``r0``, ``r1``, ..., in chunks of ``chunk_rows``."""
    table = [{"entity": "user", "entity_id": f"r{n}", "prompt": prompts.get(f"r{n}", "hello"),
              "prompt_sha256": "s", "text_key": "k", "error": "empty history" if f"r{n}" in prompts and
              prompts[f"r{n}"] == "none" else None, "pool": "global", "pool_kind": "global", "shard": 3,
              "chunk": n // chunk_rows, "position": n} for n in range(rows)]
    return pa.Table.from_pylist(table).to_batches(max_chunksize=2)


def written(folder) -> dict[str, list[dict]]:
    return {path.name: pq.read_table(path).to_pylist() for path in sorted((folder / "entity=user").glob("*"))}


def test_rows_are_committed_by_chunk_in_order_and_with_totals(task):
    stats = pa.Table.from_batches(worker.write_shard(batches(8, 3), task.task)).to_pylist()
    files = written(task.folder)
    assert {name: [row["entity_id"] for row in rows] for name, rows in files.items()} == {
        "part-00003-00000.parquet": ["r0", "r1", "r2"], "part-00003-00001.parquet": ["r3", "r4", "r5"],
        "part-00003-00002.parquet": ["r6", "r7"]}
    assert [(row["shard"], row["chunk"], row["rows"]) for row in stats] == [(3, 0, 3), (3, 1, 3), (3, 2, 2)]
    totals = chunk_files.Tally([task.folder / "entity=user"]).update()
    assert (totals.rows, totals.tokens, totals.target_steps, totals.errors) == (8, 24, 16, 0)
    assert (totals.slot_steps, totals.busy_slots) == (20.0, 0.8)
    assert totals.busy_s > 0


def test_steps_of_rows_without_a_previous_text_are_recorded_by_pool(task):
    """Of the rows of a chunk: neither of those that fail nor of those that draft from their own text."""
    task.bad |= {"r1"}
    own, pools = {"r2": [1, 2], "r5": []}, {"r4": "c-1", "r5": "c-1"}
    table = pa.Table.from_batches(batches(6, 6)).to_pylist()
    rows = [row | {"own_ids": own.get(row["entity_id"]), "pool": pools.get(row["entity_id"], "global"),
                   "pool_kind": "collaborative" if row["entity_id"] in pools else "global"} for row in table]
    list(worker.write_shard(pa.Table.from_pylist(rows).to_batches(), task.task))
    work = shard_plan.read_plan(task.folder)
    found = worker_stats.pool_record(worker_stats.read_footers(work), "user", "2026-01-02", "dare")
    assert found["kinds"] == {"global": [4, 6], "collaborative": [4, 6]}  # r0 and r3, r4 and r5
    assert (found["steps"], found["tokens"], found["pools"]) == (8, 12, {})
    assert worker_stats.pool_record(worker_stats.read_footers(work), "item", "", "dare")["steps"] == 0


def test_widths_of_beams_are_summed_over_chunks(task, monkeypatch):
    """Weighted by layers, and by layers that passed; a row with an error has none."""
    task.bad |= {"r2"}
    counts = {"r0": (10, 2.0, 8, 4, 1.5), "r1": (30, 4.0, 8, 0, 0.0), "r3": (10, 1.0, 0, 0, 0.0)}

    def by_beams(request):
        layers, width, judged, passed, wide = counts[request.id]
        beams = BeamStatistics(layers, width, judged, passed, wide, 0.5, 1, 99, (-1.0,), (-0.1,),
                               (np.arange(3),))
        return replace(plainly(request), beams=beams)

    plainly = result
    monkeypatch.setitem(globals(), "result", by_beams)
    list(worker.write_shard(batches(4, 3), task.task))
    paths = sorted((task.folder / "entity=user").glob("*.parquet"))
    assert len(paths) == 2 and worker_stats.beam_statistics(paths[1:])["width"] == 1.0
    assert worker_stats.beam_statistics(paths) == {"layers": 50, "width": 3.0, "verified": 16, "passed": 4,
                                    "passed_width": 1.5}


def test_rows_of_other_modes_have_no_widths(task):
    list(worker.write_shard(batches(4, 3), task.task))
    assert worker_stats.beam_statistics(sorted((task.folder / "entity=user").glob("*.parquet"))) is None


@pytest.mark.parametrize("chunk_rows", [1, 2, 4])
def test_a_chunk_is_committed_before_later_rows_are_written(task, chunk_rows):
    stats = worker.write_shard(batches(8, chunk_rows), task.task)
    next(stats)
    assert len(written(task.folder)) == 1
    next(stats)
    assert len(written(task.folder)) == 2


def test_a_batch_that_fails_costs_only_the_row_that_fails_alone(task):
    task.bad |= {"r2", "r5"}
    list(worker.write_shard(batches(8, 4), task.task))
    rows = {row["entity_id"]: row for found in written(task.folder).values() for row in found}
    assert sorted(rows) == [f"r{n}" for n in range(8)]
    assert {name for name, row in rows.items() if row["error"]} == {"r2", "r5"}
    assert rows["r2"]["error"] == "RuntimeError: device trouble" and rows["r2"]["finish_reason"] == "error"
    assert rows["r2"]["knowledge"] is None and rows["r3"]["knowledge"] == "a text"


def test_rows_alone_share_one_engine(task, monkeypatch):
    built = []
    monkeypatch.setattr(loading, "make_engine",
                        lambda task, batch_size=4: built.append(batch_size) or FakeEngine(batch_size, {"r1"}))
    list(worker.write_shard(batches(6, 9), task.task))
    (rows,) = written(task.folder).values()
    assert {row["entity_id"] for row in rows if row["error"]} == {"r1"} and len(rows) == 6
    assert built == [4, 1, 4]  # the batch that fails, its four rows, the two behind


class Deaf(FakeEngine):
    """Fails before it asks for a row, as where there is no memory for its cache."""

    def run(self, requests):
        raise MemoryError("no room for 9 GiB")


@pytest.mark.parametrize(("alone", "deaf"), [(False, False), (False, True), (True, False)],
                         ids=["not made", "does not start", "not made for rows alone"])
def test_an_engine_that_cannot_be_had_ends_the_task(task, monkeypatch, alone, deaf):
    tries = []

    def engine(task, batch_size=2):
        tries.append(batch_size)
        if len(tries) > 3:
            pytest.fail("tried again and again")
        if deaf:
            return Deaf(batch_size, set())
        if alone and batch_size == 2:
            return FakeEngine(batch_size, {"r0"})
        raise MemoryError("no room for 9 GiB")

    monkeypatch.setattr(loading, "make_engine", engine)
    with pytest.raises(errors.InfrastructureError, match="no room for 9 GiB.*decode.batch_size"):
        list(worker.write_shard(batches(6, 9), task.task))
    assert not (task.folder / shard_plan.FAILED).exists()  # another host may have the room
    assert tries == ([2, 1] if alone else [2]) and not written(task.folder)


def test_rows_without_a_usable_prompt_become_rows_with_an_error(task):
    list(worker.write_shard(batches(5, 9, r0="none", r1="too long", r4="none"), task.task))
    (rows,) = written(task.folder).values()
    assert [row["error"] for row in rows] == [
        "empty history", "the prompt has too many tokens", None, None, "empty history"]
    assert rows[1]["text_key"] is None and rows[2]["text_key"] == "k"


def test_what_concerns_every_row_stops_all_workers_and_reaches_the_driver(task):
    list(worker.write_shard(batches(6, 2, r4="damaged pool"), task.task))
    with pytest.raises(errors.PoolError, match="the pool is damaged"):
        shard_plan.raise_failure(task.folder)
    before = written(task.folder)
    assert list(worker.write_shard(batches(6, 2), task.task)) == [] and written(task.folder) == before


def test_what_one_host_lacks_is_raised_there_and_another_host_writes_the_shard(task, monkeypatch):
    def loaded(task):
        raise errors.InfrastructureError("torch sees no GPU on host-7")

    with monkeypatch.context() as host:
        host.setattr(loading, "load_task_model", loaded)
        with pytest.raises(errors.InfrastructureError, match="^torch sees no GPU on host-7$"):
            list(worker.write_shard(batches(6, 2), task.task))
    assert not written(task.folder)
    list(worker.write_shard(batches(6, 2), task.task))
    shard_plan.raise_failure(task.folder)  # nothing to raise
    assert [len(rows) for rows in written(task.folder).values()] == [2, 2, 2]


def test_a_worker_of_a_killed_run_does_not_write_into_a_later_cut(task):
    stats = worker.write_shard(batches(8, 2), task.task)
    next(stats)
    (task.folder / shard_plan.SHARD_PLAN).write_text(json.dumps(
        RECORD | {"token": "cut-2"}))  # as with another limit: the fingerprint is the same
    assert list(stats) == [] and len(written(task.folder)) == 1
    shard_plan.raise_failure(task.folder)  # nothing to raise: the later run is not disturbed


def test_a_worker_of_a_killed_run_does_not_stop_a_later_cut(task):
    late = replace(task.task, stop_at=0.0, stop_why=stopping.DEADLINE)
    assert list(worker.write_shard(batches(4, 2), replace(late, plan_token="cut-0"))) == []
    assert stopping.stopped(task.folder) is None
    assert list(worker.write_shard(batches(4, 2), late)) == [] and not written(task.folder)
    assert stopping.stopped(task.folder) == stopping.DEADLINE


def test_no_chunk_is_started_if_loading_the_model_took_the_time(task, monkeypatch):
    monkeypatch.setattr(worker, "_row_s", 0.0)
    monkeypatch.setattr(loading, "load_task_model", lambda task: time.sleep(0.3))
    soon = replace(task.task, stop_at=time.time() + 0.2, stop_why=stopping.DEADLINE)
    assert list(worker.write_shard(batches(4, 2), soon)) == [] and not written(task.folder)
    assert stopping.stopped(task.folder) == stopping.DEADLINE


class Timed(FakeEngine):
    """Reads all rows ahead, then decodes a batch of two in ``batch_s`` seconds of the worker's clock."""

    clock, batch_s = 1000.0, 20.0

    def run(self, requests):
        for found in super().run(list(requests)):
            Timed.clock += self.batch_s / self.batch_size
            yield found


@pytest.fixture
def timed(task, monkeypatch):
    """Factory: writes shard 3, whose chunks have two rows, as far as this number of seconds allows."""
    def now() -> float:
        return Timed.clock

    monkeypatch.setattr(worker, "time", SimpleNamespace(time=now, perf_counter=now))
    monkeypatch.setattr(loading, "make_engine", lambda task, batch_size=2: Timed(batch_size, set()))
    config = JobConfig.model_validate({"decode": {"batch_size": 2}, "spark": {"rows_per_commit": 2}})

    def write(chunks: int, left_s: float | None, **changes) -> int:
        stop_at = left_s and now() + left_s
        limited = replace(task.task, config=config, stop_at=stop_at, stop_why=stopping.DEADLINE, **changes)
        return len(list(worker.write_shard(batches(2 * chunks, 2), limited)))
    return write


@pytest.mark.parametrize(("left_s", "chunks"), [(19.9, 0), (20.1, 1), (39.9, 1), (60.1, 3), (200.1, 9)])
@pytest.mark.parametrize("known", ["measured", "earlier run"])
def test_rows_that_are_read_ahead_need_time_too(task, timed, monkeypatch, left_s, chunks, known):
    """A row takes 10 seconds of a worker. All rows are read before the first one is decoded."""
    monkeypatch.setattr(worker, "_row_s", 10.0 if known == "measured" else 0.0)
    assert timed(9, left_s, row_s=10.0 if known == "earlier run" else 99.0) == chunks
    assert stopping.stopped(task.folder) == (stopping.DEADLINE if chunks < 9 else None)


def test_rows_that_do_not_fill_a_batch_take_as_long_as_a_full_one(task, monkeypatch):
    monkeypatch.setattr(worker, "_row_s", 1.0)
    config = JobConfig.model_validate({"decode": {"batch_size": 60}, "spark": {"rows_per_commit": 20}})
    for left_s, waiting, expected in ((50, 0, False), (70, 0, True), (70, 40, True), (70, 60, False)):
        limited = replace(task.task, config=config, stop_at=time.time() + left_s)
        assert worker._has_time(limited, waiting) == expected


def test_the_first_batch_of_a_worker_that_knows_no_times_is_measured_before_others_start(timed, monkeypatch):
    monkeypatch.setattr(worker, "_row_s", 0.0)
    assert timed(9, 59.9) == 2 and worker._row_s == pytest.approx(10.0)  # then 39.9 seconds are left


def test_the_time_of_a_row_follows_those_that_are_committed(timed, monkeypatch):
    """At once if they take longer, and by half if they take less time."""
    monkeypatch.setattr(worker, "_row_s", 10.0)
    for chunks, (batch_s, row_s) in enumerate(((60.0, 30.0), (20.0, 20.0), (20.0, 15.0)), start=1):
        monkeypatch.setattr(Timed, "batch_s", batch_s)
        assert timed(chunks, None) == 1  # the others are there
        assert worker._row_s == pytest.approx(row_s)


def test_a_text_without_an_answer_is_an_error_of_its_row(task, monkeypatch):
    def without_answer(ids, task):
        raise errors.RowError("the text ends inside its thinking block")

    monkeypatch.setattr(loading, "decode_text", without_answer)
    row = {"entity_id": "7", "prompt_sha256": "s", "text_key": "k", "pool": None, "pool_kind": None}
    finished = worker.knowledge_row(row, result(Request("7", np.arange(3, dtype=np.int32))), task.task)
    assert finished == {"entity_id": "7", "run_id": "run-1", "prompt_sha256": "s", "finish_reason": "error",
                        "error": "the text ends inside its thinking block"}


@pytest.mark.parametrize(("decode", "verify", "score"), [
    ({}, {}, "auto"), ({}, {"rule": "relaxed"}, "auto"), ({}, {"reproducible": True}, "auto"),
    ({}, {"rule": "top_k", "reproducible": True}, "always"),
    ({"score": "never"}, {"rule": "top_k", "reproducible": True}, "never"),
    ({"score": "always"}, {}, "always"), ({"score": "always", "mode": "resd"}, {}, "never"),
    ({"mode": "sample"}, {}, "never"), ({"mode": "sample", "score": "always"}, {}, "always")])
def test_how_much_old_text_is_scored(decode, verify, score):
    """Text that depends on its drafts, and must not depend on time, has all of its old text scored."""
    config = JobConfig.model_validate({"decode": decode, "verify": verify})
    assert engines.score(config, config.decode.mode) == score


def test_rows_of_an_open_chunk_are_reported_while_it_is_open(task, monkeypatch):
    """Finished rows and those that are being decoded, without those of committed chunks; in the end nothing.

    Four rows are a chunk. It is committed when a row of the next chunk is finished.
    """
    monkeypatch.setattr(live_progress, "_LOCAL_S", 0.01)
    chunks, expected = chunk_progress.OpenChunks(task.folder, RECORD["token"]), iter((0, 1, 2, 3, 4, 1, 2, 3))

    class Watching(FakeEngine):
        def run(self, requests):
            for found in super().run(requests):
                rows, until = next(expected), time.monotonic() + 20
                while (total := chunks.totals()).rows != rows or not total.busy_s:
                    assert time.monotonic() < until, (rows, total)
                    time.sleep(0.01)
                assert total.tokens == 3 * rows + 7
                yield found

    monkeypatch.setattr(loading, "make_engine", lambda task, batch_size=2: Watching(batch_size, set()))
    list(worker.write_shard(batches(8, 4), task.task))
    assert next(expected, None) is None
    assert not [row["error"] for rows in written(task.folder).values() for row in rows if row["error"]]
    assert chunks.totals() == chunk_files.Totals() and not any((task.folder / "open").iterdir())


def test_a_report_of_another_plan_or_of_a_dead_worker_does_not_count(tmp_path, monkeypatch):
    chunks, two = chunk_progress.OpenChunks(tmp_path, "now"), chunk_files.Totals(rows=2, tokens=50)
    chunk_progress.write(tmp_path, 1, "now", two)
    chunk_progress.write(tmp_path, 2, "before", two)
    assert chunks.totals() == two
    monkeypatch.setattr(chunk_progress, "_SILENT_S", 0.0)
    assert chunks.totals() == chunk_files.Totals()  # it has not changed since
    monkeypatch.undo()
    (tmp_path / "open" / ".00002.json.partial").touch()  # a worker was killed while it wrote
    chunks.clear()
    assert chunks.totals() == chunk_files.Totals() and not any((tmp_path / "open").iterdir())
