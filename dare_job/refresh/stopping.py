"""When a run stops starting chunks: ``refresh.deadline`` and ``refresh.max_worker_hours``.

The time is fixed when the stage generate starts for the first time, and kept beside its shard plan, so that a
resumed run has the deadline of the run that it goes on with:

    generate/_stop.json        the settings, the time at which to stop, and why
    generate/_stopped.json     written by a worker that did not start a chunk, or by the driver
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from dare_job.errors import ConfigError
from dare_job.job import Job
from dare_job.observe import figures
from dare_job.storage.paths import AnyPath
from dare_job.tables import published
from dare_job.workspace import generation_started, write_json

STOP, STOPPED = "_stop.json", "_stopped.json"
DEADLINE, WORKER_HOURS = "deadline", "worker hours"
_AFTER = ("gate", "publish", "encode", "recommend")  # stages that follow
_SPARE = 1.2  # they may take longer than in the previous run
_UNKNOWN_SHARE = 0.1  # of the time left, if no run has measured them


@dataclass(frozen=True)
class Stop:
    """When workers stop starting chunks (seconds since 1970), and why: DEADLINE or WORKER_HOURS."""

    at: float
    why: str


def require_future(job: Job) -> None:
    """Check that a deadline with a date is not over before anything is written.

    Raises
    ------
    ConfigError
        It is, and no text of this date has been written. Otherwise the run publishes what is written.
    """
    now = datetime.now(UTC)
    deadline = job.config.refresh.deadline_after(now)
    if deadline and deadline <= now and not generation_started(job.space.work):
        raise ConfigError(f"refresh.deadline = {job.config.refresh.deadline!r} is in the past, and no text "
                          f"of {job.space.dt} is written: give a later one, or a time without a date, such "
                          "as '05:00 UTC', which means the next one")


def set_stop(job: Job, folder: AnyPath, slots: int, used_s: float) -> Stop | None:
    """When this run stops starting chunks, or None. Forgets an earlier stop.

    Parameters
    ----------
    folder
        Of the stage generate.
    slots
        Workers that run at the same time.
    used_s
        Decoding time of the chunks that are there, over all workers.
    """
    (folder / STOPPED).unlink(missing_ok=True)
    settings, now = job.config.refresh, datetime.now(UTC)
    stops = []
    if settings.deadline:
        deadline = _fixed_deadline(job, folder, now)
        stops.append(Stop(deadline - _time_after(job, max(0.0, deadline - now.timestamp())), DEADLINE))
    if settings.max_worker_hours:
        left_s = max(0.0, settings.max_worker_hours * 3600 - used_s)
        stops.append(Stop(now.timestamp() + left_s / slots, WORKER_HOURS))
    return min(stops, key=lambda stop: stop.at, default=None)


def _fixed_deadline(job: Job, folder: AnyPath, now: datetime) -> float:
    setting = job.config.refresh.deadline
    try:
        record = json.loads((folder / STOP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        record = {}
    if record.get("deadline") != setting:
        record = {"deadline": setting, "at": job.config.refresh.deadline_after(now).timestamp()}
        write_json(folder / STOP, record)
    return record["at"]


def _time_after(job: Job, left_s: float) -> float:
    """Seconds that the stages after generate need: as in the previous run, else a share of the time left."""
    old = published.previous_folder(job, "user")
    seconds = (published.read_manifest(old) if old else {}).get("seconds") or {}
    seconds = {**figures.stage_seconds(job.space), **seconds}
    known = [seconds[stage] for stage in _AFTER if stage in seconds]
    return min(_SPARE * sum(known) if "publish" in seconds else _UNKNOWN_SHARE * left_s, left_s)


def record_stop(folder: AnyPath, why: str) -> None:
    """Record that a chunk was not started."""
    write_json(folder / STOPPED, {"why": why})


def reason(job: Job) -> str | None:
    """Why the run of this date stopped before all chosen rows were written; None if it did not."""
    return stopped(job.space.stage("generate"))


def stopped(folder: AnyPath) -> str | None:
    """As ``reason``, of the folder of the stage generate."""
    try:
        return json.loads((folder / STOPPED).read_text(encoding="utf-8"))["why"]
    except (OSError, ValueError, KeyError):
        return None
