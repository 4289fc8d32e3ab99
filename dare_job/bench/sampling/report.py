"""The bench's figures: lines of the tables, what they are held against, and how they are printed."""

import math

from rich.console import Console
from rich.table import Table

from dare_job.bench.sampling import curve
from dare_job.bench.sampling.acceptance import Acceptance
from dare_job.bench.sampling.measure import PLAIN, RETRIEVAL, Measured, Method
from dare_job.bench.sampling.world import BATCH

SD_SAME, SD_BEST, BEST = "SD (same depth)", "SD (best depth)", "MCSD (best tree)"
HERE = "MCSD (best tree for this machine)"
PATHS = "without tree attention"
ABLATION = (("MCSS with replacement", "iid", "mcss"), ("naive", "without_replacement", "naive"),
            ("K-SEQ", "iid", "k_seq"), ("greedy multi-draft", "greedy", "greedy"),
            ("traversal", "without_replacement", "traversal"))
_HIDDEN, _LIMITS = ("law", "steps", "tokens"), (2, 4, 8, 16, 24, 32, 64)
FORWARDS, SPEED, AT = 2.0, 1.8, 1.0  # at least, at this temperature, with the distilled drafter
LOST = 0.01  # share of tokens; rates are measured to about as much


def line(temperature: float, method: Method, found: dict[str, Measured], expected: float | None) -> dict:
    """Of one method at one temperature; expected: the search's tokens a step. error: standard
    error of the block efficiency, as if steps were independent.

    fewer_forwards  target forwards of plain sampling over the method's, prompts' included, for as many tokens
    """
    seen, plain = found[method.name], found[PLAIN]
    retrieved = method.drafter == RETRIEVAL
    law, rule = ("top_k", "naive") if retrieved else (method.law, method.rule)
    return {"temperature": temperature, "method": method.name, "drafter": method.drafter,
            "tree": "x".join(map(str, method.widths)), "nodes": method.size,
            "law": "" if method.drafter == "none" else law,
            "rule": "" if method.drafter == "none" else "strict" if temperature == 0 else rule,
            "steps": seen.steps, "tokens": seen.tokens, "block_efficiency": round(seen.per_step, 3),
            "error": round(seen.error, 3),
            "expected": None if expected is None else round(expected, 3),
            "fewer_forwards": round(seen.per_forward / plain.per_forward, 3),
            "target_tokens": method.target_tokens, "tokens_per_s": round(seen.tokens_per_s, 1),
            "ratio_to_plain": round(seen.tokens_per_s / plain.tokens_per_s, 3),
            "ratio_by_processor": round(seen.tokens_per_s_of_processor / plain.tokens_per_s_of_processor, 3),
            "memory_bound": round(_memory_bound(seen.per_step, method), 3),
            "joules_per_token": None if seen.joules is None else round(seen.joules / seen.tokens, 4)}


def _memory_bound(tokens: float, method: Method) -> float:
    if method.paths:
        return curve.paths_speed_up(tokens, method.widths)
    return curve.speed_up(tokens, method.widths, method.size)


def acceptance(temperature: float, drafter: str, found: Acceptance) -> list[dict]:
    """A line for each number of candidates that was measured; rates of the first level."""
    return [{"temperature": temperature, "drafter": drafter, "candidates": count, "rate": round(rate, 4),
             "error": round(math.sqrt(rate * (1 - rate) / max(1, found.steps[count])), 4)}
            for count, rate in sorted(found.first.items())]


def targets(rows: list[dict], limits: list[dict], device: str) -> list[dict]:
    """What lines are held against: target, bound, what was measured, whether that meets it, and whether it
    must (``missed``): the paper's monotonic rule need not hold. The clock is a GPU's alone: on a processor
    a forward costs by its tokens.
    """
    best = [row for row in rows if row["temperature"] == AT and row["method"] == BEST]
    speeds = [("fewer target forwards", "fewer_forwards", FORWARDS),
              ("speed-up where memory bounds steps", "memory_bound", SPEED)]
    if device == "cuda":
        speeds.append(("speed-up by the clock", "ratio_to_plain", SPEED))
    found = [{"target": f"temperature {AT:g}: {what}, at least", "bound": bound, "measured": row[key],
              "met": row[key] >= bound, "must": True} for row in best
             for what, key, bound in speeds]
    lost = max((one["lost"] for one in limits), default=0.0)
    return [*found, {"target": "what the best narrowing tree loses to the best, at any node limit, at most",
                     "bound": LOST, "measured": lost, "met": lost <= LOST, "must": False}]


def missed(held: list[dict]) -> str | None:
    """What to say of the targets that must be met and are not; None where all are."""
    return "; ".join(f"{one['target']} {one['bound']}: {one['measured']}" for one in held
                     if one["must"] and not one["met"]) or None


def show(rows: list[dict], found: dict, held: list[dict]) -> None:
    """Print the tables, what was held against, and what the columns mean."""
    console = Console(width=210)
    limits = [one for one in found["orders"] if one["nodes"] in _LIMITS]
    shown = [{key: value for key, value in row.items() if key not in _HIDDEN} for row in rows]
    for title, lines in (("entropy of the target, nats a token of its own texts", found["entropy"]),
                         ("accepted on the first level, by candidates", found["acceptance"]),
                         ("best trees by node limit: of all, that narrow, that get wider", limits),
                         ("ways of sampling", shown)):
        table = Table(title=title)
        for name in lines[0] if lines else ():
            table.add_column(name.replace("_", " "), overflow="fold")
        for one in lines:
            table.add_row(*("" if value is None else str(value) for value in one.values()))
        console.print(table)
    for name, each in found["forward_ms"].items():
        times = ", ".join(f"{queries}: {ms}" for queries, ms in each.items())
        console.print(f"{name} here, milliseconds of a forward of {BATCH} rows by queries a row: {times}")
    for one in held:
        console.print("{verdict}: {target} {bound}: {measured}".format(
            verdict="met" if one["met"] else "MISSED", **one))
    console.print("block efficiency: tokens a step; expected: by the search; memory bound: speed-up if steps "
                  f"cost {curve.ABOUT}, {BATCH} rows together")
