"""Two commands on one date at a URL: the second is refused, a dead one's lock is taken over."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date

import pytest

from dare_job.errors import InfrastructureError
from dare_job.schemas import ENTITIES
from dare_job.stages import publish
from dare_job.storage import atomic_folder, conditional_write, lease, lock, object_lock, paths
from dare_job.tables import published
from dare_job.workspace import MANIFEST, Workspace, committing, done_record

pytestmark = pytest.mark.spark


@pytest.fixture
def folder(any_store, request):
    return paths.path(f"{any_store}/{re.sub('[^a-z0-9_]', '-', request.node.name)}")


def leave(folder, **changes) -> None:
    """A lock as a process would leave it; by default of one that ended on this host."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    owner = {"pid": ended.pid, "born": "1", "host": socket.gethostname(), "since": "then", **changes}
    (folder / lock.NAME).write_text(json.dumps(owner))


def test_a_second_writer_is_refused_and_the_lock_goes_with_the_first(folder):
    with lock.held(folder):
        with (pytest.raises(InfrastructureError, match=f"process {os.getpid()} on .*{lock.NAME}"),
              lock.held(folder)):
            pass
        assert json.loads((folder / lock.NAME).read_text())["pid"] == os.getpid()
    assert not paths.listing(folder)


@pytest.mark.parametrize("changes", [{}, {"pid": os.getpid()}])
def test_the_lock_of_a_dead_process_is_taken_over(folder, changes, caplog, monkeypatch):
    monkeypatch.setattr(lease._LOG, "propagate", True)
    leave(folder, **changes)
    with lock.held(folder):
        assert json.loads((folder / lock.NAME).read_text())["since"] != "then"
    assert "took over" in caplog.text and not paths.listing(folder)


def test_another_hosts_lock_is_taken_over_once_it_is_silent_for_long(folder, monkeypatch):
    leave(folder, host="elsewhere")
    with pytest.raises(InfrastructureError, match="on elsewhere, since then"), lock.held(folder):
        pass
    monkeypatch.setattr(lease, "STALE_S", 1.0)
    time.sleep(1.1)  # the store tells seconds, rounded down
    with lock.held(folder):
        pass
    assert not paths.listing(folder)


def test_a_lock_that_is_held_is_renewed_and_never_stale(folder, monkeypatch):
    monkeypatch.setattr(lease, "RENEW_S", 0.3)
    monkeypatch.setattr(lease, "STALE_S", 2.0)
    monkeypatch.setattr(lease, "owner_has_ended", lambda owner: False)
    with lock.held(folder):
        time.sleep(2.1)
        with pytest.raises(InfrastructureError, match="another command writes"), lock.held(folder):
            pass
    assert not paths.listing(folder)


def test_a_lock_that_was_lost_is_not_removed(folder, monkeypatch):
    with lock.held(folder):
        leave(folder, host="elsewhere")
    assert json.loads((folder / lock.NAME).read_text())["host"] == "elsewhere"


def renewal(folder) -> str:
    return object_lock._content(folder / lock.NAME)["renewal"]


def wait_for(reached) -> None:
    until = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.05)


def fails_once(monkeypatch, name: str, call: int, afterwards: bool) -> list[str]:
    """Make one call of a storage function fail, before or after the store has done the work."""
    module = conditional_write if hasattr(conditional_write, name) else paths
    function, calls, failed = getattr(module, name), [], []

    def failing(*arguments):
        calls.append(name)
        answer = function(*arguments) if afterwards or len(calls) != call else None
        if len(calls) == call:
            failed.append(name)
            raise OSError("the store is away")
        return answer

    monkeypatch.setattr(module, name, failing)
    return failed


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize(("name", "call", "afterwards"), [
    *(("version_of", call, False) for call in (1, 2, 3)),
    *(("compare_and_swap", *case) for case in ((1, False), (1, True), (2, True)))])
