"""Processes that want one date's lock at the same time, where a killed one left its own."""

import json
import multiprocessing
import os
import socket
import subprocess
import sys
from pathlib import Path

from dare_job.errors import InfrastructureError
from dare_job.storage import lock

_CONTEXT = multiprocessing.get_context("spawn")
WRITERS, ROUNDS = 4, 60


def _contend(folder: Path, rounds, refused, inside, alone) -> None:
    """Take the lock once a round; ``alone`` goes false where another process was inside too."""
    for number in range(ROUNDS):
        rounds.wait(60)
        try:
            with lock.held(folder / str(number)):
                with inside.get_lock():
                    inside.value += 1
                    alone.value = alone.value and inside.value == 1
                for _ in range(200):
                    os.getppid()
                with inside.get_lock():
                    inside.value -= 1
        except InfrastructureError:
            with refused.get_lock():
                refused.value += 1


def _left_by_a_killed_process(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"pid": _ENDED, "born": "1", "host": socket.gethostname(), "since": "then"}))


def _ended() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


_ENDED = _ended() if __name__ != "__mp_main__" else 0


def test_a_dead_lock_goes_to_one_of_many_processes_at_a_time(tmp_path):
    for number in range(ROUNDS):
        _left_by_a_killed_process(tmp_path / str(number) / lock.NAME)
    rounds, refused = _CONTEXT.Barrier(WRITERS), _CONTEXT.Value("i", 0)
    inside, alone = _CONTEXT.Value("i", 0), _CONTEXT.Value("b", True)
    writers = [_CONTEXT.Process(target=_contend, args=(tmp_path, rounds, refused, inside, alone))
               for _ in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0] * WRITERS
    assert alone.value, "two processes held one lock"
    assert 0 < refused.value < WRITERS * ROUNDS
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
