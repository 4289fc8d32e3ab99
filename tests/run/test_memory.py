"""Out of memory in the middle of a shard: nothing lost, nothing twice, the same text."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from shard_helpers import committed, prepared, prompt, sizes, write

from dare_job.decode.model.target import Target

PROMPTS = {f"u{n:02d}": prompt(n) for n in range(14)}
LARGE = "User with very many films: " + "space operas and heist films, " * 20
DEVICE = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
ALLOCATOR = RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """What the rows say where memory is plenty."""
    return said(write(prepared(tmp_path_factory.mktemp("plenty")), PROMPTS), PROMPTS)


@pytest.fixture
def refuse(monkeypatch):
    """Factory: forwards fail with an error where ``too_much(cache, ids, number of the cache's forward)``."""
    plain = Target._forward

    def make(error, too_much):
        def forward(self, ids, positions, mask, cache, **options):
            cache.forwards = getattr(cache, "forwards", 0) + 1
            if too_much(cache, ids, cache.forwards):
                raise error
            return plain(self, ids, positions, mask, cache, **options)

        monkeypatch.setattr(Target, "_forward", forward)
    return make


def said(rows: dict[str, dict], names) -> dict[str, list[int]]:
    """Token ids by id; every row is there, once (``committed``) and whole."""
    assert sorted(rows) == sorted(names)
    assert all(len(row["token_ids"]) == row["tokens"] == 20 for row in rows.values() if not row["error"])
    return {name: row["token_ids"] for name, row in rows.items()}


@pytest.mark.parametrize(("error", "room", "forward"), [
    (DEVICE, 2, 1), (DEVICE, 1, 5), (ALLOCATOR, 2, 4), (MemoryError(), 1, 2)],
    ids=["in the prompts", "in a step", "on the CPU", "of Python"])
def test_the_batch_is_halved_and_its_rows_start_again(
        tmp_path, refuse, texts, job_log, error, room, forward):
    task = prepared(tmp_path)
    refuse(error, lambda cache, ids, number: cache.slots > room and number >= forward)
    assert said(write(task, PROMPTS), PROMPTS) == texts
    tries = [4 >> n for n in range(3) if 4 >> n > room]
    expected = [f"out of memory with {size} rows in a batch (decode.batch_size): this worker continues with "
                f"{size // 2}" for size in tries]
    assert [line for line in job_log if "out of memory with" in line] == expected
    assert sizes(task) == [room] * 4
    more = {f"v{n}": prompt(n) for n in range(3)}
    rows = write(task, more, shard=1)
    assert rows["v2"]["token_ids"] == texts["u02"] and sizes(task) == [room] * 5
    assert len(job_log) == len(tries)  # remembered


def test_memory_that_gets_short_late_costs_no_finished_row(tmp_path, refuse, texts):
    task, chunks = prepared(tmp_path), tmp_path / "entity=user"
    refuse(DEVICE, lambda cache, ids, number: cache.slots == 4 and len(list(chunks.iterdir())) > 1)
    assert said(write(task, PROMPTS), PROMPTS) == texts and sorted(sizes(task)) == [2, 2, 4, 4]


@pytest.mark.slow
def test_a_row_that_does_not_fit_alone_gets_an_error_and_the_batch_its_size_back(tmp_path, refuse, texts):
    task = prepared(tmp_path)
    rows = {**PROMPTS, "u05": LARGE, "u09": LARGE}
    refuse(DEVICE, lambda cache, ids, number: ids.shape[1] > 100)
    written = write(task, rows)
    bad = {name for name, row in written.items() if row["error"]}
    assert bad == {"u05", "u09"}
    assert "out of memory with this row alone, whose prompt has" in written["u05"]["error"]
    assert "history.max_items" in written["u05"]["error"] and written["u05"]["knowledge"] is None
    assert {name: row["token_ids"] for name, row in written.items() if name not in bad} == {
        name: ids for name, ids in texts.items() if name not in bad}
    again = write(task, {f"v{n}": prompt(n) for n in range(4)}, shard=1)
    assert len(again) == 18 and sizes(task)[-1] == 4


SCRIPT = """
import json, resource, sys
from pathlib import Path
from shard_helpers import prepared, write

rows = json.loads(sys.argv[2])
write(prepared(Path(sys.argv[1]) / "before"), dict(list(rows.items())[:4]))  # loads, and compiles
used = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (used + (200 << 20), resource.RLIM_INFINITY))
write(prepared(Path(sys.argv[1]) / "short", batch_size=1024), rows)
"""


@pytest.mark.release
@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on memory as Linux has it")
def test_memory_that_really_runs_out_ends_in_a_smaller_batch(tmp_path, texts):
    """The caches of 1024 and of 512 rows take over a gigabyte; the process may have 200 MB more."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path), json.dumps(PROMPTS)],
                          env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "out of memory with 1024 rows in a batch" in done.stderr
    task = prepared(tmp_path / "short")
    assert said(committed(task), PROMPTS) == texts
    assert 1 < max(sizes(task)) < 1024
