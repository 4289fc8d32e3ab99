"""The package is small enough for every executor: no torch, no Spark, nothing of the job."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher

from pools import jit

HEAVY = ("torch", "pyspark", "faiss", "transformers", "sklearn", "dare_job")
MODULES = ("attributes blend draft entry errors frontier index intervals jit kernel learn lengths live "
           "lookup manifest published router scratch store suffix")


def test_nothing_heavy_is_imported():
    code = (f"import sys\nfor m in {MODULES.split()!r}: __import__('pools.' + m)\n"
            f"print([m for m in {HEAVY!r} if m in sys.modules])")
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert {path.stem for path in (root / "pools").glob("*.py")} == {*MODULES.split(), "__init__", "tree"}


def test_every_compiled_file_is_part_of_the_stamp_of_the_cache():
    root = Path(__file__).parents[2] / "pools"
    users = {path.stem for path in root.glob("*.py") if "from pools.jit import" in path.read_text()}
    assert users | {"jit", "tree"} == set(jit._COMPILED)


def test_only_what_python_calls_is_cached():
    """A compiled function that another one calls could not be inlined once it comes out of the cache."""
    cached = set()
    for name in MODULES.split():
        module = importlib.import_module(f"pools.{name}")
        cached |= {value.py_func.__name__ for value in vars(module).values()
                   if isinstance(value, Dispatcher) and value.py_func.__module__ == module.__name__
                   and not isinstance(value._cache, NullCache)}
    assert cached == {"draft_rows", "_counts", "_gradient", "_grow",
                      "_pack", "_dense", "_pair", "_place", "_common"}


def test_a_read_only_installation_still_compiles(tmp_path):
    """Numba then caches in NUMBA_CACHE_DIR; with no writable folder at all it compiles without a cache."""
    code = ("from pools.jit import compiled\n@compiled\ndef f(x): return x + 1\n"
            "print(f(1), f.stats.cache_path)")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    script = tmp_path / "script.py"
    script.write_text(code)
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    for arguments, expected in (([script], f"2 {tmp_path}"), (["-c", code], "2 ")):  # no file, no cache
        done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True,
                              check=True)
        assert done.stdout.startswith(expected)
