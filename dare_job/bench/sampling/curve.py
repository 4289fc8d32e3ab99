"""What steps cost where memory bounds them: data-sheet curves of a target and a draft model on one card.

The target is charged as Mistral-7B and the drafter as Qwen2.5-0.5B, both on an H100 by
``dare_job.evaluate.replay.latency``: a forward reads every weight once, so that a drafter's level takes 7 %
of a target's forward. Rows decoded together as in the run. Verdicts, drawing and looking up are not charged.
``here`` measures the same two models' forwards on this machine.
"""

import math

import numpy as np

from dare_job.bench.gpu import machine
from dare_job.bench.sampling.world import BATCH, World
from dare_job.decode.engine.latency import LatencyCurve, latency_ms
from dare_job.evaluate.replay.latency import H100, MISTRAL, QWEN, forward_ms

_QUERIES = (1, 2, 3, 5, 9, 17, 33, 65, 129, 257, 513)
ABOUT = "Mistral-7B drafted by Qwen2.5-0.5B's size on an H100, roofline of the data sheets"


def target_ms(queries: int, rows: int = BATCH) -> float:
    """Of a forward with as many queries a row."""
    return forward_ms(H100, MISTRAL, rows, queries)


def draft_ms(widths: tuple[int, ...], read: float = 1.0) -> float:
    """Of drafting a tree: a forward a level, over what was written since the last step (``read`` tokens),
    then over each level's nodes but the last's.
    """
    queries = [math.ceil(read), *np.cumprod(widths[:-1]).tolist()] if widths else []
    return sum(forward_ms(H100, QWEN, BATCH, count) for count in queries)


def target_table(nodes: int) -> np.ndarray:
    """float64 (nodes + 1,): of a root and so many drafts."""
    return np.array([target_ms(1 + count) for count in range(nodes + 1)])


def draft_table(levels: int) -> np.ndarray:
    """float64 (levels + 1,): of so many levels, each at the price of one query a row."""
    return draft_ms((1,)) * np.arange(levels + 1)


def speed_up(tokens: float, widths: tuple[int, ...], nodes: int) -> float:
    """Over plain sampling, of a step that writes so many tokens."""
    return tokens * target_ms(1) / (target_ms(1 + nodes) + draft_ms(widths, tokens))


def paths_speed_up(tokens: float, widths: tuple[int, ...]) -> float:
    """The same without tree attention: each path is a row of its own, with its own keys and values read."""
    paths = math.prod(widths)
    return tokens * target_ms(1) / (target_ms(1 + len(widths), BATCH * paths) + draft_ms(widths, tokens))


def here(world: World, nodes: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a forward by queries a row, of the target and of the distilled drafter."""
    queries = [count for count in _QUERIES if count <= nodes] + [nodes + 1]
    return {name: latency_ms(model, [BATCH], queries, 15)[str(BATCH)]
            for name, model in (("target", world.target), ("drafter", world.drafters["after"]))}


def about(world: World, dtype: str) -> dict:
    """What figures are of: models, machine, and the prices of memory-bound steps."""
    device = world.target.device
    return {"threads": 1, "parameters": world.target.model.num_parameters(), "dtype": dtype,
            "machine": machine.describe(device), "energy": machine.Meter(device).source,
            "memory_bound": ABOUT}


def tables_here(measured: dict[str, dict[str, float]], nodes: int, levels: int) -> tuple:
    """The two tables by what was measured here; a level as one query a row, which is the least."""
    target, drafter = (LatencyCurve.of({str(BATCH): measured[name]}, name) for name in ("target", "drafter"))
    return (np.array([target.ms(BATCH, 1 + count) for count in range(nodes + 1)]),
            drafter.ms(BATCH, 1) * np.arange(levels + 1))
