"""What reading a prompt costs, and what a shared prefix saves of it: the limits in ``decode/prefixes.py``.

    python -m dare_job.bench.prefix [--rows 1,8] [--rest 16,64,128] [--prefix 4,8,16,32,128]

A prompt's forward over ``prefix + rest`` tokens a row, beside one over the rest alone behind a prefix that
is kept, in turn, on one thread; medians of ``repeats``. The first table is the forward of one prompt: what it
costs to learn a prefix. The last line is JSON.
"""

import json
import statistics
import time
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from dare_job.decode.model.prefix_cache import Prefix
from dare_job.decode.model.target import Target
from dare_job.models.files import resolve


def main(
    model: Annotated[str, typer.Option(help="Model: embedded, a folder or a name.")] = "embedded",
    rows: Annotated[str, typer.Option(help="Rows in one forward.")] = "1,8",
    rest: Annotated[str, typer.Option(help="Tokens of a prompt behind its prefix.")] = "16,64,128",
    prefix: Annotated[str, typer.Option(help="Tokens of the prefix.")] = "4,8,16,32,128",
    repeats: Annotated[int, typer.Option(help="Times each forward runs.")] = 15,
) -> None:
    """Time prompts with and without a prefix that was read before."""
    torch.set_num_threads(1)
    target = Target.load(resolve(model))
    counts, rests, lengths = ([int(n) for n in text.split(",")] for text in (rows, rest, prefix))
    found = [_case(target, count, tokens, length, repeats)
             for count in counts for tokens in rests for length in lengths]
    alone = {length: _alone(target, length, repeats) for length in [1, *lengths]}
    _report(found, alone)


def _case(target: Target, rows: int, rest: int, length: int, repeats: int) -> dict:
    cache, slots = target.new_cache(rows), np.arange(rows)
    ids = np.random.default_rng(0).integers(0, target.vocabulary, (rows, length + rest))
    ids[:] = np.where(np.arange(length + rest) < length, ids[:1], ids)
    lengths = np.full(rows, length + rest)
    target.prefill(cache, slots, ids, lengths)
    prefix = Prefix(ids[0, :length].astype(np.int32), cache.entries(0, length))
    whole, behind = _milliseconds([
        lambda: target.prefill(cache, slots, ids, lengths),
        lambda: target.prefill(cache, slots, ids, lengths, None, prefix)], repeats, target.device)
    return {"rows": rows, "prefix": length, "rest": rest, "whole_ms": round(whole, 3),
            "behind_prefix_ms": round(behind, 3), "ratio": round(behind / whole, 3)}


def _alone(target: Target, length: int, repeats: int) -> float:
    """Milliseconds of one prompt's forward."""
    cache, ids, lengths = target.new_cache(1), np.zeros((1, length), np.int64), np.array([length])
    calls = [lambda: target.prefill(cache, np.arange(1), ids, lengths)]
    return _milliseconds(calls, repeats, target.device)[0]


def _milliseconds(calls: list, repeats: int, device: torch.device) -> list[float]:
    """Median of each call, run in turn: of this thread's time on a CPU, of the clock elsewhere."""
    clock = time.thread_time if device.type == "cpu" else time.perf_counter
    seconds = [[] for _ in calls]
    for _ in range(repeats + 2):
        for call, taken in zip(calls, seconds, strict=True):
            began = clock()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            taken.append(clock() - began)
    return [1e3 * statistics.median(taken[2:]) for taken in seconds]


def _report(found: list[dict], alone: dict[int, float]) -> None:
    console = Console(width=110)
    first, second = Table("tokens of one prompt", "ms"), Table(*found[0])
    for length, taken in alone.items():
        first.add_row(str(length), f"{taken:.3f}")
    for line in found:
        second.add_row(*(str(value) for value in line.values()))
    console.print(first, second)
    print(json.dumps({"alone_ms": alone, "rows": found}))


if __name__ == "__main__":
    typer.run(main)
