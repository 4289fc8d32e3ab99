"""Failures of one user in a worker: they affect at most that user."""

import json
import time
from functools import partial
from pathlib import Path
from socket import gethostname

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_recommender
import torch
from pydantic import ValidationError

from dare_job.config.decoding import RecommendSettings
from dare_job.decode.model.target import Target
from dare_job.decode.trie_search.node_scores import NodeScores
from dare_job.errors import DeviceError, InfrastructureError
from dare_job.generate import hangs
from dare_job.generate.hangs import EXIT_CODE, Watchdog
from dare_job.recommend import chunks, users
from dare_job.recommend.rows import BatchRecommender
from dare_job.recommend.task import ModelSource, RecommendTask, _load

USERS = {f"u{n:02d}": [f"i{(7 * n + step) % 40}" for step in range(1 + n % 3)] for n in range(14)}
CUDA = torch.AcceleratorError("CUDA error: device-side assert triggered\nCUDA kernel errors might be ...")
CUBLAS = RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx")
SHORT = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
ALLOCATOR = RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory")


@pytest.fixture(scope="module")
def recommender(tmp_path_factory):
    return tiny_recommender.write(tmp_path_factory.mktemp("recommender"))


@pytest.fixture(scope="module")
def task_of(recommender, tmp_path_factory):
    """Factory of tasks in folders of their own, with four users per batch."""
    def make(hang_timeout_s: float | None = None, drafter: str | None = "popularity") -> RecommendTask:
        folder = tmp_path_factory.mktemp("work")
        (folder / "chunks").mkdir()
        (folder / "users" / users.COUNTS).mkdir(parents=True)
        pq.write_table(pa.table({"item_id": ["i3"], "interactions": [2]}),
                       folder / "users" / users.COUNTS / "part-0.parquet")
        rows = [{"user_id": user, "chunk": 0, "history": history, "others": []}
                for user, history in USERS.items()]
        (folder / "users" / users.ROWS).mkdir()
        pq.write_table(pa.Table.from_pylist(rows), folder / "users" / users.ROWS / "part-0.parquet")
        settings = RecommendSettings(model=str(recommender), k=4, batch_size=4, drafter=drafter,
                                     draft_depth="all").model_dump_json()
        return RecommendTask(ModelSource(str(recommender), None, ""), None, settings, str(folder / "users"),
                             str(folder), "cut-1", "cpu", 1, "run-1", hang_timeout_s)
    return make


def write(task: RecommendTask, chunk: int = 0, people=tuple(USERS)) -> dict[str, list[dict]]:
    """Write a chunk of these users; return its rows by user."""
    rows = [{"user_id": user, "chunk": chunk, "history": USERS[user], "others": []} for user in people]
    list(chunks.write_chunks(iter(pa.Table.from_pylist(rows).to_batches()), task))
    return lists(task, chunk)


def lists(task: RecommendTask, chunk: int = 0) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    for row in pq.read_table(task.chunks / f"part-{chunk:06d}.parquet").to_pylist():
        found.setdefault(row["user_id"], []).append(row)
    assert sorted(found) == sorted(USERS)
    assert all(len(rows) == (1 if rows[0]["error"] else 4) for rows in found.values())
    return found


def items(found: dict[str, list[dict]]) -> dict[str, list[str]]:
    return {user: [row["item_id"] for row in rows] for user, rows in found.items() if not rows[0]["error"]}


def errors(found: dict[str, list[dict]]) -> dict[str, str]:
    return {user: rows[0]["error"] for user, rows in found.items() if rows[0]["error"]}


@pytest.fixture(scope="module")
def undisturbed(task_of):
    """Each user's items in a run without failures."""
    return items(write(task_of()))


@pytest.fixture
def batches(monkeypatch):
    """Users of each search, in order, and a factory of forward passes that act when given users take part."""
    seen, search, read = [], BatchRecommender._search, NodeScores.read

    def watched(self, people):
        seen.append([user for user, *_ in people])
        return search(self, people)

    def disturb(users: set[str], act) -> None:
        def reading(self, rows, nodes):
            if users & set(seen[-1]):
                act()
            return read(self, rows, nodes)

        monkeypatch.setattr(NodeScores, "read", reading)

    monkeypatch.setattr(BatchRecommender, "_search", watched)
    return seen, disturb


def fail_with(error: Exception):
    def act(*_):
        raise error
    return act


@pytest.mark.parametrize("error", [CUDA, CUBLAS], ids=["context lost", "cublas"])
def test_a_device_failure_fails_the_task_and_finally_its_user(
        task_of, batches, undisturbed, error):
    """In Spark every attempt is a process of its own, for which a failed device stays unusable."""
    task, (seen, disturb) = task_of(), batches
    disturb({"u05"}, fail_with(error))
    for attempt in (1, 2):
        seen.clear()
        with pytest.raises(DeviceError, match=f"^{gethostname()}: the device failed: .*CUDA error: [^\n]*$"):
            write(task)
        assert hangs.hang_count(Path(task.folder), task.plan_token) == attempt
        assert "u05" in seen[-1] and len(seen[-1]) == (4 if attempt == 1 else 1)
    assert [len(whys) for whys in hangs.hang_reasons(task, 0).values() if len(whys) > 1] == [2]
    assert not list(task.chunks.iterdir())
    found = write(task)
    assert list(errors(found)) == ["u05"]
    assert "ended 2 workers, the last with this row alone: " in errors(found)["u05"]
    assert "the device failed: " in errors(found)["u05"]
    assert items(found) == {user: message for user, message in undisturbed.items() if user != "u05"}