def test_a_lock_survives_one_error_of_the_store(folder, monkeypatch, caplog, name, call, afterwards):
    """Before, between and after the requests of a renewal; also an answer that is lost on its way."""
    monkeypatch.setattr(lease._LOG, "propagate", True)
    monkeypatch.setattr(lease, "RENEW_S", 0.1)
    with lock.held(folder):
        failed = fails_once(monkeypatch, name, call, afterwards)
        wait_for(lambda: failed)
        before = renewal(folder)
        wait_for(lambda: renewal(folder) != before)
        lock.require_held()
        with pytest.raises(InfrastructureError, match="another command writes"), lock.held(folder):
            pass
    assert "tried again: the store is away" in caplog.text and "no longer" not in caplog.text
    assert not paths.listing(folder)


def test_a_put_that_is_sent_twice_because_its_answer_was_lost_is_no_loss(folder, monkeypatch):
    """The store's client does so by itself: the second try meets what the first one wrote."""
    for name in ("create", "compare_and_swap"):
        put = getattr(conditional_write, name)
        monkeypatch.setattr(conditional_write, name,
                            lambda *arguments, put=put: put(*arguments) and put(*arguments))
    with lock.held(folder):
        first = renewal(folder)
        lock.require_held()
        second = renewal(folder)
        lock.require_held()
        assert len({first, second, renewal(folder)}) == 3
    leave(folder)
    with lock.held(folder):
        lock.require_held()
    assert not paths.listing(folder)


def test_a_store_that_is_away_is_asked_again_well_before_the_lock_is_lost(folder, monkeypatch):
    monkeypatch.setattr(lease, "RENEW_S", 0.6)
    with lock.held(folder):
        before, asked, until = renewal(folder), [], time.monotonic() + 1.4
        version_of = paths.version_of

        def away(path):
            asked.append(path)
            if time.monotonic() < until:
                raise OSError("the store is away")
            return version_of(path)

        monkeypatch.setattr(paths, "version_of", away)
        while renewal(folder) == before and time.monotonic() < until + 8:
            time.sleep(0.05)
        assert len(asked) >= 4 and renewal(folder) != before


@pytest.fixture
def in_the_meantime(monkeypatch):
    """Factory: this process is silent for too long, and another command has the lock and does something."""
    def run(folder, does) -> None:
        monkeypatch.setattr(lease, "STALE_S", 0.0)
        with ThreadPoolExecutor(1) as threads:  # which shares no context with this thread
            threads.submit(does).result()
        monkeypatch.setattr(lease, "STALE_S", 600.0)
    return run


@pytest.mark.parametrize("still_at_it", [True, False])
def test_who_lost_the_lock_commits_nothing(folder, in_the_meantime, still_at_it):
    stage, staged = folder / "plan", []

    def take_and_commit() -> None:
        with lock.held(folder), committing(stage, "theirs", {}) as staging:
            (staging / "rows.txt").write_text("theirs")
        if still_at_it:
            leave(folder, host="elsewhere", lease="theirs")

    def commit() -> None:
        with committing(stage, "ours", {}) as staging:
            staged.append(staging)
            (staging / "rows-1.txt").write_text("ours")
            in_the_meantime(folder, take_and_commit)
            (staging / "rows-2.txt").write_text("ours")

    with lock.held(folder):
        with pytest.raises(InfrastructureError, match=f"{lock.NAME} is no longer held") as lost:
            commit()
        assert lost.value.exit_code == 5
        with pytest.raises(InfrastructureError, match="no longer"):
            atomic_folder.stage_folder(stage)
    assert done_record(stage)["fingerprint"] == "theirs"
    assert (atomic_folder.current(stage) / "rows.txt").read_text() == "theirs"
    assert (folder / lock.NAME).exists() == still_at_it


