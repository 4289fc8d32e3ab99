"""``bench sweep``: a tiny model of every architecture of the installed transformers, and what came out.

Each runs in a process of its own, with a time limit, so that the sweep survives crashes.
"""

import logging
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import transformers

from dare_job.bench.cli import command
from dare_job.bench.sweep import models, page
from dare_job.bench.sweep.attempt import CHANGED, in_own_process
from dare_job.config.options import option, words
from dare_job.errors import ConfigError

_GRACE_S = 5.0  # after which a terminated process is killed
_LOG = logging.getLogger(__name__)
_FAULTS = ("wrong", "crash")


@dataclass(frozen=True)
class Options:
    """Options of ``bench sweep``."""

    only: Sequence[str] = option("Model types, such as llama,qwen3; default: all.", (), parse=words)
    seconds: float = option("Seconds after which a model is stopped.", 240.0)
    workers: int = option("Number of models at the same time, each with one thread.", 1)
    page: Path | None = option("File for the page with the table, such as docs/reference/models.md.", None)

    def __post_init__(self):
        if unknown := sorted(set(self.only) - {name.partition(" (")[0] for name in models.names()}):
            raise ConfigError(f"--only {unknown[0]}: transformers {transformers.__version__} has no causal "
                              "language model of this type")
        for name in ("seconds", "workers"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"--{name} {getattr(self, name)} must be above 0")


def _faulty(options: Options, result: dict) -> bool:
    return any(result["counts"].get(outcome) for outcome in _FAULTS)


@command(Options, _faulty)
def main(options: Options) -> dict:
    """Decode with a tiny random model of every causal architecture and compare with `generate`, in float32.

    Each model decodes four prompts singly and in batches, without drafts, with drafts that hold the right
    tokens among wrong ones, and with drafts from its own texts. Takes about half an hour on one core. Exit
    code 1 if a text differs or a model crashes. The last line is one JSON object.
    """
    names = [name for name in models.names() if not options.only or name.partition(" (")[0] in options.only]
    rows = []
    for row in isolated(in_own_process, names, options.seconds, options.workers):
        rows.append(row)
        print(f"{len(rows):3}/{len(names)} {row['outcome']:10} {row['name']:45} "
              f"{row.get('accepted_per_step', '')!s:>5} {row['reason']}", flush=True)
    counts = dict(Counter(row["outcome"] for row in rows))
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    if options.page:
        options.page.write_text(page.text(rows, transformers.__version__, CHANGED), encoding="utf-8")
    return {"transformers": transformers.__version__, "counts": counts, "models": rows}


def isolated(function: Callable[[str], dict], names: Iterable[str], seconds: float,
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
