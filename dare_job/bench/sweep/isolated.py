"""Runs a function in processes of its own, each with a time limit, and survives their crashes."""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

_GRACE_S = 5.0  # after which a terminated process is killed


def run(function: Callable[[str], dict], names: Iterable[str], seconds: float,
        workers: int) -> Iterator[dict]:
    """Yield the result for each name in order; "outcome" crash if the process ends without one, or hangs.

    Processes are forked from a server that has imported the function's module once.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([function.__module__])
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(lambda name: _run(context, function, name, seconds), names)


def _run(context: Any, function: Callable[[str], dict], name: str, seconds: float) -> dict:
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(function, name, sending), daemon=True)
    process.start()
    sending.close()
    try:
        if receiving.poll(seconds):
            return receiving.recv()
        return _crash(name, f"not finished after {seconds:g} s")
    except EOFError:
        process.join(_GRACE_S)
        return _crash(name, f"the process ended with code {process.exitcode}")
    finally:
        process.terminate()
        process.join(_GRACE_S)
        process.kill()


def _call(function: Callable[[str], dict], name: str, connection: Connection) -> None:
    try:
        result = function(name)
    except Exception as error:  # of any class: it is what the sweep reports
        result = _crash(name, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    connection.send(result)


def _crash(name: str, reason: str) -> dict:
    return {"name": name, "class": None, "outcome": "crash", "reason": reason}
