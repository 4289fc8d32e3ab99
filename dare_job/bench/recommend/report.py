"""The rows that the command ends with, its tables, and its targets."""

import numpy as np
from rich.console import Console
from rich.table import Table

from dare_job.bench.recommend.measure import Measured, same
from dare_job.bench.recommend.methods import RELAXED, STRICT, Method
from dare_job.bench.recommend.world import World

_COLUMNS = ("method", "verification", "k", "n", "gamma", "temperature", "speedup_clock", "speedup_cpu",
            "speedup_memory_bound", "forwards_saved", "accepted_steps", "recall", "ndcg", "identical")


def row(world: World, method: Method, found: Measured, plain: Measured) -> dict:
    """speedup_clock, speedup_cpu: times as fast in wall-clock time, and by processor time.
    forwards_saved: times as
    many target forwards without drafts. identical: None where lists are sampled, as chance then has other
    uses for its numbers.
    """
    recall, ndcg = world.worth(found.leaves, method.k)
    strict = method.verification == STRICT
    identical, near = same(found, plain) if strict else (None, None)
    return {
        "method": method.name, "verification": method.verification, "k": method.k, "n": method.width,
        "gamma": method.depth, "temperature": method.temperature,
        "speedup_clock": plain.clock_ms / found.clock_ms, "speedup_cpu": plain.cpu_ms / found.cpu_ms,
        "speedup_memory_bound": float(plain.memory_bound_ms.mean() / found.memory_bound_ms.mean()),
        "forwards_saved": float(plain.forwards.mean() / found.forwards.mean()),
        "accepted_steps": found.accepted, "queries": float(found.queries.mean()), "recall": recall,
        "ndcg": ndcg, "identical": None if identical is None else identical == 1.0, "near_ties": near,
        "lossy": method.verification == RELAXED}


def targets(rows: list[dict], generate: dict | None, middle: int, device: str) -> list[dict]:
    """Each with its least value, what was reached, and whether it is met; the clock's are a GPU's alone."""
    speeds = [("forwards_saved", "times fewer target forwards"),
              ("speedup_memory_bound", "times as fast where memory bounds forwards")]
    if device == "cuda":
        speeds.append(("speedup_clock", "times as fast in wall-clock time"))
    strict = [one for one in rows if one["verification"] == STRICT]
    found = [{"target": "strict lists are those of plain beam search", "least": 1.0,
              "reached": float(np.mean([one["identical"] for one in strict]))}]
    for kind, least in ((STRICT, 1.8), (RELAXED, 2.0)):
        of_kind = [one for one in rows if one["verification"] == kind and one["k"] == middle]
        for name, words in speeds:
            if of_kind:
                best = max(of_kind, key=lambda one: one[name])
                found.append({"target": f"{kind} at K = {middle}, {words}", "least": least,
                              "reached": best[name], "by": best["method"]})
    if generate:
        found.append({"target": f"plain search over generate at K = {generate['k']}", "least": 3.0,
                      "reached": generate["speedup"]})
    return [one | {"met": one["reached"] >= one["least"]} for one in found]


def show(rows: list[dict], found: dict, aims: list[dict]) -> None:
    console = Console(highlight=False, width=150)
    table = Table(*(name.replace("_", " ") for name in _COLUMNS))
    for one in rows:
        table.add_row(*(_cell(one[name]) for name in _COLUMNS))
    console.print(table)
    for name in ("forced", "renormalised", "generate", "scheduler", "ablations"):
        console.print(f"{name}: {found[name]}", soft_wrap=True, markup=False)
    for one in aims:
        by = f" ({one['by']})" if "by" in one else ""
        verdict = "met   " if one["met"] else "MISSED"
        console.print(f"{verdict} {one['target']}: {one['reached']:.2f}{by}, at least {one['least']:g}",
                      markup=False, soft_wrap=True)


def _cell(value) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
