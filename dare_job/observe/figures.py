"""The metrics of a run and their help texts; read from the run's files, so any command can report them.

Also measures stages, in ``OUT/_work/dt=D/logs``: ``seconds.json``, and start and end in ``spans.json``.
"""

import calendar
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date

from dare_job.job import Job
from dare_job.observe.progress import Reading
from dare_job.schemas import ENTITIES
from dare_job.storage import errors
from dare_job.storage.paths import AnyPath, make_folder
from dare_job.tables import published
from dare_job.tables.chunk_files import Tally
from dare_job.workspace import MANIFEST, Workspace, done_record, write_json

HELP = {
    "last_run_timestamp_seconds": "Time at which the last command ended.",
    "last_success_timestamp_seconds": "Time of the last successful publication of a date.",
    "last_exit_code": "Exit code of the last command: 0 success, 2 settings, 3 quality gate, 4 input data, "
                      "5 Java, Spark, disk or device, 6 model, 7 pool files, 1 any other error.",
    "run_info": "Labels of the last command and its run; always 1.",
    "published_date_timestamp_seconds": "Midnight (UTC) of the newest published date.",
    "rows": "Rows of the date's snapshot; before it is published, rows finished so far.",
    "rows_written": "Rows whose text was generated for the date.",
    "rows_carried": "Rows carried over from an earlier date.",
    "rows_stale": "Rows whose prompt, model or settings had changed since their text, or without one.",
    "rows_copied": "Rows that got the text of a row with the same prompt.",
    "rows_backlog": "Changed rows whose text was not written, by reason.",
    "rows_backlog_by_age": "Changed rows whose text was not written, by the age of the text.",
    "backlog_value_share": "Share of the expected value of the changed rows that was not written.",
    "backlog_hour_share": "Share of the value left that another hour of each worker would buy.",
    "row_errors": "Rows with an error.",
    "tokens": "Tokens generated for the date.",
    "relaxed_tokens": "Generated tokens that are not the model's top-1 token.",
    "loss_bound": "Upper bound of the loss of lossy verification, by measure (section verify).",
    "loss_mean": "Loss of lossy verification on the sample, by measure.",
    "loss_over_limit": "1 if rows were written strictly because of verify.max_loss, else 0.",
    "scored_tokens": "Tokens reused from previous texts.",
    "target_steps": "Decoding steps of the target model, summed over rows.",
    "accepted_per_step": "Draft tokens accepted per decoding step.",
    "tokens_per_second": "Generated tokens per second of a worker's decoding time.",
    "baseline_tokens_per_second": "tokens_per_second of autoregressive decoding, on a sample of rows.",
    "baseline_ratio": "tokens_per_second divided by baseline_tokens_per_second.",
    "worker_busy_seconds": "Decoding time summed over workers: GPU-seconds where a worker has a GPU.",
    "stage_seconds": "Duration of a stage, summed over all commands on the date.",
    "progress_running": "1 from the first progress report to the end of the command.",
    "progress_timestamp_seconds": "Time of the progress report.",
    "progress_elapsed_seconds": "Time since the running stage began.",
    "progress_done": "Rows or training steps that the running stage has finished.",
    "progress_total": "Rows or training steps of the running stage in total.",
    "progress_tokens": "Tokens generated so far.",
    "progress_tokens_per_second": "Recent tokens per second of all workers together.",
    "progress_accepted_per_step": "Draft tokens accepted per decoding step so far.",
    "progress_eta_seconds": "Estimated remaining time at the recent pace.",
}
_COUNTS = {"rows": "rows", "rows_written": "written", "rows_carried": "carried", "row_errors": "errors"}
_SUMS = ("tokens", "relaxed_tokens", "scored_tokens", "target_steps")
_SECONDS, _SPANS = "seconds.json", "spans.json"
AFTER_PUBLISH = ("encode", "recommend")  # stages that only the log folder of a date has the time of
_MAX_SPANS = 100


@dataclass(frozen=True)
class Figure:
    """A value of the metric ``dare_job_<name>``."""

    name: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)


def of_run(job: Job, command: str, exit_code: int) -> list[Figure]:
    """How a command ended, and all metrics of its date."""
    figures = [*_ending(job, command, exit_code), *_published_or_not(job)]
    figures += [Figure("stage_seconds", seconds, {"stage": stage})
              for stage, seconds in stage_seconds(job.space).items()]
    return figures


def of_reading(stage: str, reading: Reading) -> list[Figure]:
    """The progress of a running stage."""
    fields = reading.fields
    values = {"timestamp_seconds": time.time(), "elapsed_seconds": reading.elapsed_s, "done": reading.done,
              "total": reading.total, "tokens": fields.get("tokens"),
              "tokens_per_second": fields.get("all_tokens_per_s"),
              "accepted_per_step": fields.get("accepted_per_step"), "eta_seconds": fields.get("eta_s")}
    known = [Figure(f"progress_{name}", value, {"stage": stage})
             for name, value in values.items() if value is not None]
    return [Figure("progress_running", 1), *known]


def _ending(job: Job, command: str, exit_code: int) -> Iterator[Figure]:
    now = time.time()
    yield Figure("last_run_timestamp_seconds", now)
    yield Figure("last_exit_code", exit_code)
    yield Figure("run_info", 1, {"run_id": job.run_id, "date": job.space.dt, "command": command})
    newest = job.space.newest_date()
    if exit_code == 0 and command in ("run", "publish"):
        yield Figure("last_success_timestamp_seconds", now)
    elif newest:
        files = [job.space.knowledge(entity, newest) / MANIFEST for entity in ENTITIES]
        yield Figure("last_success_timestamp_seconds", max(file.stat().st_mtime for file in files))
    if newest:
        midnight = calendar.timegm(time.strptime(newest, "%Y-%m-%d"))
        yield Figure("published_date_timestamp_seconds", midnight)