@pytest.mark.parametrize("shown", [0, 1])
def test_who_lost_the_lock_publishes_nothing_and_leaves_the_others_files(folder, in_the_meantime, monkeypatch,
                                                                         shown):
    """``shown``: manifests of this command that readers saw before."""
    space = Workspace(folder, date(2026, 1, 2))
    places = {entity: space.knowledge(entity) for entity in ENTITIES}
    write, written = publish.write_json, []

    def take_and_stage() -> None:
        with lock.held(space.work):
            for place in places.values():
                (place / "part-theirs.parquet").write_bytes(b"rows")
        leave(space.work, host="elsewhere")

    def write_then_lose(path, value) -> None:
        write(path, value)
        written.append(path)
        if len(written) == shown:
            in_the_meantime(space.work, take_and_stage)

    monkeypatch.setattr(publish, "write_json", write_then_lose)
    with (lock.held(space.work), pytest.raises(InfrastructureError, match="no longer"),
          atomic_folder.remove_on_error(places["user"]), atomic_folder.remove_on_error(places["item"])):
        for place in places.values():
            (place / "part-ours.parquet").write_bytes(b"rows")
        if not shown:
            in_the_meantime(space.work, take_and_stage)
        manifests = {entity: {"files": {"part-ours.parquet": {}}} for entity in ENTITIES}
        publish._make_visible(space, places, manifests)
    assert len(written) == shown
    for number, place in enumerate(places.values()):
        assert (place / MANIFEST).exists() == (number < shown)
        assert (place / "part-theirs.parquet").exists(), "the other command's rows are gone"
        if number < shown:
            assert [path.name for path in published.parquet_files(place)] == ["part-ours.parquet"]
            assert (place / "part-ours.parquet").exists()


def test_a_lost_lock_is_told_as_soon_as_it_is_known(folder, monkeypatch, caplog):
    monkeypatch.setattr(lease._LOG, "propagate", True)
    monkeypatch.setattr(lease, "RENEW_S", 0.1)
    with lock.held(folder):
        (folder / lock.NAME).unlink()
        wait_for(lambda: "is no longer held by this command" in caplog.text)
        with pytest.raises(InfrastructureError, match="no longer"):
            lock.require_held()
    assert not paths.listing(folder)


def test_what_killed_processes_left_beside_a_lock_goes_and_what_is_young_stays(folder, monkeypatch):
    """At hdfs:// a lock is written beside its place, and replaced by whoever has its version's turn."""
    if folder.protocol != "hdfs":
        pytest.skip("a lock of S3 is one object")
    for name in ("._lock.1.partial", "_lock.7-9.turn", "other"):
        (folder / name).write_text("left")
    with lock.held(folder):
        assert len(paths.listing(folder)) == 4
    monkeypatch.setattr(lease, "STALE_S", 0.0)
    with lock.held(folder):
        assert paths.listing(folder).keys() == {"_lock", "other"}


def test_of_threads_that_find_a_dead_lock_one_takes_it_over(folder):
    """The winner holds it until all have tried."""
    leave(folder)
    taken, refused, ready = [], [], threading.Barrier(8)

    def take(number: int) -> None:
        ready.wait()
        try:
            with lock.held(folder):
                taken.append(number)
                wait_for(lambda: len(taken) + len(refused) == 8)
        except InfrastructureError as error:
            refused.append(str(error))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(take, range(8)))
    assert len(taken) == 1 and all("another command writes" in said for said in refused)
    assert not paths.listing(folder)


@pytest.mark.release
def test_of_processes_that_find_a_dead_lock_one_takes_it_over(folder, tmp_path):
    """Each a process of its own; the winner holds it until all have tried."""
    leave(folder)
    code = """
import sys, time
from pathlib import Path
from dare_job.storage import lock, paths
from dare_job.errors import InfrastructureError
folder, signs, number = paths.path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
(signs / f"ready-{number}").touch()
while not (signs / "go").exists():
    time.sleep(0.005)
try:
    with lock.held(folder):
        (signs / f"got-{number}").touch()
        while len(list(signs.glob("done-*"))) < 3:
            time.sleep(0.05)
except InfrastructureError as error:
    assert "another command writes" in str(error), error
    (signs / f"done-{number}").touch()
"""
    racers = [subprocess.Popen([sys.executable, "-c", code, str(folder), str(tmp_path), str(number)],
                               stderr=subprocess.PIPE, text=True) for number in range(4)]
    try:
        while len(list(tmp_path.glob("ready-*"))) < 4:
            assert all(racer.poll() is None for racer in racers)
            time.sleep(0.05)
        (tmp_path / "go").touch()
        assert [racer.communicate(timeout=60)[1] for racer in racers if racer.wait(60)] == []
    finally:
        for racer in racers:
            racer.kill()
    assert len(list(tmp_path.glob("got-*"))) == 1
    assert not paths.listing(folder)


