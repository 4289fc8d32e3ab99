"""Statistics of published dates from their manifests, and which of them are unusual."""

import statistics
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import cached_property

from dare_job.errors import DataError
from dare_job.schemas import ENTITIES
from dare_job.storage.paths import AnyPath
from dare_job.tables import published
from dare_job.workspace import MANIFEST, Workspace

EARLIER_DATES = 7  # compared with the date of the report
MIN_DATES = 3  # with fewer, nothing is unusual


@dataclass(frozen=True)
class Night:
    """The manifests of a date by entity type. Values that they lack are None."""

    dt: str
    manifests: dict[str, dict]

    def total(self, group: str, name: str) -> float | None:
        """Sum over entity types of a number in ``counts``, ``totals`` or ``rejects``."""
        counts = [manifest.get(group, {}).get(name) for manifest in self.manifests.values()]
        known = [value for value in counts if value is not None]
        return sum(known) if known else None

    def first(self, name: str):
        """A value that all entity types share."""
        return next((m[name] for m in self.manifests.values() if m.get(name) is not None), None)

    @cached_property
    def baseline(self) -> dict | None:
        return self.first("baseline")

    @cached_property
    def worker_s(self) -> float | None:
        """Decoding time summed over workers, in seconds."""
        return _ratio(self.total("totals", "tokens"), self.first("tokens_per_s"))

    @cached_property
    def autoregressive_s(self) -> float | None:
        """Seconds that the same number of tokens take at the rate of this run's baseline."""
        rate = self.baseline["tokens_per_s"] if self.baseline else None
        return _ratio(self.total("totals", "tokens"), rate)

    @cached_property
    def speedup(self) -> float | None:
        return _ratio(self.autoregressive_s, self.worker_s)

    def share(self, name: str, of: str) -> float | None:
        return _ratio(self.total("totals", name), self.total("totals", of))


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


@dataclass(frozen=True)
class Measure:
    """A statistic by which dates are compared.

    min_change : smaller differences from the median of the earlier dates, as a share of it, are not unusual
    min_difference : smaller differences in the unit of the statistic are not unusual
    """

    name: str
    title: str
    kind: str  # count | rate | share | times: its format
    of: Callable[[Night], float | None]
    min_change: float = 0.25
    min_difference: float = 0.0


MEASURES = (
    Measure("rows", "Rows", "count", lambda night: night.total("counts", "rows"), 0.1, 10),
    Measure("written", "Generated rows", "count", lambda night: night.total("counts", "written"), 0.5, 10),
    Measure("errors", "Rows with an error", "count", lambda night: night.total("counts", "errors"), 0.25, 2),
    Measure("accepted", "Accepted per step", "rate",
            lambda night: night.share("accepted_tokens", "target_steps"), 0.15, 0.1),
    Measure("tokens_per_s", "Tokens/s per worker", "count",
            lambda night: night.first("tokens_per_s") or None),
    Measure("speedup", "Speedup", "times", lambda night: night.speedup),
    Measure("length", "Tokens per text", "count",
            lambda night: _ratio(night.total("totals", "tokens"), night.total("counts", "written")), 0.15),
    Measure("utilization", "Batch utilization", "share",
            lambda night: night.share("target_steps", "slot_steps"), 0.1),
    Measure("reused", "Reused tokens", "share",
            lambda night: night.share("scored_tokens", "tokens"), 0.25, 0.1),
    Measure("relaxed", "Relaxed tokens", "share",
            lambda night: night.share("relaxed_tokens", "tokens"), 0.5, 0.002),
)


def folder(out: AnyPath, entity: str, dt: str) -> AnyPath:
    return out / "knowledge" / f"entity={entity}" / f"dt={dt}"


def read(out: AnyPath, dt: str) -> Night:
    """Read a published date. Raises DataError if it is not published or a manifest is damaged."""
    folders = {entity: folder(out, entity, dt) for entity in ENTITIES}
    missing = [entity for entity, place in folders.items() if not (place / MANIFEST).exists()]
    if missing:
        there = dates(out)
        raise DataError(f"{out}: {' and '.join(missing)} texts of {dt} are not published; published dates: "
                        f"{', '.join(there[-EARLIER_DATES:]) or 'none'}")
    return Night(dt, {entity: published.read_manifest(place) for entity, place in folders.items()})


def dates(out: AnyPath) -> list[str]:
    """Dates on which every entity type is published, ascending."""
    return Workspace(out, date.max).published_dates()


def earlier(out: AnyPath, dt: str) -> list[Night]:
    """The last ``EARLIER_DATES`` published dates before ``dt``, ascending, without damaged ones."""
    nights = []
    for before in [before for before in dates(out) if before < dt][-EARLIER_DATES:]:
        with suppress(DataError):
            nights.append(read(out, before))
    return nights


@dataclass(frozen=True)
class Unusual:
    measure: Measure
    value: float
    median: float  # of the earlier dates


def unusual(night: Night, before: list[Night]) -> list[Unusual]:
    """Statistics more than three median absolute deviations from the median of the earlier dates.

    The deviation is scaled by 1.4826, as for a normal distribution. Differences below ``min_change`` or
    ``min_difference`` do not count, nor do statistics that fewer than ``MIN_DATES`` dates have.
    """
    values = []
    for measure in MEASURES:
        value = measure.of(night)
        known = [past for past in map(measure.of, before) if past is not None]
        if value is None or len(known) < MIN_DATES:
            continue
        median = statistics.median(known)
        spread = 3 * 1.4826 * statistics.median(abs(past - median) for past in known)
        if abs(value - median) > max(spread, measure.min_change * abs(median), measure.min_difference):
            values.append(Unusual(measure, value, median))
    return values
