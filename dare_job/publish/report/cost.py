"""What a run cost, from the price of a worker for an hour (``cost.per_gpu_hour`` of the run's settings)."""

from collections.abc import Mapping
from dataclasses import dataclass

from dare_job.publish.report import format
from dare_job.publish.report.nights import Night

_BASELINES = {"engine": "the engine without drafts", "generate": "transformers generate()"}


@dataclass(frozen=True)
class Cost:
    """Amounts in the user's currency.

    Attributes
    ----------
    allocated_s
        Allocated worker time in seconds, summed over workers.
    decoding_share
        Share of ``allocated_s`` in which they decoded.
    total
        Cost of ``allocated_s``.
    per_1000_texts
        None if no text was generated.
    autoregressive
        Cost of the same tokens at the rate of this run's baseline, with the same time outside decoding
        (loading, waiting, measuring the baseline); computed, not measured. None without a baseline.
    """

    allocated_s: float
    decoding_share: float | None
    total: float
    per_1000_texts: float | None
    autoregressive: float | None


def of(night: Night) -> Cost | None:
    """The cost of a date; None without a price, or if its manifest lacks the times."""
    price = ((night.first("settings") or {}).get("cost") or {}).get("per_gpu_hour")
    if price is None or night.allocated_s is None:
        return None
    per_s, written = price / 3600, night.total("counts", "written")
    total = night.allocated_s * per_s
    return Cost(night.allocated_s, night.worker_s / night.allocated_s if night.worker_s else None, total,
                1000 * total / written if written else None,
                None if night.saved_s is None else (night.allocated_s + night.saved_s) * per_s)


@dataclass(frozen=True)
class TimeShares:
    """Shares of the workers' decoding time; they add up to 1.

    Attributes
    ----------
    prompts
        Reading prompts, with previous texts.
    drafting
        Retrieval of drafts and their choice.
    steps
        Forward passes over drafts, verification and bookkeeping of each step.
    other
        Everything else: requests, detokenization, chunk files, waiting for rows.
    """

    prompts: float
    drafting: float
    steps: float
    other: float


def time_shares(worker_s: float | None, times_ms: Mapping[str, float]) -> TimeShares | None:
    """Shares of ``worker_s``, from sums of the columns decode_ms, retrieval_ms and prompt_ms in milliseconds.

    None without times, or for texts of a version that did not record the time of prompts.
    """
    if not worker_s or "prompt_ms" not in times_ms or not times_ms.get("decode_ms"):
        return None
    decode, drafting, prompts = (times_ms.get(name, 0.0) / 1e3 for name in (
        "decode_ms", "retrieval_ms", "prompt_ms"))
    whole = max(worker_s, decode)
    return TimeShares(prompts / whole, drafting / whole, max(0.0, decode - drafting - prompts) / whole,
                      (whole - decode) / whole)


def baseline_method(baseline: dict) -> str:
    """The method that a baseline was measured with, and the slower one if both were."""
    fastest = baseline.get("method")
    slower = [f" (faster than {_BASELINES[name]})" for name in baseline.get("rates", ()) if name != fastest]
    return _BASELINES.get(fastest, "–") + "".join(slower)


def words(cost: Cost) -> str:
    """One line for the last screen of a run."""
    line = f"Cost: {format.money(cost.total)} for {format.seconds(cost.allocated_s)} of allocated worker time"
    if cost.decoding_share is not None:
        line += f", {format.share(cost.decoding_share)} of it decoding"
    if cost.per_1000_texts is not None:
        line += f"; {format.money(cost.per_1000_texts)} per 1,000 texts"
    if cost.autoregressive is not None:
        line += f"; autoregressive decoding would cost {format.money(cost.autoregressive)} (computed)"
    return line