def _published_or_not(job: Job) -> Iterator[Figure]:
    if job.space.is_published(job.space.dt):
        manifests = {entity: published.read_manifest(job.space.knowledge(entity)) for entity in ENTITIES}
        for entity, manifest in manifests.items():
            yield from _sums(entity, {name: manifest["counts"][key] for name, key in _COUNTS.items()},
                             manifest["totals"], manifest["accepted_per_step"])
            yield from _backlog(entity, manifest)
        hour = (manifests["user"].get("refresh") or {}).get("one_more_hour")
        yield from [] if hour is None else [Figure("backlog_hour_share", hour)]
        yield from _loss(manifests["user"].get("loss"))
        yield from _rates(manifests["user"])
        return
    for entity in ENTITIES:
        totals = Tally([job.space.stage("generate") / f"entity={entity}"]).update()
        if totals.rows:
            counts = {"rows": totals.rows, "rows_written": totals.texts,
                      "row_errors": totals.errors}
            yield from _sums(entity, counts, vars(totals), totals.accepted_per_step)
    try:
        yield from _rates(done_record(job.space.stage("generate")))
    except (OSError, ValueError):  # the stage has not finished
        return


def _backlog(entity: str, manifest: dict) -> Iterator[Figure]:
    record = manifest.get("refresh")
    if not record:  # published by an earlier version
        return
    stale = record.get("chosen", 0) + record.get("copied", 0) + sum(record["carried"].values())
    yield Figure("rows_stale", stale, {"entity": entity})
    yield Figure("rows_copied", manifest["counts"].get("copied", 0), {"entity": entity})
    for reason, rows in record["carried"].items():
        yield Figure("rows_backlog", rows, {"entity": entity, "reason": reason})
    for age, (_, left) in record.get("ages", {}).items():
        yield Figure("rows_backlog_by_age", left, {"entity": entity, "age": age})
    if total := record.get("value", 0) + record.get("value_left", 0):
        yield Figure("backlog_value_share", record["value_left"] / total, {"entity": entity})


def _loss(record: dict | None) -> Iterator[Figure]:
    if record is None:
        return
    yield Figure("loss_over_limit", int(record["strict"] is not None))
    for measure in ("distance", "facts"):
        for name, value in (record[measure] or {}).items():
            yield Figure(f"loss_{name}", value, {"measure": measure})


def _sums(entity: str, counts: dict, totals: dict, accepted: float | None) -> Iterator[Figure]:
    label = {"entity": entity}
    for name, value in (counts | {name: totals[name] for name in _SUMS}).items():
        yield Figure(name, value, label)
    if accepted is not None:
        yield Figure("accepted_per_step", accepted, label)


def _rates(totals: dict) -> Iterator[Figure]:
    """Rates of a manifest or of the report of the stage generate, which have the same keys."""
    rate, baseline = totals.get("tokens_per_s"), published.baseline_rate(totals)
    if rate:
        yield Figure("tokens_per_second", rate)
    if baseline:
        yield Figure("baseline_tokens_per_second", baseline)
    if rate and baseline:
        yield Figure("baseline_ratio", rate / baseline)
    if totals.get("busy_s") is not None:
        yield Figure("worker_busy_seconds", totals["busy_s"])


def stage_seconds(space: Workspace) -> dict[str, float]:
    """Duration of each stage of the date; empty if nothing is known.

    Summed over all commands, including failed ones, and killed ones up to their last progress report.
    """
    try:
        record = json.loads((space.logs / _SECONDS).read_text(encoding="utf-8"))
        return {str(stage): float(seconds) for stage, seconds in record.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def previous_seconds(space: Workspace, manifest: dict) -> dict[str, float]:
    """Seconds of the stages of the run that a manifest is of; empty without one.

    The log folder of its date has those that run after publish. Without a model they do nothing.
    """
    if not manifest:
        return {}
    logged = stage_seconds(Workspace(space.out, date.fromisoformat(manifest["date"])))
    settings = manifest.get("settings") or {}
    ran = {stage: logged[stage] for stage in AFTER_PUBLISH
           if stage in logged and (settings.get(stage) or {}).get("model")}
    return {**ran, **manifest.get("seconds", {})}


def stage_spans(space: Workspace) -> list[dict]:
    """``stage, start, end`` (seconds since 1970) of each time a stage of the date ran, in the order of start.

    At most the last _MAX_SPANS, of all commands. Empty if nothing is known.
    """
    try:
        record = json.loads((space.logs / _SPANS).read_text(encoding="utf-8"))
        return [{"stage": str(span["stage"]), "start": float(span["start"]), "end": float(span["end"])}
                for span in record]
    except (OSError, ValueError, TypeError, KeyError):
        return []


@contextmanager
def count_seconds(space: Workspace, stage: str) -> Iterator[Callable[[], None]]:
    """Add the duration of the block to the stage; yields a function that saves the duration so far."""
    before, earlier = stage_seconds(space), stage_spans(space)[1 - _MAX_SPANS:]
    start, began = time.time(), time.monotonic()

    def beat() -> None:
        seconds = time.monotonic() - began
        _save(space.logs, _SECONDS, before | {stage: round(before.get(stage, 0.0) + seconds, 3)})
        span = {"stage": stage, "start": round(start, 3), "end": round(start + seconds, 3)}
        _save(space.logs, _SPANS, [*earlier, span])

    try:
        yield beat
    finally:
        beat()


def _save(folder: AnyPath, name: str, record) -> None:
    with errors.suppress_store_errors(OSError):  # only the statistics are lost
        make_folder(folder)
        write_json(folder / name, record)