def cut_off_behind_the_turn(client, monkeypatch) -> None:
    """The NameNode is away from the rename on that makes a turn."""
    away = []

    def cut(method):
        def call(*arguments):
            if away:
                raise RuntimeError("the NameNode is away")
            answer = method(*arguments)
            away.extend(name for name in arguments[1:2] if str(name).endswith(".turn"))
            return answer
        return call

    for name in ("create", "delete", "get_file_info", "read", "rename"):
        monkeypatch.setattr(client, name, cut(getattr(client, name)))


def test_a_turn_that_its_holder_had_to_leave_is_its_own_when_the_store_is_back(folder, monkeypatch):
    if folder.protocol != "hdfs":
        pytest.skip("a version of S3 is replaced by one request")
    with lock.held(folder):
        before = renewal(folder)
        for turns in (1, 2):  # of the lock, then of that turn
            with monkeypatch.context() as patch:
                cut_off_behind_the_turn(folder.fs.client, patch)
                with pytest.raises(OSError, match="the NameNode is away"):
                    lock.require_held()
            assert sum(name.endswith(".turn") for name in paths.listing(folder)) == turns
        assert renewal(folder) == before
        lock.require_held()
        assert renewal(folder) != before and paths.listing(folder).keys() == {lock.NAME}
    assert not paths.listing(folder)


def test_a_lock_that_another_ones_turn_keeps_from_being_renewed_is_not_said_to_be_held(folder):
    if folder.protocol != "hdfs":
        pytest.skip("a version of S3 is replaced by one request")
    with lock.held(folder):
        before, path = renewal(folder), folder / lock.NAME
        turn = path.with_name(f"{path.name}.{paths.version_of(path)}.turn")
        conditional_write.create(turn, b"another's")
        with pytest.raises(OSError, match="_lock was not renewed"):
            lock.require_held()
        assert renewal(folder) == before and turn.read_bytes() == b"another's"
        turn.unlink()
        lock.require_held()
        assert renewal(folder) != before
    assert not paths.listing(folder)


def test_a_lock_is_alive_where_the_store_does_not_say_when_it_was_written(folder, monkeypatch):
    info = folder.fs.info
    leave(folder, host="elsewhere")
    monkeypatch.setattr(folder.fs, "info", lambda path, **options: {
        key: value for key, value in info(path, **options).items() if key != "LastModified"})
    assert object_lock.is_alive(folder / lock.NAME)


def test_a_turn_of_a_dead_taker_is_taken_over_and_that_of_a_living_one_is_not(folder, monkeypatch):
    if folder.protocol != "hdfs":
        pytest.skip("a version of S3 is replaced by one request")
    path = folder / lock.NAME
    conditional_write.create(path, b"1")
    version = paths.version_of(path)
    turn = path.with_name(f"{path.name}.{version}.turn")
    conditional_write.create(turn, b"another's")
    assert not conditional_write.compare_and_swap(path, version, b"2") and turn.read_bytes() == b"another's"
    monkeypatch.setattr(lease, "STALE_S", 1.0)
    time.sleep(1.1)
    with ThreadPoolExecutor(4) as threads:
        tries = threads.map(lambda n: conditional_write.compare_and_swap(path, version, b"1%d" % n), range(4))
        made = [*tries]
    assert sum(made) == 1 and path.read_bytes() == b"1%d" % made.index(True)
    assert paths.listing(folder).keys() == {lock.NAME}
