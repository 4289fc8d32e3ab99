"""Progress of a stage on a terminal and elsewhere."""

import json
import os
import pty
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from dare_job.observe import log, progress
from dare_job.tables import chunk_files


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Lines four times as often."""
    monkeypatch.setattr(progress, "_SILENT_S", 0.5)
    monkeypatch.setattr(progress, "_POLL_S", 0.1)


def commit(folder, n, *ids):
    rows = [{"entity_id": name, "run_id": "r", "tokens": 50, "target_steps": 10, "accepted_tokens": 25,
             "slot_steps": 20.0} for name in ids]
    chunk_files.write(folder / chunk_files.name(0, n), rows, busy_s=0.5)


def stage(folder) -> tuple[list[progress.Reading], float]:
    """Commit three files of rows in a wave of six rows, one of which was there before it began.

    What a listener heard, and the seconds before the wave.
    """
    heard = []
    commit(folder, 0, "before")
    log.to_stderr("auto")
    start = time.monotonic()
    with log.bound(stage="generate"), progress.reporting("running", 0.1, [heard.append]):
        shown(heard, "running")  # it is quiet at first
        before = time.monotonic() - start
        with progress.watching([folder], 6, "wave 1 of 2"):
            for n, ids in enumerate((("a", "b"), ("c", "d")), 1):
                time.sleep(0.4)
                commit(folder, n, *ids)
            shown(heard, "wave 1 of 2: 5 of 6 rows")
        with progress.doing("something else"):
            part_of_it(heard)
            shown(heard, "something else")
    return heard, before


@progress.doing("a part of it")
def part_of_it(heard):
    shown(heard, "a part of it")


def shown(heard: list[progress.Reading], words: str) -> None:
    """Wait for a reading that says so, and for a terminal, which is refreshed four times a second."""
    until = time.monotonic() + 30
    while not (heard and words in str(heard[-1])):
        assert time.monotonic() < until, words
        time.sleep(0.02)
    time.sleep(0.3)


def test_a_stage_says_how_far_it_is_in_lines_with_fields(tmp_path, capsys):
    heard, before = stage(tmp_path)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert lines[0]["event"].startswith("generate: running, ") and lines[0]["elapsed_s"] >= 0.5
    named = [line for line in lines if not line["event"].startswith("generate: running")]  # can end it
    assert named[-1]["event"].startswith("generate: something else") and "rows" not in named[-1]
    assert any(line["event"].startswith("generate: a part of it, ") for line in lines)
    at = max(n for n, line in enumerate(lines) if "rows" in line)
    last = lines[at]
    assert last["event"].startswith("generate: wave 1 of 2: 5 of 6 rows, 250 tokens")
    assert (last["rows"], last["rows_total"], last["tokens"]) == (5, 6, 250)
    assert (last["accepted_per_step"], last["busy_slots"], last["tokens_per_s"]) == (2.5, 0.5, 166.6667)
    per_row = (heard[at].elapsed_s - before) / 4  # of the four rows of this run
    assert last["eta_s"] == pytest.approx(per_row, rel=0.3) and " left" in last["event"]
    assert last["all_tokens_per_s"] == pytest.approx(50 / per_row, rel=0.3)
    assert len(heard) == len(lines)  # who is told hears what is logged


def test_a_terminal_has_one_line_that_is_gone_in_the_end(tmp_path, monkeypatch):
    ours, theirs = pty.openpty()
    for name, value in (("TERM", "xterm"), ("COLUMNS", "200")):
        monkeypatch.setenv(name, value)
    seen = []
    reader = threading.Thread(target=read_all, args=(ours, seen))
    reader.start()
    with open(theirs, "w", encoding="utf-8") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        stage(tmp_path)
    reader.join()
    os.close(ours)
    text = b"".join(seen).decode()
    assert "generate" in text and "running" in text and "wave 1 of 2: 5 of 6 rows, 250 tokens" in text
    assert "2.50 accepted per step" in text and " left" in text and "{" not in text
    assert text.rstrip().endswith("\x1b[2K") or "\x1b[2K" in text[-40:]  # the line is erased


def test_what_the_work_prints_stays_in_its_file(tmp_path, monkeypatch):
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    seen = []
    reader = threading.Thread(target=read_all, args=(ours, seen))
    reader.start()
    with (open(theirs, "w", encoding="utf-8") as terminal, open(tmp_path / "out", "w+") as out,
          monkeypatch.context() as patch):
        patch.setattr(sys, "stderr", terminal)
        patch.setattr(sys, "stdout", out)
        with progress.doing("working"):
            wait_until(lambda: b"working" in b"".join(seen))
            print("a [bold]line")
        out.seek(0)
        assert out.read() == "a [bold]line\n"
    reader.join()
    os.close(ours)
    assert b"line" not in b"".join(seen)


def test_a_notebook_has_one_line_that_is_gone_in_the_end(monkeypatch, capsys):
    """IPython is not installed; a notebook's shell is known by its kernel."""
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(
        get_ipython=lambda: SimpleNamespace(kernel="a kernel")))
    written = ""
    with progress.counting("generating texts", 4, unit="texts") as counter:
        counter.advance(3)
        until = time.monotonic() + 20
        while "3 of 4" not in written and time.monotonic() < until:
            time.sleep(0.05)
            written += capsys.readouterr().err
    written += capsys.readouterr().err
    assert "\rgenerating texts: 3 of 4 texts" in written and " elapsed" in written and "\n" not in written
    *_, last, end = written.split("\r")
    assert not last.strip() and end == ""


def wait_until(happened) -> None:
    until = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.05)


def read_all(file: int, seen: list[bytes]) -> None:
    while True:
        try:
            block = os.read(file, 65536)
        except OSError:  # its end is closed
            return
        seen.append(block)
        if not block:
            return
