"""The rows that the command ends with, its tables, and its targets."""

import numpy as np

from dare_job.bench.recommend.measure import Measured, same
from dare_job.bench.recommend.methods import RELAXED, STRICT, Method
from dare_job.bench.recommend.world import World
from dare_job.evaluate.measured import print_table, print_targets, target_row

_COLUMNS = ("method", "verification", "k", "n", "gamma", "temperature", "speedup_clock", "speedup_cpu",
            "speedup_memory_bound", "forwards_saved", "accepted_steps", "recall", "ndcg", "identical")


def row(world: World, method: Method, measured: Measured, plain: Measured) -> dict:
    """speedup_clock, speedup_cpu: speed-up over plain search by wall-clock and by processor time.
    forwards_saved: plain search's forward passes over this method's. identical: None for sampled items, as
    drafts change which random numbers are used.
    """
    recall, ndcg = world.quality(measured.leaves, method.k)
    strict = method.verification == STRICT
    identical, near = same(measured, plain) if strict else (None, None)
    return {
        "method": method.name, "verification": method.verification, "k": method.k, "n": method.width,
        "gamma": method.depth, "temperature": method.temperature,
        "speedup_clock": plain.clock_ms / measured.clock_ms, "speedup_cpu": plain.cpu_ms / measured.cpu_ms,
        "speedup_memory_bound": float(plain.memory_bound_ms.mean() / measured.memory_bound_ms.mean()),
        "forwards_saved": float(plain.forwards.mean() / measured.forwards.mean()),
        "accepted_steps": measured.accepted, "queries": float(measured.queries.mean()), "recall": recall,
        "ndcg": ndcg, "identical": None if identical is None else identical == 1.0, "near_ties": near,
        "lossy": method.verification == RELAXED}


def targets(rows: list[dict], generate: dict | None, middle: int, device: str) -> list[dict]:
    """Target, bound, measured value, and whether it is met; wall-clock targets apply to GPUs only."""
    speeds = [("forwards_saved", "times fewer target forwards"),
              ("speedup_memory_bound", "times as fast where memory bounds forwards")]
    if device == "cuda":
        speeds.append(("speedup_clock", "times as fast in wall-clock time"))
    identical = float(np.mean([each["identical"] for each in rows if each["verification"] == STRICT]))
    compared = [target_row("strict: share of rows with the items of plain beam search, at least", 1.0,
                       identical, identical == 1)]
    for kind, bound in ((STRICT, 1.8), (RELAXED, 2.0)):
        of_kind = [each for each in rows if each["verification"] == kind and each["k"] == middle]
        for name, words in speeds:
            if of_kind:
                best = max(of_kind, key=lambda each: each[name])
                compared.append(target_row(f"{kind} at K = {middle}, {words}, at least", bound,
                                       best[name], best[name] >= bound) | {"by": best["method"]})
    if generate:
        compared.append(target_row(f"plain search over generate at K = {generate['k']}, at least", 3.0,
                               generate["speedup"], generate["speedup"] >= 3.0))
    return compared


def show(rows: list[dict], others: dict, targets: list[dict]) -> None:
    """Print the table, the other figures and the targets."""
    print_table("Top-K by drafted beam search", rows, _COLUMNS)
    for name, figures in others.items():
        print(f"{name}: {figures}")
    print_targets(targets)
