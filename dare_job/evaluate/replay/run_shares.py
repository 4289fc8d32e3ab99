"""What prompts, drafting, forward passes and everything else took in a published run, for ``tune``.

``tune`` replays texts without a model, so it measures neither prompts nor what surrounds decoding. A run has
measured both: its published rows hold the times from which the report computes the shares.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from dare_job.config.settings import JobConfig
from dare_job.errors import DareJobError
from dare_job.observe import redact
from dare_job.publish.report import collect, cost, format, nights
from dare_job.publish.report.cost import TimeShares
from dare_job.schemas import ENTITIES
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath
from dare_job.workspace import MANIFEST

_MAX_DATES = 8  # in which a run that wrote texts is searched, the newest first
_LOG = logging.getLogger("dare_job")


@dataclass(frozen=True)
class RunShares:
    """Measured shares of the workers' decoding time, and the run that they were measured in."""

    out: str
    date: str
    run_id: str
    shares: TimeShares

    def record(self) -> dict:
        """As JSON values."""
        shares = {name: round(getattr(self.shares, of), 6) for name, of in (
            ("prompts", "prompts"), ("drafting", "drafting"), ("forward_passes", "steps"),
            ("everything_else", "other"))}
        return {"out": self.out, "date": self.date, "run_id": self.run_id, **shares}


def words(record: dict | None) -> str:
    """One sentence about ``RunShares.record``; None: no run has measured the shares."""
    if record is None:
        return ("Prompts and everything else are not replayed, and no run has measured them: name the texts "
                "of a published date (--text), or a configuration with out (--config)")
    prompts, drafting, forwards, other = (format.share(record[name]) for name in (
        "prompts", "drafting", "forward_passes", "everything_else"))
    return (f"Measured in the run of {record['date']} (run {record['run_id']}, {record['out']}), with the "
            f"settings that it had: prompts took {prompts} of the decoding time, drafting {drafting}, "
            f"forward passes {forwards}, everything else {other}")


def find(texts: Sequence[Path], config: JobConfig) -> RunShares | None:
    """The shares of the run that published the texts, else of the newest run in ``out`` of the settings.

    Of the texts of a date that wrote none, those of the newest date before it that did. None if there is no
    such run, or if its rows are of a version that did not record the time of prompts.

    Parameters
    ----------
    texts
        The replayed files or folders, of which some may be published ones.
    """
    snapshots = [folder for text in texts for folder in (text.absolute(), text.absolute().parent)
                 if (folder / MANIFEST).is_file() and paths.folder_date(folder.name)]
    try:
        if snapshots:
            newest = max(snapshots, key=lambda folder: folder.name)
            return _newest(newest.parents[2], newest.name[3:])
        if "out" in config.model_fields_set:
            return _newest(paths.path(config.out, "out"), None)
    except (DareJobError, OSError, pa.ArrowException) as error:
        _LOG.warning("the times of a run cannot be read: %s", str(error).partition("\n")[0])
    return None


def _newest(out: AnyPath, last: str | None) -> RunShares | None:
    """The shares of the newest date, up to ``last``, that has them."""
    dates = [dt for dt in nights.dates(out) if last is None or dt <= last]
    return next(filter(None, (_of(out, dt) for dt in reversed(dates[-_MAX_DATES:]))), None)


def _of(out: AnyPath, dt: str) -> RunShares | None:
    night = nights.read(out, dt)
    times = sum((collect.read_times(nights.folder(out, entity, dt), dt) for entity in ENTITIES), Counter())
    shares = cost.time_shares(night.worker_s, times)
    return shares and RunShares(redact.text(str(out)), dt, str(night.first("run_id")), shares)
