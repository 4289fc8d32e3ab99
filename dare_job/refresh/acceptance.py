"""Tokens per decoding step of texts that were written without a previous text of their row, by pool.

A run records them in the manifest of each entity type (``record``, ``newest``), and the next plan computes
from them what a row without a previous text costs (``Rates``). The manifest has

    "without_previous": {"date": D, "mode": "dare", "steps": 5210, "tokens": 21340,
                         "kinds": {"attribute": [1210, 3920], ...}, "pools": {"attribute-drama": 3.24, ...}}

``kinds`` has steps and tokens by kind of pool; ``pools`` has tokens per step of the pools with ENOUGH_STEPS,
at most MAX_POOLS of them, those with the most steps. Pure functions of plain values: neither tables nor
Spark.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dare_job.config.decoding import DecodeSettings
from dare_job.refresh.value import TOKENS_PER_STEP

ENOUGH_STEPS = 200  # from which a rate is used: with some 2 tokens of deviation per step, it is good to 0.15
MAX_POOLS = 1000  # some 50 kB of a manifest
KEY = "without_previous"  # in the manifest and in the record of the stage generate
_DIGITS = 4

Sums = Mapping[tuple[str | None, str | None], tuple[int, int]]  # steps and tokens by pool and its kind


def default_rate(decode: DecodeSettings) -> float:
    """Tokens per step where no run has measured any: 1 without drafts, else roughly TOKENS_PER_STEP."""
    drafts = decode.mode == "beam" or decode.mode != "autoregressive" and decode.nodes != 0
    return TOKENS_PER_STEP if drafts else 1.0


def record(sums: Sums, date: str, mode: str) -> dict:
    """What a run measured, as JSON values."""
    kinds: dict[str, list[int]] = {}
    for (_, kind), amounts in sums.items():
        kinds[kind or "none"] = _added(kinds.get(kind or "none", [0, 0]), amounts)
    known = sorted((-steps, pool, tokens) for (pool, _), (steps, tokens) in sums.items()
                   if pool is not None and steps >= ENOUGH_STEPS)[:MAX_POOLS]
    steps, tokens = (sum(kind[place] for kind in kinds.values()) for place in range(2))
    return {"date": date, "mode": mode, "steps": steps, "tokens": tokens, "kinds": kinds,
            "pools": {pool: round(tokens / -minus, _DIGITS) for minus, pool, tokens in known}}


def newest(measured: dict | None, before: dict | None) -> dict | None:
    """The record to publish: this run's, or the earlier one (``before``) if this run measured too few steps.

    A run that wrote few new rows says little about them, and the earlier record of the same mode still holds.
    """
    if measured is None or before is None or measured["mode"] != before["mode"]:
        return measured or before
    return measured if measured["steps"] >= min(ENOUGH_STEPS, before["steps"]) else before


@dataclass(frozen=True)
class Rates:
    """Expected tokens per decoding step of rows without a previous text.

    Attributes
    ----------
    overall
        Of rows whose pool is not measured.
    kinds, pools
        By kind and by name of the pool, where enough steps were measured.
    date
        Of the run that the pools are from: another run may have given their names to other groups.
    """

    overall: float
    kinds: dict[str, float] = field(default_factory=dict)
    pools: dict[str, float] = field(default_factory=dict)
    date: str | None = None


def rates(measured: dict | None, mode: str, default: float) -> Rates:
    """The rates of a record of the same mode; with none, or too few steps, ``default`` for all rows."""
    if not measured or measured["mode"] != mode or measured["steps"] < ENOUGH_STEPS:
        return Rates(default)
    kinds = {kind: tokens / steps for kind, (steps, tokens) in sorted(measured["kinds"].items())
             if steps >= ENOUGH_STEPS}
    return Rates(measured["tokens"] / measured["steps"], kinds, dict(measured["pools"]), measured["date"])


def total(parts: Iterable[Mapping[str, list]]) -> dict[tuple[str | None, str | None], tuple[int, int]]:
    """Sums over chunks, each with [kind, steps, tokens] by pool; "" is the name of rows without a pool."""
    steps: Counter = Counter()
    tokens: Counter = Counter()
    for part in parts:
        for pool, (kind, more_steps, more_tokens) in part.items():
            steps[pool or None, kind] += more_steps
            tokens[pool or None, kind] += more_tokens
    return {key: (steps[key], tokens[key]) for key in steps}


def _added(sums: list[int], amounts: tuple[int, int]) -> list[int]:
    return [total + amount for total, amount in zip(sums, amounts, strict=True)]
