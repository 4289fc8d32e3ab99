"""What a run cost, from the price of a worker for an hour (``cost.per_gpu_hour`` of the run's settings)."""

from dataclasses import dataclass

from dare_job.publish.report import format
from dare_job.publish.report.nights import Night

_BASELINES = {"engine": "the engine without drafts", "generate": "transformers generate()"}


@dataclass(frozen=True)
class Cost:
    """Amounts in the user's currency.

    Attributes
    ----------
    held_s
        Seconds for which workers were held, summed over workers.
    busy_share
        Share of ``held_s`` in which they decoded.
    total
        Cost of ``held_s``.
    per_1000_texts
        None if no text was generated.
    autoregressive
        Cost of the same tokens at the rate of this run's baseline, with the same time outside decoding
        (loading, waiting, measuring the baseline); computed, not measured. None without a baseline.
    """

    held_s: float
    busy_share: float | None
    total: float
    per_1000_texts: float | None
    autoregressive: float | None


def of(night: Night) -> Cost | None:
    """The cost of a date; None without a price, or if its manifest lacks the times."""
    price = ((night.first("settings") or {}).get("cost") or {}).get("per_gpu_hour")
    if price is None or night.held_s is None:
        return None
    per_s, written = price / 3600, night.total("counts", "written")
    total = night.held_s * per_s
    return Cost(night.held_s, night.worker_s / night.held_s if night.worker_s else None, total,
                1000 * total / written if written else None,
                None if night.saved_s is None else (night.held_s + night.saved_s) * per_s)


def baseline_method(baseline: dict) -> str:
    """The method that a baseline was measured with, and the slower one if both were."""
    fastest = baseline.get("method")
    slower = [f" (faster than {_BASELINES[name]})" for name in baseline.get("rates", ()) if name != fastest]
    return _BASELINES.get(fastest, "–") + "".join(slower)


def words(cost: Cost) -> str:
    """One line for the last screen of a run."""
    line = f"Cost: {format.money(cost.total)} for {format.seconds(cost.held_s)} of held worker time"
    if cost.busy_share is not None:
        line += f", {format.share(cost.busy_share)} of it decoding"
    if cost.per_1000_texts is not None:
        line += f"; {format.money(cost.per_1000_texts)} per 1,000 texts"
    if cost.autoregressive is not None:
        line += f"; autoregressive decoding would cost {format.money(cost.autoregressive)} (computed)"
    return line
