"""Two commands on one date at a URL: the second is refused, a dead one's lock is taken over."""

import json
import os
import re
import socket
import subprocess
import sys
import time

import pytest

from dare_job import files, lock, lock_object
from dare_job.errors import InfrastructureError

pytestmark = pytest.mark.spark


@pytest.fixture
def folder(store, request):
    return files.path(f"{store}/{re.sub('[^a-z_]', '-', request.node.name)}")


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
    assert not files.listing(folder)


@pytest.mark.parametrize("changes", [{}, {"pid": os.getpid()}])
def test_the_lock_of_a_dead_process_is_taken_over(folder, changes, caplog, monkeypatch):
    monkeypatch.setattr(lock_object._LOG, "propagate", True)
    leave(folder, **changes)
    with lock.held(folder):
        assert json.loads((folder / lock.NAME).read_text())["since"] != "then"
    assert "taken over" in caplog.text and not files.listing(folder)


def test_another_hosts_lock_is_taken_over_once_it_is_silent_for_long(folder, monkeypatch):
    leave(folder, host="elsewhere")
    with pytest.raises(InfrastructureError, match="on elsewhere, since then"), lock.held(folder):
        pass
    monkeypatch.setattr(lock_object, "STALE_S", 1.0)
    time.sleep(2.1)  # the store tells seconds
    with lock.held(folder):
        pass
    assert not files.listing(folder)


def test_a_lock_that_is_held_is_renewed_and_never_stale(folder, monkeypatch):
    monkeypatch.setattr(lock_object, "RENEW_S", 0.3)
    monkeypatch.setattr(lock_object, "STALE_S", 2.0)
    monkeypatch.setattr(lock, "has_ended", lambda owner: False)
    with lock.held(folder):
        time.sleep(3.2)
        with pytest.raises(InfrastructureError, match="another command writes"), lock.held(folder):
            pass
    assert not files.listing(folder)


def test_a_lock_that_was_lost_is_not_removed(folder, monkeypatch):
    with lock.held(folder):
        leave(folder, host="elsewhere")
    assert json.loads((folder / lock.NAME).read_text())["host"] == "elsewhere"
