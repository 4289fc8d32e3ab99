"""Lengths of the generated texts: a histogram of each entity type, with that of the date before."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import Markup

from dare_job.errors import DareJobError
from dare_job.publish.report import format, nights, plot, svg
from dare_job.publish.report.collect import Collected, add_lengths
from dare_job.publish.report.nights import Night
from dare_job.storage.paths import AnyPath
from dare_job.tables import published

_WIDTH, _HEIGHT, _BASE, _TOP = 420, 150, 120, 16
_BARS = 40


@dataclass(frozen=True)
class Lengths:
    """Lengths of the texts of one entity type, in tokens.

    Attributes
    ----------
    cut_off
        Share of the generated texts that reached their length limit.
    limit
        Decode.max_new_tokens; None if the manifest lacks it.
    """

    entity: str
    texts: int
    median: int
    longest: int
    cut_off: float
    limit: int | None
    median_before: int | None
    chart: Markup


def of(out: AnyPath, night: Night, before: Night | None, collected: list[Collected]) -> list[Lengths]:
    """The lengths of each entity type with generated texts."""
    lengths = []
    limit = (night.first("new_tokens") or [None, None])[1]
    for part in collected:
        if not part.lengths.any():
            continue
        old = _of_date(nights.folder(out, part.entity, before.dt), before.dt) if before else np.zeros(1, int)
        cut_off = part.finished["length"] / part.fresh
        lengths.append(Lengths(
            part.entity, int(part.lengths.sum()), _median(part.lengths), len(part.lengths) - 1, cut_off,
            limit, _median(old) if old.any() else None, _chart(part, old, limit, before and before.dt)))
    return lengths


def _of_date(folder: AnyPath, dt: str) -> np.ndarray:
    """Number of texts that a date generated, by tokens; none if its files cannot be read."""
    lengths, columns = np.zeros(1, np.int64), ["generated_dt", "tokens"]
    try:
        for batch in published.dataset(folder).to_batches(columns=columns, batch_size=1 << 16,
                                                          batch_readahead=2):
            new = pc.fill_null(pc.equal(batch["generated_dt"], dt), False)
            lengths = add_lengths(lengths, batch["tokens"].filter(new))
    except (DareJobError, OSError, pa.ArrowException):
        return np.zeros(1, np.int64)
    return lengths


def _median(lengths: np.ndarray) -> int:
    return int(np.searchsorted(np.cumsum(lengths), (lengths.sum() + 1) // 2))


def _chart(part: Collected, old: np.ndarray, limit: int | None, old_dt: str | None) -> Markup:
    """Bars: this run; line: the date before. Both as shares of their texts."""
    longest = max(len(part.lengths), len(old), (limit or 0) + 1)
    step = -(-longest // _BARS)
    new_bars, old_bars = (_binned(lengths, step, longest) for lengths in (part.lengths, old))
    highest = max(new_bars.max(), old_bars.max())
    at = _WIDTH / (step * len(new_bars))  # of a token
    parts = [svg.line(0, _BASE, _WIDTH, _BASE, "axis")]
    for n, value in enumerate(new_bars.tolist()):
        if value:
            tall = max((_BASE - _TOP) * value / highest, 1)
            parts.append(svg.rect(n * step * at + 0.5, _BASE - tall, max(step * at - 1, 0.5), tall, "bar",
                                  f"{n * step} to {n * step + step - 1} tokens: {format.share(value)}"))
    if old_bars.any():
        heights = _BASE - (_BASE - _TOP) * old_bars / highest
        points = [(x * step * at, y) for n, y in enumerate(heights.tolist()) for x in (n, n + 1)]
        parts.append(svg.path(points, "outline", f"{old_dt}"))
    for tick in plot.ticks(0, longest - 1)[:-1]:
        parts += [svg.line(tick * at, _BASE, tick * at, _BASE + 3, "axis"),
                  svg.text(tick * at, _BASE + 14, f"{tick:g}", "tick", "middle" if tick else "start")]
    if limit is not None:
        x = min((limit + 0.5) * at, _WIDTH - 1)
        parts += [svg.line(x, _TOP - 4, x, _BASE, "mark high"),
                  svg.text(x, _TOP - 6, f"max_new_tokens {limit}", "tick", "end" if x > 90 else "start")]
    parts.append(svg.text(_WIDTH, _HEIGHT - 2, "tokens", "tick", "end"))
    description = (f"Tokens of {format.count(part.lengths.sum())} generated {part.entity} texts: median "
                   f"{_median(part.lengths)}, longest {len(part.lengths) - 1}")
    if old.any():
        description += f"; on {old_dt} the median was {_median(old)}"
    return svg.svg(_WIDTH, _HEIGHT, description, parts, "histogram")


def _binned(lengths: np.ndarray, step: int, longest: int) -> np.ndarray:
    """Shares of the texts in bins of ``step`` tokens, from 0 to beyond ``longest``."""
    padded = np.zeros(-(-longest // step) * step)
    padded[:len(lengths)] = lengths
    return padded.reshape(-1, step).sum(1) / max(lengths.sum(), 1)
