"""Published dates by their manifests: what a night cost and wrote, what is unusual against the last ones."""

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

BEFORE = 7  # dates before the report's that it is compared with
JUDGED = 3  # fewer say nothing of what is usual


@dataclass(frozen=True)
class Night:
    """One date's manifests by entity type. A figure that they lack is None."""

    dt: str
    manifests: dict[str, dict]

    def total(self, group: str, name: str) -> float | None:
        """Sum over entity types of a number of ``counts``, ``totals``, ``rejects``."""
        found = [manifest.get(group, {}).get(name) for manifest in self.manifests.values()]
        known = [value for value in found if value is not None]
        return sum(known) if known else None

    def first(self, name: str):
        """A value that is the same for all entity types."""
        return next((m[name] for m in self.manifests.values() if m.get(name) is not None), None)

    @cached_property
    def baseline(self) -> dict | None:
        return self.first("baseline")

    @cached_property
    def worker_s(self) -> float | None:
        """Seconds of workers' decoding time that tonight's texts took."""
        return _ratio(self.total("totals", "tokens"), self.first("tokens_per_s"))

    @cached_property
    def plain_s(self) -> float | None:
        """What the night's own baseline would have taken for as many tokens."""
        rate = self.baseline["tokens_per_s"] if self.baseline else None
        return _ratio(self.total("totals", "tokens"), rate)

    @cached_property
    def times_plain(self) -> float | None:
        return _ratio(self.plain_s, self.worker_s)

    def share(self, name: str, of: str) -> float | None:
        return _ratio(self.total("totals", name), self.total("totals", of))


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


@dataclass(frozen=True)
class Measure:
    """A figure that nights are compared by.

    apart  how far from the median of the earlier nights is unusual at least, as a share of it
    floor  and in the figure's own unit: less is never unusual
    """

    name: str
    title: str
    kind: str  # count | rate | share | times: how it is written
    of: Callable[[Night], float | None]
    apart: float = 0.25
    floor: float = 0.0


MEASURES = (
    Measure("rows", "Rows", "count", lambda night: night.total("counts", "rows"), 0.1, 10),
    Measure("written", "Written tonight", "count", lambda night: night.total("counts", "written"), 0.5, 10),
    Measure("errors", "Rows with an error", "count", lambda night: night.total("counts", "errors"), 0.25, 2),
    Measure("accepted", "Accepted a step", "rate",
            lambda night: night.share("accepted_tokens", "target_steps"), 0.15, 0.1),
    Measure("tokens_per_s", "Tokens/s a worker", "count", lambda night: night.first("tokens_per_s") or None),
    Measure("times_plain", "Times plain decoding", "times", lambda night: night.times_plain),
    Measure("length", "Tokens a text", "count",
            lambda night: _ratio(night.total("totals", "tokens"), night.total("counts", "written")), 0.15),
    Measure("busy", "Busy slots", "share", lambda night: night.share("target_steps", "slot_steps"), 0.1),
    Measure("scored", "Old text kept", "share",
            lambda night: night.share("scored_tokens", "tokens"), 0.25, 0.1),
    Measure("relaxed", "Relaxed tokens", "share",
            lambda night: night.share("relaxed_tokens", "tokens"), 0.5, 0.002),
)


def folder(out: AnyPath, entity: str, dt: str) -> AnyPath:
    return out / "knowledge" / f"entity={entity}" / f"dt={dt}"


def read(out: AnyPath, dt: str) -> Night:
    """A published date. Raises DataError where it is not, or a manifest is damaged."""
    folders = {entity: folder(out, entity, dt) for entity in ENTITIES}
    missing = [entity for entity, found in folders.items() if not (found / MANIFEST).exists()]
    if missing:
        there = dates(out)
        raise DataError(f"{out}: {' and '.join(missing)} texts of {dt} are not published; there are "
                        f"{', '.join(there[-BEFORE:]) or 'none of any date'}")
    return Night(dt, {entity: published.read_manifest(found) for entity, found in folders.items()})


def dates(out: AnyPath) -> list[str]:
    """Dates for which every entity type is published, oldest first."""
    return Workspace(out, date.max).published_dates()


def earlier(out: AnyPath, dt: str) -> list[Night]:
    """The last ``BEFORE`` published dates before one, oldest first, without those of a damaged manifest."""
    found = []
    for before in [before for before in dates(out) if before < dt][-BEFORE:]:
        with suppress(DataError):
            found.append(read(out, before))
    return found


@dataclass(frozen=True)
class Unusual:
    measure: Measure
    value: float
    usual: float  # median of the earlier nights


def unusual(night: Night, before: list[Night]) -> list[Unusual]:
    """Figures further from the median of the earlier nights than three of their median deviations.

    Scaled as for a normal distribution (1.4826), and never nearer than ``Measure.apart`` and ``floor``.
    Nothing where fewer than ``JUDGED`` nights have the figure.
    """
    found = []
    for measure in MEASURES:
        value = measure.of(night)
        known = [past for past in map(measure.of, before) if past is not None]
        if value is None or len(known) < JUDGED:
            continue
        usual = statistics.median(known)
        spread = 3 * 1.4826 * statistics.median(abs(past - usual) for past in known)
        if abs(value - usual) > max(spread, measure.apart * abs(usual), measure.floor):
            found.append(Unusual(measure, value, usual))
    return found
