"""The report of a published date: OUT/reports/dt=D/index.html, one self-contained page.

    page.py        renders templates/ as the page of one date
    date_index.py  OUT/reports/index.html, one row per date
    screen.py      the last screen of ``dare-job run``
    collect.py     one pass over the rows of a date
    nights.py      manifests of this date and of earlier ones
    highlights.py  what needs attention, at the top of the page
    cost.py        worker hours and money
    sample.py      50 texts beside their prompts, chosen by a hash of their ids
    changes.py     what changed in a text and in its prompt since the date before
    texts.py       how single texts were decoded: drafted tokens by step, for ``dare-job show`` and the page
    lengths.py, timeline.py  larger charts
    svg.py         inline charts of the page
    plot.py        plots as SVG files, for commands and benches that measure
    format.py      numbers as text, and histograms with fixed bins
"""

import logging
import secrets
import time

from dare_job.storage import paths
from dare_job.storage.paths import AnyPath
from dare_job.workspace import MANIFEST, report_page, reports_index

_LOG = logging.getLogger("dare_job")


def write(out: AnyPath, dt: str) -> AnyPath:
    """Write the report of a published date atomically, replacing an older one, then the index of all dates.

    Raises
    ------
    DataError
        The date is not published, or its manifest is damaged.
    """
    from dare_job.publish.report import date_index
    from dare_job.publish.report.page import render

    target, page = report_page(out, dt), render(out, dt)
    paths.make_folder(target.parent)
    with paths.atomic_writer(target, f".{target.name}.{secrets.token_hex(4)}.partial") as file:
        file.write(page.encode(errors="replace"))
    date_index.write_or_warn(out, dt)
    return target


def write_again(out: AnyPath, dt: str | None) -> AnyPath:
    """Write the report of a date, by default the newest published one. For the command line.

    Raises
    ------
    DataError
        No date is published, or as ``write``.
    """
    from dare_job.errors import DataError
    from dare_job.publish.report import nights
    from dare_job.storage import atomic_folder

    atomic_folder.recover(out)
    dates = nights.dates(out)
    if not dt and not dates:
        raise DataError(f"{out} has no published date; run `dare-job run` with --out {out} first")
    return write(out, dt or dates[-1])


def write_or_warn(out: AnyPath, dt: str) -> None:
    """Write the report after publishing, and the index of all dates. Errors are logged as warnings.

    A report that is newer than the manifests of the date is kept.
    """
    from dare_job.publish.report import date_index

    began = time.monotonic()
    try:
        if _is_newest(out, dt):
            if not reports_index(out).exists():
                date_index.write_or_warn(out, dt)
            return
        target = write(out, dt)
    except Exception as error:
        _LOG.warning("the report of %s could not be written (%s: %s); the snapshot is published, and "
                     "`dare-job report --out %s --date %s` writes the report", dt, type(error).__name__,
                     " ".join(str(error).split()), out, dt)
        return
    _LOG.info("report %s (%.1f s)", target, time.monotonic() - began)


def _is_newest(out: AnyPath, dt: str) -> bool:
    page = report_page(out, dt)
    published = out.glob(f"knowledge/entity=*/dt={dt}/{MANIFEST}")
    return page.exists() and all(page.stat().st_mtime_ns >= path.stat().st_mtime_ns for path in published)
