"""Compiled functions of the package: which are cached, and where."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher

from pools import jit

MODULES = [path.stem for path in Path(__file__).parents[2].glob("pools/*.py")]


def test_every_compiled_file_is_part_of_the_cache_stamp():
    root = Path(__file__).parents[2] / "pools"
    users = {path.stem for path in root.glob("*.py") if "from pools.jit import" in path.read_text()}
    assert users | {"jit", "tree"} == set(jit._COMPILED)


def test_only_what_python_calls_is_cached():
    """numba cannot inline a function that it loads from the cache."""
    cached = set()
    for name in MODULES:
        module = importlib.import_module(f"pools.{name}" if name != "__init__" else "pools")
        cached |= {value.py_func.__name__ for value in vars(module).values()
                   if isinstance(value, Dispatcher) and value.py_func.__module__ == module.__name__
                   and not isinstance(value._cache, NullCache)}
    assert cached == {"draft_rows", "_counts", "_gradient", "_grow",
                      "_pack", "_dense", "_pair", "_place", "common_prefixes"}


def test_a_read_only_installation_still_compiles(tmp_path):
    """numba then caches in NUMBA_CACHE_DIR; without any writable folder it compiles without a cache."""
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
