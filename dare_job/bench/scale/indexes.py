"""What indexing old text takes, measured: time, bytes on disk, memory to build and to draft, time to open.

Texts are recombined from recorded ones in pieces of some twenty tokens, so that phrases repeat as they do in
recorded text, while there can be any number of them.
"""

import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from pools.draft import DraftSettings, draft, warm_up
from pools.index import Index

PIECE = 20
_MIB = 1 << 20
_ROWS, _NODES = 32, 16  # drafted for in each step


def recombined(recorded: list[np.ndarray], texts: int, tokens: int, seed: int = 0) -> list[np.ndarray]:
    """``texts`` texts of ``tokens`` token ids (int32), of pieces that begin anywhere in recorded text."""
    source = np.concatenate(recorded)
    pieces = -(-tokens // PIECE)
    starts = np.random.default_rng(seed).integers(0, max(1, source.size - PIECE), (texts, pieces))
    return list(source[starts[:, :, None] + np.arange(PIECE)].reshape(texts, -1)[:, :tokens])


def measure(recorded: Path, texts: int, tokens: int, kind: str) -> dict:
    """Build and save one pool, then open it and draft, each in a process of its own.

    recorded    token ids in an .npy file
    """
    with tempfile.TemporaryDirectory() as folder:
        asked = {"recorded": str(recorded), "tokens": tokens, "folder": str(Path(folder) / "pool")}
        built = _in_process("build", asked | {"texts": texts, "kind": kind})
        return built | _in_process("use", asked)


def _in_process(step: str, asked: dict) -> dict:
    done = subprocess.run([sys.executable, "-m", "dare_job.bench.scale.indexes", step, json.dumps(asked)],
                          check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _build(recorded: str, tokens: int, folder: str, texts: int, kind: str) -> dict:
    rows = recombined([np.load(recorded)], texts, tokens)
    Index.build(rows[:64], kind=kind)  # compiled, or loaded from the cache
    begun, begun_cpu = time.perf_counter(), time.process_time()
    index = Index.build(rows, kind=kind)
    build_s, cpu_s = time.perf_counter() - begun, time.process_time() - begun_cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB, the interpreter and the texts too
    index.save(folder)
    size = sum(file.stat().st_size for file in Path(folder).iterdir())
    return {"kind": kind, "texts": texts, "tokens": index.token_count, "seconds": round(build_s, 2),
            "cpu_s": round(cpu_s, 2), "tokens_per_cpu_s": round(index.token_count / cpu_s),
            "disk_mib": round(size / _MIB, 1), "bytes_per_token": round(size / index.token_count, 2),
            "build_memory_mib": memory // 1024}


def _use(recorded: str, tokens: int, folder: str) -> dict:
    """Memory that opening and drafting add: the process's own, and mapped pages, which processes share."""
    warm_up()
    context = np.stack(recombined([np.load(recorded)], _ROWS, tokens, seed=1))
    settings, budgets = DraftSettings(threads=1), np.full(_ROWS, _NODES, np.int32)
    before, begun = _resident_mib(), time.perf_counter()
    index = Index.open(folder, verify=True)
    opened = time.perf_counter() - begun
    for known in range(1, tokens):
        draft(context, np.full(_ROWS, known, np.int32), budgets, [(index,)] * _ROWS, settings)
    after = _resident_mib()
    return {"open_and_verify_ms": round(1e3 * opened, 1), "own_mib": round(after["Anon"] - before["Anon"], 1),
            "mapped_mib": round(after["File"] - before["File"], 1)}


def _resident_mib() -> dict[str, float]:
    status = Path("/proc/self/status").read_text()
    return {kind: int(size) / 1024 for kind, size in re.findall(r"Rss(Anon|File):\s+(\d+) kB", status)}


if __name__ == "__main__":
    print(json.dumps({"build": _build, "use": _use}[sys.argv[1]](**json.loads(sys.argv[2]))))
