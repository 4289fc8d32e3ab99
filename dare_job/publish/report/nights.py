"""Statistics of published dates from their manifests, and which of them are unusual."""

import difflib
import json
import statistics
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from operator import attrgetter, methodcaller

from dare_job.errors import DataError
from dare_job.publish.report import format
from dare_job.schemas import ENTITIES
from dare_job.storage.paths import AnyPath, dated_folders
from dare_job.tables import published
from dare_job.workspace import MANIFEST, Workspace

EARLIER_DATES = 7  # compared with the date of the report
MIN_DATES = 3  # with fewer, nothing is unusual
_SUGGESTED = 5  # similar dates that an error names


@dataclass(frozen=True)
class Night:
    """The manifests of a date by entity type. Values that one of them lacks are None."""

    dt: str
    manifests: dict[str, dict]

    def total(self, group: str, name: str) -> float | None:
        """Sum over entity types of a number in ``counts``, ``totals`` or ``rejects``."""
        values = [manifest.get(group, {}).get(name) for manifest in self.manifests.values()]
        return sum(values) if values and None not in values else None

    def first(self, name: str):
        """A value that all entity types share."""
        return next((m[name] for m in self.manifests.values() if m.get(name) is not None), None)

    @property
    def baseline(self) -> dict | None:
        """What ``baseline.measure_baseline`` measured: tokens per second, and how they were measured."""
        return self.first("baseline")

    @property
    def worker_s(self) -> float | None:
        """Decoding time summed over workers, in seconds."""
        return _ratio(self.total("totals", "tokens"), self.first("tokens_per_s"))

    @property
    def autoregressive_s(self) -> float | None:
        """Seconds that the same number of tokens take at the rate of this run's baseline, if comparable."""
        return _ratio(self.total("totals", "tokens"), self.baseline_rate)

    @property
    def baseline_rate(self) -> float | None:
        """Tokens per second of the baseline, as ``published.baseline_rate``."""
        return published.baseline_rate({"baseline": self.baseline})

    @property
    def saved_s(self) -> float | None:
        """Worker seconds saved compared with autoregressive decoding."""
        if self.worker_s is None or self.autoregressive_s is None:
            return None
        return self.autoregressive_s - self.worker_s

    @property
    def speedup(self) -> float | None:
        """Time of autoregressive decoding divided by worker time."""
        return _ratio(self.autoregressive_s, self.worker_s)

    @property
    def allocated_s(self) -> float | None:
        """Allocated worker time in s: number of workers times the wall-clock time of the stage generate.
        """
        workers, seconds = self.first("workers") or {}, self.first("seconds") or {}
        number, generate_s = workers.get("slots", workers.get("workers")), seconds.get("generate")
        if not number or generate_s is None:
            return None
        return max(number * generate_s, self.worker_s or 0.0)

    @property
    def stages_s(self) -> float | None:
        """Wall-clock seconds of all stages until the date was published."""
        seconds = self.first("seconds")
        return sum(seconds.values()) if seconds else None

    def share(self, name: str, of: str) -> float | None:
        """The total ``name`` divided by the total ``of``."""
        return _ratio(self.total("totals", name), self.total("totals", of))


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


@dataclass(frozen=True)
class Measure:
    """A statistic by which dates are compared.

    Attributes
    ----------
    min_change
        Smaller differences from the median of the earlier dates, as a share of it, are not unusual.
    min_difference
        Smaller differences in the unit of the statistic are not unusual.
    """

    name: str
    title: str
    format: Callable[[float | None], str]
    of: Callable[[Night], float | None]
    min_change: float = 0.25
    min_difference: float = 0.0


MEASURES = (
    Measure("rows", "Rows", format.count, methodcaller("total", "counts", "rows"), 0.1, 10),
    Measure("written", "Generated rows", format.count, methodcaller("total", "counts", "written"), 0.5, 10),
    Measure("errors", "Rows with an error", format.count, methodcaller("total", "counts", "errors"), 0.25, 2),
    Measure("accepted", "Accepted per step", format.rate,
            methodcaller("share", "accepted_tokens", "target_steps"), 0.15, 0.1),
    Measure("tokens_per_s", "Tokens/s per worker", format.count,
            lambda night: night.first("tokens_per_s") or None),
    Measure("speedup", "Speed-up", format.times, attrgetter("speedup")),
    Measure("length", "Tokens per text", format.count,
            lambda night: _ratio(night.total("totals", "tokens"), night.total("counts", "written")), 0.15),
    Measure("utilization", "Batch utilization", format.share,
            methodcaller("share", "target_steps", "slot_steps"), 0.1),
    Measure("reused", "Reused tokens", format.share,
            methodcaller("share", "scored_tokens", "tokens"), 0.25, 0.1),
    Measure("relaxed", "Relaxed tokens", format.share,
            methodcaller("share", "relaxed_tokens", "tokens"), 0.5, 0.002),
)


def folder(out: AnyPath, entity: str, dt: str) -> AnyPath:
    """Folder of the texts of an entity type and date, whether or not it exists."""
    return out / "knowledge" / f"entity={entity}" / f"dt={dt}"


def snapshot(out: AnyPath, entity: str, dt: str | None) -> AnyPath:
    """Folder of a published date, by default the newest.

    Raises
    ------
    DataError
        The date is not published; the message names similar dates.
    """
    if dt and (folder(out, entity, dt) / MANIFEST).exists():
        return folder(out, entity, dt)
    published_folders = [path for path in dated_folders(out / "knowledge" / f"entity={entity}")
                         if (path / MANIFEST).exists()]
    if not published_folders:
        raise DataError(f"{out} has no published {entity} text; run `dare-job run` with --out {out} first")
    if dt is None:
        return published_folders[-1]
    similar = difflib.get_close_matches(dt, [path.name[3:] for path in published_folders], _SUGGESTED, 0)
    raise DataError(f"{out} has no published {entity} text of {dt}; published: {', '.join(sorted(similar))}")


def read(out: AnyPath, dt: str) -> Night:
    """Read a published date.

    Raises
    ------
    DataError
        The date is not published, or a manifest is damaged.
    """
    return Night(dt, {entity: published.read_manifest(snapshot(out, entity, dt)) for entity in ENTITIES})


def read_any(out: AnyPath, dt: str) -> tuple[Night, str]:
    """The manifests of a date that can be read, and its status: "published", or what is missing.

    A missing or damaged manifest is named in the status, and raises nothing.
    """
    manifests, status = {}, []
    for entity in ENTITIES:
        try:
            text = (folder(out, entity, dt) / MANIFEST).read_text(encoding="utf-8")
            manifest = json.loads(text)
            if not isinstance(manifest, dict):
                raise ValueError("not an object")
            manifests[entity] = manifest
        except OSError:
            status.append(f"{entity}s are not published")
        except ValueError:
            status.append(f"the {entity}s' manifest is damaged")
    if len(status) == len(ENTITIES) and not manifests:
        status = [f"not published: `dare-job run --date {dt}` with the same options continues it"]
    if len({manifest.get("run_id") for manifest in manifests.values()}) > 1:
        status.append("users and items are from different runs")
    return Night(dt, manifests), ", ".join(status) or "published"


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
    """A statistic of a date, and its median over the earlier dates."""
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