def test_users_that_ended_a_worker_run_alone_and_last(
        task_of, batches, undisturbed):
    task, (seen, _) = task_of(), batches
    hangs.record_hang(task, 0, "here:1", ["u01", "u02"], "the first")
    hangs.record_hang(task, 0, "here:2", ["u02"], "the last")
    hangs.record_hang(task, 1, "here:3", ["u03"], "")  # another chunk
    found = write(task)
    assert errors(found) == {"u02": "ended 2 workers, the last with this row alone: the last"}
    assert seen[-1] == ["u01"] and [len(batch) for batch in seen] == [4, 4, 4, 1]
    assert items(found) == {user: message for user, message in undisturbed.items() if user != "u02"}


@pytest.mark.parametrize(("wait_s", "bites"), [(0.05, False), (1.5, True)], ids=["slow", "hangs"])
def test_a_worker_is_watched_while_it_searches(task_of, batches, monkeypatch, undisturbed, wait_s, bites):
    """The watchdog would end the process when it first fires."""
    task, ended, disturb = task_of(hang_timeout_s=0.8), [], batches[1]
    monkeypatch.setattr(chunks, "Watchdog", partial(Watchdog, end=ended.append))
    disturb({"u05"} if bites else set(USERS), lambda: time.sleep(0 if ended else wait_s))
    assert items(write(task)) == undisturbed
    assert ended == [EXIT_CODE] * bites
    noted = [json.loads(path.read_text()) for path in (Path(task.folder) / hangs.FOLDER).glob("*.json")]
    assert [("u05" in hang["ids"], len(hang["ids"]), hang["why"]) for hang in noted] == [
        (True, 4, "no forward pass finished within 0.8 s (decode.hang_timeout_s)")] * bites


@pytest.mark.parametrize("error", [SHORT, ALLOCATOR, MemoryError()], ids=["device", "processor", "Python"])
def test_a_batch_that_runs_out_of_memory_is_halved(
        task_of, batches, monkeypatch, undisturbed, error):
    prefill, seen = Target.prefill, batches[0]

    def short(self, cache, rows, *arguments):
        if cache.slots > 2:
            raise error
        return prefill(self, cache, rows, *arguments)

    monkeypatch.setattr(Target, "prefill", short)
    assert items(write(task_of(drafter=None))) == undisturbed
    assert list(map(len, seen)) == [4] + [2] * 7


def test_a_user_that_runs_out_of_memory_alone_gets_an_error(
        task_of, batches, undisturbed):
    task, (seen, disturb) = task_of(), batches
    disturb({"u03"}, fail_with(SHORT))  # in the first batch
    found = write(task)
    assert list(errors(found)) == ["u03"] and "out of memory" in errors(found)["u03"]
    assert items(found) == {user: message for user, message in undisturbed.items() if user != "u03"}
    assert max(map(len, seen[seen.index(["u03"]) + 1:])) == 4


@pytest.mark.parametrize("error", [SHORT, CUDA])
def test_a_recommender_that_does_not_fit_is_an_infrastructure_error(task_of, monkeypatch, error):
    monkeypatch.setattr(Target, "load", fail_with(error))
    _load.cache_clear()
    with pytest.raises(InfrastructureError, match="recommender does not fit into memory, .*CUDA"):
        write(task_of())


@pytest.mark.slow
@pytest.mark.spark
def test_a_hanging_forward_pass_affects_its_user_only(
        task_of, make_job, monkeypatch, undisturbed):
    """Two users of two batches end as many attempts as Spark allows (spark.task.maxFailures is 4)."""
    late = ["u00", "u05"]

    def sleepy(batches, task):
        import time

        from dare_job.decode.trie_search.node_scores import NodeScores
        from dare_job.recommend import chunks
        from dare_job.recommend.rows import BatchRecommender

        found, read, under_way = BatchRecommender._search, NodeScores.read, []

        def searching(self, people):
            under_way[:] = [user for user, *_ in people]
            return found(self, people)

        def reading(self, rows, nodes):
            if set(late) & set(under_way):
                time.sleep(3600)
            return read(self, rows, nodes)

        BatchRecommender._search, NodeScores.read = searching, reading
        try:
            yield from chunks.write_chunks(batches, task)
        finally:  # other tests use the worker
            BatchRecommender._search, NodeScores.read = found, read

    task, job = task_of(hang_timeout_s=2.5), make_job({"recommend": {"rows_per_commit": 14}})
    monkeypatch.setattr(chunks, "write_chunks", sleepy)
    chunks.write(job, task, 1, len(USERS))
    found = lists(task)
    assert sorted(errors(found)) == late
    assert all("the last with this row alone: no forward pass finished within 2.5 s" in message
               for message in errors(found).values())
    assert items(found) == {user: message for user, message in undisturbed.items() if user not in late}
    assert hangs.hang_count(Path(task.folder), task.plan_token) == 4


@pytest.mark.parametrize(("settings", "message"), [
    ({"temperature": 1e-9}, "recommend.temperature is 1e-09; it must be 0"),
    ({"draft_whole": 0}, "recommend.drafter = 'trie' drafts whole levels only")])
def test_invalid_settings_fail_before_any_worker(settings, message):
    with pytest.raises(ValidationError, match=message):
        RecommendSettings(**settings)
