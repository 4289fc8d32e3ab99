"""Two commands on one date: the second is refused, a dead one's lock is taken over."""

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import date

import kill_points
import pytest

from dare_job import pipeline
from dare_job.config.settings import JobConfig
from dare_job.errors import InfrastructureError
from dare_job.job import Job
from dare_job.storage import lease, lock
from dare_job.storage import lease as storage_lease
from dare_job.storage.lease import owner_has_ended, owner_record
from dare_job.workspace import Workspace


def leave(path, **changes):
    """A lock as a process would leave it; by default of one that ended on this host."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    owner = {"pid": ended.pid, "born": "1", "host": socket.gethostname(), "since": "then", **changes}
    path.write_text(json.dumps(owner))


def test_a_second_writer_is_refused_and_the_lock_goes_with_the_first(tmp_path):
    with lock.held(tmp_path / "work"):
        owner = json.loads((tmp_path / "work" / lock.NAME).read_text())
        assert owner["pid"] == os.getpid() and owner["host"] == socket.gethostname()
        with (pytest.raises(InfrastructureError, match=f"process {os.getpid()} on .*{lock.NAME}"),
              lock.held(tmp_path / "work")):
            pass
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.parametrize("changes", [{}, {"pid": os.getpid()}])
def test_the_lock_of_a_dead_process_is_taken_over(tmp_path, caplog, monkeypatch, changes):
    """Also where its number belongs to another process now."""
    monkeypatch.setattr(logging.getLogger("dare_job"), "propagate", True)
    leave(tmp_path / lock.NAME, **changes)
    with lock.held(tmp_path):
        assert json.loads((tmp_path / lock.NAME).read_text())["since"] != "then"
    assert "which has ended" in caplog.text and not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [json.dumps({"pid": 1, "host": "elsewhere", "since": "then"}), ""])
def test_a_lock_of_another_host_or_a_half_written_one_stays(tmp_path, content):
    (tmp_path / lock.NAME).write_text(content)
    with pytest.raises(InfrastructureError, match="remove"), lock.held(tmp_path):
        pass
    assert (tmp_path / lock.NAME).read_text() == content


def leave_elsewhere(path, silent_s: float) -> str:
    """A lock of a process on another host, which showed that it lives so long ago."""
    path.write_text(json.dumps({"pid": 1, "host": "elsewhere", "since": "then", "lease": "theirs"}))
    os.utime(path, times=(time.time() - silent_s,) * 2)
    return path.read_text()


def test_a_lock_of_another_host_is_taken_over_once_it_was_silent_for_ten_minutes(tmp_path, caplog):
    content = leave_elsewhere(tmp_path / lock.NAME, 580)
    with pytest.raises(InfrastructureError, match="on elsewhere, since then"), lock.held(tmp_path):
        pass
    assert (tmp_path / lock.NAME).read_text() == content and lock.owner_of(tmp_path)["pid"] == 1
    leave_elsewhere(tmp_path / lock.NAME, 620)
    assert lock.owner_of(tmp_path) is None
    with lock.held(tmp_path):
        assert json.loads((tmp_path / lock.NAME).read_text())["pid"] == os.getpid()
    assert not list(tmp_path.iterdir())


def test_a_half_written_lock_expires_like_one_of_another_host(tmp_path):
    """A kill leaves one where the filesystem has no hard links."""
    (tmp_path / lock.NAME).touch()
    os.utime(tmp_path / lock.NAME, times=(time.time() - 620,) * 2)
    with lock.held(tmp_path):
        assert json.loads((tmp_path / lock.NAME).read_text())["pid"] == os.getpid()
    assert not list(tmp_path.iterdir())


def test_of_many_that_find_a_silent_lock_one_gets_it(tmp_path):
    leave_elsewhere(tmp_path / lock.NAME, 700)
    start, got = threading.Barrier(8), []

    def take() -> None:
        start.wait()
        with suppress(InfrastructureError), lock.held(tmp_path):
            got.append(1)
            time.sleep(0.5)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1 and not list(tmp_path.iterdir())


def test_a_held_lock_shows_that_it_lives_and_one_that_was_lost_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "RENEW_S", 0.1)
    path = tmp_path / lock.NAME
    with lock.held(tmp_path):
        os.utime(path, times=(0, 0))
        until = time.monotonic() + 30
        while path.stat().st_mtime < 1 and time.monotonic() < until:
            time.sleep(0.05)
        assert path.stat().st_mtime > 1e9
        lock.require_held()
        theirs = leave_elsewhere(path, 0)
        with pytest.raises(InfrastructureError, match="no longer held by this command"):
            lock.require_held()
    assert path.read_text() == theirs, "the other one's lock was removed, or touched"


def test_a_process_is_looked_up_where_its_number_is_its_own(monkeypatch):
    """A live process elsewhere may have a number that is nobody's here, or a dead one's may be somebody's."""
    monkeypatch.setattr(storage_lease, "_host_identity", lambda: {"boot": "this", "pid_ns": 1})
    alive = owner_record()
    dead = {**alive, "born": "1"}
    assert owner_has_ended(dead) and not owner_has_ended(alive)
    assert owner_has_ended({**alive, "boot": "earlier"}) and owner_has_ended({**dead, "boot": "earlier"})
    assert owner_has_ended({**alive, "boot": "earlier", "pid_ns": 2})
    assert not owner_has_ended({**dead, "pid_ns": 2})
    assert not owner_has_ended({**dead, "boot": "earlier", "host": "elsewhere"})
    older = {name: value for name, value in dead.items() if name not in ("boot", "pid_ns")}
    assert owner_has_ended(older) and not owner_has_ended({**older, "born": alive["born"]})
    monkeypatch.setattr(storage_lease, "_host_identity", dict)  # a system without /proc
    assert owner_has_ended({**dead, "pid_ns": 2}) and not owner_has_ended({**alive, "boot": "earlier"})


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_a_lock_names_boot_and_pid_namespace_and_another_containers_stays(tmp_path):
    with lock.held(tmp_path):
        owner = json.loads((tmp_path / lock.NAME).read_text())
    program = "from dare_job.storage import lease; print(lease._host_identity())"
    asked = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert asked.strip() == str({name: owner[name] for name in ("boot", "pid_ns")})
    leave(tmp_path / lock.NAME, boot=owner["boot"], pid_ns=owner["pid_ns"] + 1)
    with pytest.raises(InfrastructureError, match="remove"), lock.held(tmp_path):
        pass
    leave(tmp_path / lock.NAME, boot=owner["boot"], pid_ns=owner["pid_ns"])
    with lock.held(tmp_path):
        pass


@pytest.mark.parametrize("command", [
    pipeline.run, pipeline.dry_run, lambda job: pipeline.run_stage(job, "publish")])
def test_commands_that_write_take_the_lock(tmp_path, command):
    job = Job(JobConfig(out=str(tmp_path)), Workspace(tmp_path, date(2026, 1, 2)), "run-1")
    with lock.held(job.space.work), pytest.raises(InfrastructureError, match="another command writes"):
        command(job)


def hold(folder) -> None:
    with lock.held(folder):
        pass


@pytest.mark.slow
def test_a_process_killed_while_it_takes_or_leaves_a_lock_blocks_nobody(tmp_path):
    """Also one killed as it takes over a dead one's."""
    folder = tmp_path / "work"
    folder.mkdir()
    leave(folder / lock.NAME)
    labels = kill_points.undisturbed(folder, hold, folder, copies=tmp_path / "killed")
    assert {label.split()[0] for label in labels} == {"open", "sync", "link", "remove"}
    for n in range(len(labels)):
        folder = tmp_path / "killed" / str(n)
        with lock.held(folder):
            assert [path.name for path in folder.iterdir()] == [lock.NAME], labels[n]
        assert not list(folder.iterdir()), labels[n]
