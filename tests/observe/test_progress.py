"""Progress of a stage on a terminal and elsewhere."""

import json
import os
import pty
import subprocess
import sys

import pytest

# a stage that commits three files of rows in a wave of six rows, one of which was there before it began
STAGE = """
import sys, time
from pathlib import Path
from dare_job.observe import log, progress
from dare_job.tables import chunk_files
folder, heard = Path(sys.argv[1]), []
def commit(n, *ids):
    rows = [{"entity_id": name, "run_id": "r", "tokens": 50, "target_steps": 10, "accepted_tokens": 25,
             "slot_steps": 20.0} for name in ids]
    chunk_files.write(folder / chunk_files.name(0, n), rows, busy_s=0.5)
commit(0, "before")
log.to_stderr("auto")
start = time.monotonic()
with log.bound(stage="generate"), progress.reporting(0.5, [heard.append]):
    while not heard:  # it is quiet for two seconds; then this says that a line was shown
        time.sleep(0.05)
    time.sleep(1)  # a terminal is refreshed four times a second
    before = time.monotonic() - start
    with progress.watching([folder], 6, "wave 1 of 2"):
        for n, ids in enumerate((("a", "b"), ("c", "d")), 1):
            time.sleep(0.8)
            commit(n, *ids)
        time.sleep(1.2)
    with progress.doing("something else"):
        time.sleep(1.2)
print(len(heard), before)
"""


def test_a_stage_says_how_far_it_is_in_lines_with_fields(tmp_path):
    done = subprocess.run([sys.executable, "-c", STAGE, str(tmp_path)], capture_output=True, text=True,
                          check=True, timeout=60)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert lines[0]["event"].startswith("generate: running, ") and lines[0]["elapsed_s"] >= 2
    assert lines[-1]["event"].startswith("generate: something else") and "rows" not in lines[-1]
    last = [line for line in lines if "rows" in line][-1]
    assert last["event"].startswith("generate: wave 1 of 2: 5 of 6 rows, 250 tokens")
    assert (last["rows"], last["rows_total"], last["tokens"]) == (5, 6, 250)
    assert (last["accepted_per_step"], last["busy_slots"], last["tokens_per_s"]) == (2.5, 0.5, 166.6667)
    told, before = done.stdout.split()
    per_row = (last["elapsed_s"] - float(before)) / 4  # of the four rows of this run
    assert last["eta_s"] == pytest.approx(per_row, rel=0.3) and " left" in last["event"]
    assert last["all_tokens_per_s"] == pytest.approx(50 / per_row, rel=0.3)
    assert int(told) == len(lines)  # who is told hears what is logged


def test_a_terminal_has_one_line_that_is_gone_in_the_end(tmp_path):
    ours, theirs = pty.openpty()
    run = subprocess.Popen([sys.executable, "-c", STAGE, str(tmp_path)], stderr=theirs,
                           stdout=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm", "COLUMNS": "200"})
    os.close(theirs)
    seen = b""
    while True:
        try:
            block = os.read(ours, 65536)
        except OSError:  # its end is closed
            break
        seen += block
        if not block:
            break
    os.close(ours)
    assert run.wait(60) == 0
    text = seen.decode()
    assert "generate" in text and "running" in text and "wave 1 of 2: 5 of 6 rows, 250 tokens" in text
    assert "2.50 accepted per step" in text and " left" in text and "{" not in text
    assert text.rstrip().endswith("\x1b[2K") or "\x1b[2K" in text[-40:]  # the line is erased
