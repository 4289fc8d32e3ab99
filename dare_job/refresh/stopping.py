"""When a run stops starting chunks: ``refresh.deadline`` and ``refresh.max_worker_hours``.

A deadline without a date is fixed when the run first starts, and forgotten when a command that publishes has
ended, or a day after the deadline. So a run that is resumed has the deadline of the run that it goes on with.
It does not write on where that one has stopped, even if it was killed after it published:

    _work/dt=D/_deadline.json  the setting, the time that it means, and the limits by which the run stopped
    generate/_stopped.json     written by a worker that did not start a chunk: why
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from dare_job.errors import ConfigError
from dare_job.job import Job
from dare_job.observe import figures
from dare_job.schemas import ENTITIES
from dare_job.storage.paths import AnyPath
from dare_job.tables import published, stage_inputs
from dare_job.tables.chunk_files import Totals
from dare_job.workspace import write_json

FIXED, STOPPED = "_deadline.json", "_stopped.json"
DEADLINE, WORKER_HOURS = "deadline", "worker hours"
AFTER = ("gate", "publish", "encode", "recommend")  # stages that follow the stage generate
_SPARE = 1.2  # they may take longer than in the previous run
_UNKNOWN_SHARE = 0.1  # of the time left, if no run has measured them
_KEPT_S = 24 * 3600  # a command that starts so long after the deadline begins a new run


@dataclass(frozen=True)
class Stop:
    """When workers stop starting chunks (seconds since 1970), and why: DEADLINE or WORKER_HOURS."""

    at: float
    why: str


def fix_deadline(job: Job) -> None:
    """Record the time that a deadline means, unless an earlier start of this run has.

    Also with ``max_worker_hours`` alone, so that ``keep_stopped`` can note that they are used up.
    """
    settings, now = job.config.refresh, datetime.now(UTC)
    if not any(_limits(job).values()) or _record(job):
        return
    at = settings.deadline and settings.deadline_after(now).timestamp()
    job.space.work.mkdir(parents=True, exist_ok=True)
    write_json(job.space.work / FIXED, {"deadline": settings.deadline, "at": at, "stopped": None,
                                        "kept_until": (at or now.timestamp()) + _KEPT_S})


def keep_stopped(job: Job) -> None:
    """The stage generate ended early: the run, if it is resumed, writes nothing more under these limits."""
    if record := _record(job):
        write_json(job.space.work / FIXED, record | {"stopped": _limits(job)})


def has_stopped(job: Job) -> bool:
    """Whether the run that this command resumes has stopped under the same limits, with these rows."""
    return reason(job) is not None and ((_record(job) or {}).get("stopped") == _limits(job))


def forget_deadline(job: Job) -> None:
    """The run has ended: another one of this date has a deadline of its own."""
    (job.space.work / FIXED).unlink(missing_ok=True)


def require_future(job: Job) -> None:
    """Check that the deadline is not over when a run starts.

    Raises
    ------
    ConfigError
        It is, and no row of this date has been written. Otherwise the run publishes what is written, as does
        one that has stopped before its first row.
    """
    if not job.config.refresh.deadline or _deadline(job) > datetime.now(UTC).timestamp():
        return
    if not (has_stopped(job) or _has_rows(job)):
        raise ConfigError(f"refresh.deadline = {job.config.refresh.deadline!r} of this run is over, and no "
                          f"text of {job.space.dt} is written: give a later one")


def _has_rows(job: Job) -> bool:
    """Whether rows of this date are committed, or kept of an earlier shard plan."""
    try:
        return any(stage_inputs.count_generated(job, entity) for entity in ENTITIES)
    except (pa.ArrowException, OSError):  # a damaged file: the stage generate writes its rows again
        return True


def _limits(job: Job) -> dict:
    return job.config.refresh.model_dump(include={"deadline", "max_worker_hours"})


def _record(job: Job) -> dict | None:
    """What ``fix_deadline`` recorded, if it is of the same deadline and of this run."""
    try:
        record = json.loads((job.space.work / FIXED).read_text(encoding="utf-8"))
        is_same = record["deadline"] == job.config.refresh.deadline
        return record if is_same and datetime.now(UTC).timestamp() < record["kept_until"] else None
    except (OSError, ValueError, KeyError):
        return None


def _deadline(job: Job) -> float:
    """The deadline in seconds since 1970, as it was fixed; of a dry run, from now on."""
    record = _record(job)
    return record["at"] if record else job.config.refresh.deadline_after(datetime.now(UTC)).timestamp()


def seconds_left(job: Job) -> float | None:
    """Seconds until the deadline, at least 0; None without one."""
    if not job.config.refresh.deadline:
        return None
    return max(0.0, _deadline(job) - datetime.now(UTC).timestamp())


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
        left_s = max(0.0, _deadline(job) - now.timestamp())
        stops.append(Stop(_deadline(job) - _time_after(job, left_s), DEADLINE))
    if settings.max_worker_hours:
        left_s = max(0.0, settings.max_worker_hours * 3600 - used_s)
        stops.append(Stop(now.timestamp() + left_s / slots, WORKER_HOURS))
    return min(stops, key=lambda stop: stop.at, default=None)


def _time_after(job: Job, left_s: float) -> float:
    """Seconds that the stages after generate need: as in the previous run, else a share of the time left."""
    previous = published.previous_manifest(job, ENTITIES[0])
    seconds = figures.stage_seconds(job.space) | figures.previous_seconds(job.space, previous)
    known = [seconds[stage] for stage in AFTER if stage in seconds]
    return min(_SPARE * sum(known) if "publish" in seconds else _UNKNOWN_SHARE * left_s, left_s)


def row_seconds(job: Job, tally: Totals) -> float:
    """Expected time of a worker per row: of those that are there (``tally``), else at an earlier date's rate.

    The newest one that wrote rows. 0 if there is none.
    """
    if tally.rows:
        return tally.busy_s / tally.rows
    for manifest in _earlier_manifests(job):
        written, rate = (manifest.get("counts") or {}).get("written"), manifest.get("tokens_per_s")
        if written and rate:
            return manifest["totals"]["tokens"] / written / rate
    return 0.0


def _earlier_manifests(job: Job) -> Iterator[dict]:
    """Manifests of earlier dates of both entity types, the newest first."""
    for dt in reversed([dt for dt in job.space.published_dates() if dt < job.space.dt]):
        for entity in ENTITIES:
            yield published.read_manifest(job.space.knowledge(entity, dt))


def has_time_for_baseline(job: Job, expected_s: float, rows: float) -> bool:
    """Whether the baseline can be measured before the time at which decoding has to stop.

    Parameters
    ----------
    expected_s
        Seconds that it takes, judging by this run; it counts where the previous run has not measured one.
    rows
        Rows that each worker decodes for it.
    """
    if not job.config.refresh.deadline:
        return True
    manifest = published.previous_manifest(job, ENTITIES[0])
    previous, span = manifest.get("baseline"), manifest.get("baseline_span")
    if previous and span:
        before = previous.get("rows", rows) / previous.get("workers", 1)  # older versions had none
        expected_s = (span[1] - span[0]) * max(0.25, rows / max(1.0, before))
    left_s = _deadline(job) - datetime.now(UTC).timestamp()
    return _SPARE * expected_s < left_s - _time_after(job, max(0.0, left_s))


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
