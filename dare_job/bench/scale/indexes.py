"""What indexing old text takes, measured: time, bytes on disk, memory while building, time to open.

Texts are recombined from recorded ones in pieces of some twenty tokens, so that phrases repeat as they do in
recorded text, while there can be any number of them.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from pools.index import Index

PIECE = 20
_MIB = 1 << 20


def recombined(recorded: list[np.ndarray], texts: int, tokens: int, seed: int = 0) -> list[np.ndarray]:
    """``texts`` texts of ``tokens`` token ids (int32), of pieces that begin anywhere in recorded text."""
    source = np.concatenate(recorded)
    pieces = -(-tokens // PIECE)
    starts = np.random.default_rng(seed).integers(0, max(1, source.size - PIECE), (texts, pieces))
    return list(source[starts[:, :, None] + np.arange(PIECE)].reshape(texts, -1)[:, :tokens])


def measure(recorded: Path, texts: int, tokens: int, kind: str) -> dict:
    """Build, save and open one pool in a process of its own. ``recorded``: token ids in an .npy file."""
    asked = json.dumps({"recorded": str(recorded), "texts": texts, "tokens": tokens, "kind": kind})
    done = subprocess.run([sys.executable, "-m", "dare_job.bench.scale.indexes", asked], check=True,
                          capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _measure(recorded: str, texts: int, tokens: int, kind: str) -> dict:
    rows = recombined([np.load(recorded)], texts, tokens)
    Index.build(rows[:64], kind=kind)  # compiled, or loaded from the cache
    begun, begun_cpu = time.perf_counter(), time.process_time()
    index = Index.build(rows, kind=kind)
    build_s, cpu_s = time.perf_counter() - begun, time.process_time() - begun_cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB, the interpreter and the texts too
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder) / "pool")
        size = sum(file.stat().st_size for file in (Path(folder) / "pool").iterdir())
        begun = time.perf_counter()
        Index.open(Path(folder) / "pool", verify=True)
        opened = time.perf_counter() - begun
    return {"kind": kind, "texts": texts, "tokens": index.token_count, "seconds": round(build_s, 2),
            "cpu_s": round(cpu_s, 2), "tokens_per_cpu_s": round(index.token_count / cpu_s),
            "disk_mib": round(size / _MIB, 1), "bytes_per_token": round(size / index.token_count, 2),
            "build_memory_mib": memory // 1024, "open_and_verify_ms": round(1e3 * opened, 1)}


if __name__ == "__main__":
    print(json.dumps(_measure(**json.loads(sys.argv[1]))))
