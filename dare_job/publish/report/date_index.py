"""The index of all published dates: OUT/reports/index.html, one row per date, with links to their reports.

It is written again when a date is published, when a report is written, and when ``clean`` removes dates. It
is made from the manifests alone, so it needs no earlier index.
"""

import logging
from dataclasses import dataclass

from dare_job.publish.gate.findings import OF_LENGTHS
from dare_job.publish.report import cost, format, nights, svg
from dare_job.publish.report.nights import Night
from dare_job.schemas import ENTITIES
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath
from dare_job.workspace import index_partial, reports_index

LISTED = 366  # maximum number of dates; the newest are listed
_TRIES = 5
_LOG = logging.getLogger("dare_job")


@dataclass(frozen=True)
class Gate:
    """The check whose value is nearest to its limit. ``level``: value over limit; above 1 it failed."""

    check: str
    entity: str
    value: str
    limit: str
    level: float


@dataclass(frozen=True)
class Row:
    """A date of the index; values that its manifests lack are None."""

    dt: str
    status: str
    link: bool
    rows: float | None
    written: float | None
    errors: float | None
    tokens: float | None
    speedup: float | None
    accepted: float | None
    gate: Gate | None
    wall_s: float | None
    allocated_s: float | None
    cost: float | None

    @property
    def gate_level(self) -> float | None:
        """Value over limit of ``gate``; None without a gate."""
        return self.gate and self.gate.level


# title, format and attribute of the columns that have a chart
COLUMNS = (("Generated rows", format.count, "written"), ("Errors", format.count, "errors"),
           ("Tokens", format.count, "tokens"), ("Speed-up", format.times, "speedup"),
           ("Accepted per step", format.rate, "accepted"),
           ("Gate nearest to its limit", format.share, "gate_level"),
           ("Wall-clock", format.seconds, "wall_s"), ("Allocated worker time", format.seconds, "allocated_s"),
           ("Cost", format.money, "cost"))


def write(out: AnyPath, writer: str = "command") -> AnyPath:
    """Write the index atomically; again if a date was published or removed in the meantime.

    Parameters
    ----------
    writer
        Part of the temporary file's name: the date whose lock is held, if any.
    """
    target, known = reports_index(out), None
    paths.make_folder(target.parent)
    for _ in range(_TRIES):
        if known == (known := _dates(out)):
            break
        page = render(out, known)
        with paths.atomic_writer(target, index_partial(out, writer).name) as file:
            file.write(page.encode(errors="replace"))
    return target


def write_or_warn(out: AnyPath, writer: str = "command") -> None:
    """Write the index. Errors are logged as warnings."""
    try:
        write(out, writer)
    except Exception as error:
        _LOG.warning("the index of the reports, %s, could not be written (%s: %s); `dare-job report --out "
                     "%s` writes it", reports_index(out), type(error).__name__,
                     " ".join(str(error).split()), out)


def render(out: AnyPath, dates: list[str]) -> str:
    """The index of some dates (ascending) as HTML. Rows say if a manifest of their date is damaged."""
    from dare_job.publish.report.page import render_template

    with_page = {page.parent.name[3:] for page in out.glob("reports/dt=*/index.html")}
    folders = [nights.folder(out, ENTITIES[0], dt) for dt in dates[-LISTED:]]
    listed_nights = paths.map_paths(lambda folder: nights.read_any(out, folder.name[3:]), folders)
    rows = [_row(night, status, night.dt in with_page) for night, status in listed_nights if night.manifests
            or "damaged" in status]
    has_cost = any(row.cost is not None for row in rows)
    return render_template("dates.html", out=out, rows=rows[::-1], charts=_charts(rows), has_cost=has_cost,
                           older=len(dates) - len(folders))


def worst_gate(night: Night) -> Gate | None:
    """The check nearest to its limit; None if none was checked against a limit."""
    gates = [_gate(entity, check, finding) for entity, manifest in night.manifests.items()
             for check, finding in (manifest.get("gates") or {}).items()
             if finding.get("value") is not None and finding.get("limit") is not None]
    return max(gates, key=lambda gate: gate.level, default=None)


def _gate(entity: str, check: str, finding: dict) -> Gate:
    value, limit = finding["value"], finding["limit"]
    shown = format.rate if check in OF_LENGTHS else format.share
    compared, bound = value, limit
    if check == "length_ratio" and value:  # 1 is best, and both directions count
        compared, bound = max(value, 1 / value) - 1, limit - 1
    level = compared / bound if bound else (2.0 if compared else 0.0)
    return Gate(check, entity, shown(value), shown(limit), level)


def _dates(out: AnyPath) -> list[str]:
    """Dates with a snapshot of any entity type, ascending."""
    folders = paths.dated_folders(*(out / "knowledge" / f"entity={entity}" for entity in ENTITIES))
    return sorted({folder.name[3:] for folder in folders})


def _row(night: Night, status: str, link: bool) -> Row:
    try:
        money = cost.of(night)
        return Row(night.dt, status, link, night.total("counts", "rows"), night.total("counts", "written"),
                   night.total("counts", "errors"), night.total("totals", "tokens"), night.speedup,
                   night.share("accepted_tokens", "target_steps"), worst_gate(night), night.stages_s,
                   night.allocated_s, money and money.total)
    except (AttributeError, KeyError, TypeError, ValueError):  # valid JSON, but not a manifest
        return Row(night.dt, "a manifest is damaged", link, *[None] * 10)


def _charts(rows: list[Row]) -> list[dict]:
    """A chart over the dates of each column that some date has."""
    charts = []
    for title, shown, name in COLUMNS:
        values = [getattr(row, name) for row in rows]
        if any(value is not None for value in values):
            labels = [shown(value) for value in values]
            charts.append({"title": title, "newest": labels[-1],
                           "chart": svg.trend(title, [row.dt for row in rows], values, labels)})
    return charts
