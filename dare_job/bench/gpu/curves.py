"""Time of one step by rows, queries per row and context, beside the lower bound by its bytes and FLOPs."""

import numpy as np
import torch

from dare_job.bench.gpu.machine import Budget, Ceilings, median_ms, release
from dare_job.bench.gpu.shapes import costs
from dare_job.decode.engine.latency import chains
from dare_job.decode.model.paged.forward import PagedForward, argmax_tokens
from dare_job.decode.model.target import Target

QUERIES = (1, 2, 4, 8, 16, 32, 64)
MAX_QUERIES = 1024  # of one forward pass
WAYS = ("eager", "fixed shapes", "graph", "graph, compiled")  # the engine runs the last one


def step_ms(target: Target, rows: int, queries: int, context: int, repeats: int) -> float:
    """Median of a strict step's forward pass, from the tree on the host to argmax tokens on the host.

    The cache holds zeros: the values of keys and values do not affect the time.
    """
    tree, lengths = chains(rows, queries), np.full(rows, context)
    cache = target.new_cache(rows)

    def step():
        if target.paged is not None:
            target.verified(cache, tree, lengths, argmax_tokens)
        else:
            target.forward(cache, tree.to(target.device), lengths).argmax(-1).cpu()

    return median_ms(step, target.device, repeats)


def measure(target: Target, name: str, limits: Ceilings, budget: Budget, until: float, batches: tuple,
            contexts: tuple, repeats: int, queries: tuple = QUERIES) -> list[dict]:
    """Rows of the curve, the most important first, until ``until`` seconds of the run are spent."""
    lines = []
    points = [(context, rows, each) for context in contexts for rows in batches for each in queries
              if rows * each <= max(MAX_QUERIES, rows)]
    for number, (context, rows, each) in enumerate(points):
        if budget.spent > until:
            budget.note(f"{name}: the last {len(points) - number} points of the latency curve are left out "
                        "for lack of time")
            break
        try:
            ms = step_ms(target, rows, each, context, repeats)
        except torch.OutOfMemoryError:
            budget.note(f"{name}, context {context}, {rows} x {each}: left out for lack of memory")
            continue
        finally:
            release(target.device)
        floor = limits.floor_ms(*costs(target.model, rows, rows * each, context))
        lines.append({"model": name, "context": context, "rows": rows, "queries": each, "ms": round(ms, 3),
                      "floor_ms": round(floor, 3), "times_floor": round(ms / floor, 2)})
        budget.say("{model}, context {context}, {rows} x {queries}: {ms} ms, {times_floor} of the floor"
                   .format(**lines[-1]))
    return lines


def ways(target: Target, name: str, batches: tuple, context: int, repeats: int) -> list[dict]:
    """The step of one query per row in every way of running it."""
    cuda, own = target.device.type == "cuda", target.paged
    kinds = dict(zip(WAYS, (None, (False, False), (True, False), (True, True)), strict=True))
    lines = []
    for rows in batches:
        for way, kind in kinds.items():
            if kind is not None and (kind[0] and not cuda or own is None):
                continue
            target.paged = kind and PagedForward(target.model, target.traits, *kind)
            ms = step_ms(target, rows, 1, context, repeats)
            if kind is None or not kind[0] or target.paged.records:  # otherwise it could not be recorded
                lines.append({"model": name, "context": context, "rows": rows, "way": way,
                              "ms": round(ms, 3)})
            release(target.device)
    target.paged = own
    return lines


def dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32
