"""Which figures a run has, and what they mean: read from what it left on disk, so any command can tell."""

import calendar
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from dare_job.job import Job
from dare_job.observe import times
from dare_job.observe.progress import Reading
from dare_job.schemas import ENTITIES
from dare_job.tables import published
from dare_job.tables.chunk_files import Tally
from dare_job.workspace import MANIFEST, done_record

HELP = {
    "last_run_timestamp_seconds": "When the last command ended.",
    "last_success_timestamp_seconds": "When a date was last published, or found to be published already.",
    "last_exit_code": "Exit code of the last command: 0 done, 2 settings, 3 too many errors, 4 data, "
                      "5 infrastructure, 6 model, 7 pools, 1 anything else.",
    "run_info": "The last command and its run; always 1.",
    "published_date_timestamp_seconds": "Midnight (UTC) of the newest published date.",
    "rows": "Rows of the date's snapshot; while it is not published, rows finished so far.",
    "rows_written": "Rows whose text was written for the date.",
    "rows_carried": "Rows carried over from an earlier date.",
    "row_errors": "Rows with an error.",
    "tokens": "Tokens written for the date.",
    "relaxed_tokens": "Tokens written that are not the model's first choice.",
    "scored_tokens": "Tokens of old text that the prompt's forward accepted.",
    "target_steps": "Forwards of the model, summed over rows, after the prompts'.",
    "accepted_per_step": "Draft tokens accepted a step.",
    "tokens_per_second": "New tokens a second of one worker's decoding time.",
    "baseline_tokens_per_second": "The same of plain decoding on a sample of the date's rows.",
    "baseline_ratio": "tokens_per_second over baseline_tokens_per_second.",
    "worker_busy_seconds": "Decoding time summed over workers: GPU-seconds where a worker has a GPU.",
    "stage_seconds": "Time of a stage, summed over all commands on the date.",
    "progress_running": "1 from the first line of progress to the end of the command.",
    "progress_timestamp_seconds": "When the progress was taken.",
    "progress_elapsed_seconds": "How long the running stage has been at it.",
    "progress_done": "What the running stage has finished: rows, or steps of a training.",
    "progress_total": "What it will have finished in the end.",
    "progress_tokens": "Tokens written so far.",
    "progress_tokens_per_second": "Tokens a second of all workers together, lately.",
    "progress_accepted_per_step": "Draft tokens accepted a step so far.",
    "progress_eta_seconds": "What is left at the pace of late.",
}
_COUNTS = {"rows": "rows", "rows_written": "written", "rows_carried": "carried", "row_errors": "errors"}
_SUMS = ("tokens", "relaxed_tokens", "scored_tokens", "target_steps")


@dataclass(frozen=True)
class Figure:
    """A value of the metric ``dare_job_<name>``."""

    name: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)


def of_run(job: Job, command: str, exit_code: int) -> list[Figure]:
    """How a command ended, and all that is known of its date."""
    found = [*_ending(job, command, exit_code), *_published_or_not(job)]
    found += [Figure("stage_seconds", seconds, {"stage": stage})
              for stage, seconds in times.read(job.space).items()]
    return found


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
        for entity, found in manifests.items():
            yield from _sums(entity, {name: found["counts"][key] for name, key in _COUNTS.items()},
                             found["totals"], found["accepted_per_step"])
        yield from _rates(manifests["user"])
        return
    for entity in ENTITIES:
        totals = Tally([job.space.stage("generate") / f"entity={entity}"]).update()
        if totals.rows:
            counts = {"rows": totals.rows, "rows_written": totals.rows - totals.errors,
                      "row_errors": totals.errors}
            yield from _sums(entity, counts, vars(totals), totals.accepted_per_step)
    try:
        yield from _rates(done_record(job.space.stage("generate")))
    except (OSError, ValueError):  # the stage has not ended
        return


def _sums(entity: str, counts: dict, totals: dict, accepted: float | None) -> Iterator[Figure]:
    label = {"entity": entity}
    for name, value in (counts | {name: totals[name] for name in _SUMS}).items():
        yield Figure(name, value, label)
    if accepted is not None:
        yield Figure("accepted_per_step", accepted, label)


def _rates(found: dict) -> Iterator[Figure]:
    """Of a manifest, or of what the stage generate reported: both hold the run's rates."""
    rate, plain = found.get("tokens_per_s"), (found.get("baseline") or {}).get("tokens_per_s")
    if rate:
        yield Figure("tokens_per_second", rate)
    if plain:
        yield Figure("baseline_tokens_per_second", plain)
    if rate and plain:
        yield Figure("baseline_ratio", rate / plain)
    if found.get("busy_s") is not None:
        yield Figure("worker_busy_seconds", found["busy_s"])
