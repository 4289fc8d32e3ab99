"""Memory-bound costs of steps: data-sheet curves of a target and a draft model on one card.

The target is charged as Mistral-7B and the draft model as Qwen2.5-0.5B, both on an H100 by
``dare_job.bench.roofline``: a forward pass reads every weight once, so that a level of drafting
takes 7 % of the target's forward pass. As many rows are decoded together as in the run. Verification,
sampling and retrieval are free. ``here`` measures the same two models' forward passes on this machine.
"""

import math

import numpy as np

from dare_job.bench.gpu import machine
from dare_job.bench.roofline import H100, MISTRAL, QWEN, forward_ms
from dare_job.bench.sampling.world import BATCH, World
from dare_job.decode.engine.latency import LatencyCurve, latency_ms

_QUERIES = (1, 2, 3, 5, 9, 17, 33, 65, 129, 257, 513)
ABOUT = "Mistral-7B and a draft model of the size of Qwen2.5-0.5B on an H100, from data sheets"


def target_ms(queries: int, rows: int = BATCH) -> float:
    """A forward pass of the target with this many queries per row."""
    return forward_ms(H100, MISTRAL, rows, queries)


def draft_ms(widths: tuple[int, ...], new: float = 1.0) -> float:
    """Drafting a tree: a forward pass per level.

    The first one reads the ``new`` tokens since the last step, the others the nodes of the level above.
    """
    queries = [math.ceil(new), *np.cumprod(widths[:-1]).tolist()] if widths else []
    return sum(forward_ms(H100, QWEN, BATCH, count) for count in queries)


def target_table(nodes: int) -> np.ndarray:
    """float64 (nodes + 1,): by number of draft tokens."""
    return np.array([target_ms(1 + count) for count in range(nodes + 1)])


def draft_table(levels: int) -> np.ndarray:
    """float64 (levels + 1,): by number of levels, each at the cost of one query per row."""
    return draft_ms((1,)) * np.arange(levels + 1)


def speed_up(tokens: float, widths: tuple[int, ...], nodes: int) -> float:
    """Over plain sampling, of a step that generates ``tokens`` tokens."""
    return tokens * target_ms(1) / (target_ms(1 + nodes) + draft_ms(widths, tokens))


def paths_speed_up(tokens: float, widths: tuple[int, ...]) -> float:
    """The same without tree attention: each path is a row of its own, with its own keys and values."""
    paths = math.prod(widths)
    return tokens * target_ms(1) / (target_ms(1 + len(widths), BATCH * paths) + draft_ms(widths, tokens))


def here(world: World, nodes: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a forward pass by queries per row, of the target and of the distilled draft model."""
    queries = [count for count in _QUERIES if count <= nodes] + [nodes + 1]
    return {name: latency_ms(model, [BATCH], queries, 15)[str(BATCH)]
            for name, model in (("target", world.target), ("drafter", world.drafters["after"]))}


def about(world: World, dtype: str) -> dict:
    """The models, the machine, and the prices of memory-bound steps."""
    device = world.target.device
    return {"threads": 1, "parameters": world.target.model.num_parameters(), "dtype": dtype,
            "machine": machine.describe(device), "energy": machine.Meter(device).source,
            "memory_bound": ABOUT}


def tables_here(measured: dict[str, dict[str, float]], nodes: int, levels: int) -> tuple:
    """The two tables from times measured here; a level costs one query per row, which is the minimum."""
    target, drafter = (LatencyCurve.of({str(BATCH): measured[name]}, name) for name in ("target", "drafter"))
    return (np.array([target.ms(BATCH, 1 + count) for count in range(nodes + 1)]),
            drafter.ms(BATCH, 1) * np.arange(levels + 1))
