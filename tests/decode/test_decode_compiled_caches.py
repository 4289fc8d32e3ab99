"""Cached compiled code depends on its own file and the files of all functions that it calls."""

import importlib
import pkgutil
from pathlib import Path

from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher

import dare_job.decode


def _cached() -> dict[str, Dispatcher]:
    found = {}
    for module in pkgutil.walk_packages(dare_job.decode.__path__, "dare_job.decode."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Dispatcher) and not isinstance(value._cache, NullCache):
                found[f"{value.py_func.__module__}.{value.py_func.__name__}"] = value
    return {name: one for name, one in found.items() if name.startswith("dare_job.")}


def _files(function, known: set) -> set[Path]:
    """Return the files of a compiled function and of the functions that it calls."""
    if function in known:
        return set()
    known.add(function)
    code, names = function.py_func.__code__, function.py_func.__globals__
    called = (names.get(name) for name in code.co_names)
    return {Path(code.co_filename)}.union(
        *(_files(one, known) for one in called if isinstance(one, Dispatcher)))


def test_a_change_in_any_file_of_a_cached_function_compiles_it_again():
    several = 0
    for name, function in _cached().items():
        files = _files(function, set())
        if len(files) > 1:
            several += 1
            assert files <= set(getattr(function, "sources", ())), name
    assert several >= 3
