"""Two commands on one date: the second is refused, a dead one's lock is taken over."""

import json
import os
import socket
import subprocess
import sys
from datetime import date

import kill_points
import pytest

from dare_job import lock, pipeline
from dare_job.config import JobConfig
from dare_job.errors import InfrastructureError
from dare_job.job import Job
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
    monkeypatch.setattr(lock._LOG, "propagate", True)
    leave(tmp_path / lock.NAME, **changes)
    with lock.held(tmp_path):
        assert json.loads((tmp_path / lock.NAME).read_text())["since"] != "then"
    assert "has ended: taken over" in caplog.text and not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [json.dumps({"pid": 1, "host": "elsewhere", "since": "then"}), ""])
def test_a_lock_of_another_host_or_a_half_written_one_stays(tmp_path, content):
    (tmp_path / lock.NAME).write_text(content)
    with pytest.raises(InfrastructureError, match="remove"), lock.held(tmp_path):
        pass
    assert (tmp_path / lock.NAME).read_text() == content


def test_a_process_is_looked_up_where_its_number_is_its_own(monkeypatch):
    """A live process elsewhere may have a number that is nobody's here, or a dead one's may be somebody's."""
    monkeypatch.setattr(lock, "_namespace", lambda: {"boot": "this", "pid_ns": 1})
    alive = lock._signature()
    dead = {**alive, "born": "1"}
    assert lock.has_ended(dead) and not lock.has_ended(alive)
    assert lock.has_ended({**alive, "boot": "earlier"}) and lock.has_ended({**dead, "boot": "earlier"})
    assert lock.has_ended({**alive, "boot": "earlier", "pid_ns": 2})
    assert not lock.has_ended({**dead, "pid_ns": 2})
    assert not lock.has_ended({**dead, "boot": "earlier", "host": "elsewhere"})
    older = {name: value for name, value in dead.items() if name not in ("boot", "pid_ns")}
    assert lock.has_ended(older) and not lock.has_ended({**older, "born": alive["born"]})
    monkeypatch.setattr(lock, "_namespace", dict)  # a system without /proc
    assert lock.has_ended({**dead, "pid_ns": 2}) and not lock.has_ended({**alive, "boot": "earlier"})


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_a_lock_names_boot_and_pid_namespace_and_another_containers_stays(tmp_path):
    with lock.held(tmp_path):
        owner = json.loads((tmp_path / lock.NAME).read_text())
    asked = subprocess.run([sys.executable, "-c", "from dare_job import lock; print(lock._namespace())"],
                           capture_output=True, text=True, check=True).stdout
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


def test_a_process_killed_while_it_takes_or_leaves_a_lock_blocks_nobody(tmp_path):
    """Also one killed as it takes over a dead one's."""
    def prepare(name):
        (tmp_path / name).mkdir()
        leave(tmp_path / name / lock.NAME)
        return tmp_path / name

    folder = prepare("undisturbed")
    labels = kill_points.undisturbed(folder, hold, folder)
    assert {label.split()[0] for label in labels} == {"open", "sync", "link", "remove"}
    for n in range(len(labels)):
        folder = prepare(str(n))
        kill_points.killed(n, folder, hold, folder)
        with lock.held(folder):
            assert [path.name for path in folder.iterdir()] == [lock.NAME], labels[n]
        assert not list(folder.iterdir()), labels[n]
