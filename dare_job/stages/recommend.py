"""Stage recommend: the top K items of each user by a generative recommender. Off unless ``recommend.model``
is set.

    OUT/candidates/dt=D/part-*.parquet      schemas.CANDIDATES
    OUT/candidates/dt=D/_manifest.json      model, settings, counts, forward passes

The stage reads the input only. After an interruption it continues with the unfinished chunks of users
(``recommend/chunks.py``). The date's table is published atomically.
"""

import logging
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pyarrow.compute as pc

from dare_job.data.history import end_of_date
from dare_job.data.input.prepare import prepare_input
from dare_job.errors import ConfigError, DataError, InfrastructureError, ModelError, ThresholdError
from dare_job.generate import hangs
from dare_job.generate.shard_plan import RETRY
from dare_job.job import Job
from dare_job.models import files as models_files
from dare_job.observe import progress, redact
from dare_job.publish.gate import input_size
from dare_job.publish.gate.failures import ErrorReasons
from dare_job.recommend import chunks, publishing, users
from dare_job.recommend import task as recommend_task
from dare_job.recommend.catalogue import Catalogue
from dare_job.recommend.task import RecommendTask
from dare_job.recommend.vocabulary import Recommender
from dare_job.schemas import CANDIDATES_VERSION
from dare_job.storage import atomic_folder, lock, paths
from dare_job.tables import published
from dare_job.workspace import MANIFEST, digest, done_record, write_json

_LOG = logging.getLogger("dare_job")
_VERSION = 3  # increment when the same input gives different recommendations


def run(job: Job) -> dict:
    """Write the date's candidates and return the manifest, or ``{}`` if the stage is off.

    Raises
    ------
    ConfigError
        The recommender does not fit, or K exceeds the number of items.
    ModelError
        The recommender is damaged.
    DataError
        The input is invalid.
    ThresholdError
        More users failed than limits.max_error_share allows; nothing is published, and the next run retries
        their chunks.
    """
    settings = job.config.recommend
    if settings.model is None:
        return {}
    began = time.perf_counter()
    folder = models_files.resolve(settings.model, setting="recommend.model")
    with progress.doing("opening the recommender"):
        recommender, drafter = Recommender.open(folder), _drafter(job)
    item_count = len(recommender.ids.items)
    _require_ids(job, item_count, item_count)  # fail before any expensive work
    if drafter:
        recommend_task.open_drafter(recommender, drafter)
    if settings.drafter and settings.dtype != "float32" and not settings.temperature:
        _LOG.warning("recommend.dtype = %s: with drafts, some recommendations will differ from those of beam "
                     "search, because sums are grouped differently. For identical results set "
                     "recommend.dtype to float32 or recommend.drafter to null", settings.dtype)
    with progress.doing("hashing the recommender"):
        made_by = _made_by(folder, drafter)
    source = prepare_input(job, partial(input_size.check, job, needs_titles=False))
    fingerprint = _fingerprint(job, done_record(source)["fingerprint"], made_by)
    target = job.space.candidates()
    if current := published.current_manifest(target, fingerprint):
        return current
    work = job.space.work / "recommend" / fingerprint[:12]
    user_record = users.prepare(job, source, work / "users", fingerprint)
    if not user_record["users"]:
        raise DataError(f"no users to recommend to: {source} has none, or --limit is 0")
    counts = users.counts(atomic_folder.current(work / "users"), recommender.ids)
    _require_items(job, Catalogue.build(recommender.ids, counts))
    task = RecommendTask.of(job, folder, drafter, atomic_folder.current(work / "users"), work, fingerprint)
    worker_stats = chunks.write(job, task, user_record["chunks"], user_record["users"])
    if hang_count := hangs.hang_count(work, fingerprint):
        _LOG.warning("workers hung or lost their device %d times and were restarted; users whose batch "
                     "failed twice have an error", hang_count)
    manifest = _publish(job, user_record, task.chunks, fingerprint, {
        "made_by": made_by, "settings": settings.model_dump(),
        "workers": {"workers": len({row["worker"] for row in worker_stats}),
                    "users": sum(row["users"] for row in worker_stats),
                    "hangs": hang_count,
                    "busy_s": round(sum(row["busy_s"] for row in worker_stats), 3)},
        "seconds": round(time.perf_counter() - began, 3)})
    paths.remove_tree(job.space.work / "recommend")
    return manifest


def _drafter(job: Job) -> Path | None:
    name = job.config.recommend.drafter
    if name is None or name in recommend_task.WITHOUT_MODEL:
        return None
    try:
        return models_files.resolve(name, setting="recommend.drafter")
    except (ModelError, InfrastructureError) as error:
        raise type(error)(
            f"recommend.drafter = {name!r}: {error}; it is one of "
            f"{', '.join(recommend_task.WITHOUT_MODEL)}, or a small recommender's folder"
        ) from error


def _fingerprint(job: Job, input_fingerprint: str, made_by: dict) -> str:
    """Fingerprint the input, the model and the settings on which recommendations or their chunks depend.

    Drafts count only for sampling or in a narrow dtype: beam search in float32 gives the same result with any
    drafts. A drafter folder counts by its files, not its location.
    """
    settings = job.config.recommend.model_dump(exclude={"model", "batch_size"}) | {"seed": job.config.seed}
    if "drafter" in made_by:
        del settings["drafter"]
    if not settings["temperature"] and settings["dtype"] == "float32":
        settings = {name: settings[name] for name in ("dtype", "k", "scores", "exclude", "rows_per_commit")}
        made_by = {"model": made_by["model"]}
    return digest(["recommend", _VERSION, CANDIDATES_VERSION, input_fingerprint, job.space.dt,
                   end_of_date(job), job.limit, job.config.history.min_rating, settings,
                   {name: record["sha256"] for name, record in made_by.items()}])


def _require_ids(job: Job, items: int, max_items: int) -> None:
    """Raise ConfigError if K exceeds the number of items that can be recommended."""
    if job.config.recommend.k > max_items:
        limited = "" if max_items == items else f", of which recommend.exclude leaves {max_items}"
        raise ConfigError(f"recommend.k = {job.config.recommend.k}: the recommender has ids for {items} "
                          f"items{limited}; set recommend.k to at most {max_items}")


def _require_items(job: Job, catalogue: Catalogue) -> None:
    settings = job.config.recommend
    _require_ids(job, len(catalogue.ids.items), catalogue.max_items(settings.exclude))
    if not catalogue.counts.any():
        _LOG.warning("no item of the input has an id in %s: all users get its first items. Check that the "
                     "ids belong to this catalogue", settings.model)


def _publish(job: Job, user_record: dict, chunk_folder: paths.AnyPath, fingerprint: str,
             run_record: dict) -> dict:
    """Write the table to staging, check it, publish it and return the manifest."""
    target = job.space.candidates()
    staging = atomic_folder.stage_folder(target, flat=True)
    with atomic_folder.remove_on_error(staging):
        manifest_files, sums = publishing.write(job, chunk_folder, staging, user_record["users"],
                                                job.config.recommend.k)
        _require_few_errors(job, sums, staging, chunk_folder.parent)
        searched = sums["users"] - sums["errors"] - sums["popular"]
        manifest = {
            "date": job.space.dt, "run_id": job.run_id, "schema_version": CANDIDATES_VERSION,
            "published": datetime.now(UTC).isoformat(timespec="seconds"), "fingerprint": fingerprint,
            "files": manifest_files, "counts": sums | {"searched": searched},
            "forwards_per_user": round(sums["forwards"] / searched, 4) if searched else None, **run_record}
        lock.require_held()
        write_json(staging / MANIFEST, manifest)
        atomic_folder.publish({staging: target})
    return manifest


def _require_few_errors(job: Job, sums: dict, table_folder: paths.AnyPath, work: paths.AnyPath) -> None:
    """Raise ThresholdError if too many users failed, and mark their chunks for a retry."""
    limit = job.config.limits.max_error_share
    if limit is not None and sums["users"] and sums["errors"] / sums["users"] > limit:
        failed = paths.parquet_dataset(table_folder).to_table(
            columns=["user_id", "error"], filter=pc.field("error").is_valid())
        reasons = ErrorReasons()
        reasons.add(failed["user_id"], failed["error"])
        write_json(work / RETRY, {"run_id": job.run_id})
        raise ThresholdError(f"{sums['errors']} of {sums['users']} users got no recommendations, more than "
                             f"limits.max_error_share = {limit}; nothing was published. Most common reasons: "
                             f"{reasons}")


def _made_by(model: Path, drafter: Path | None) -> dict[str, dict[str, str]]:
    """Folder and fingerprint of the recommender and of its drafter, if it is a model."""
    return {name: {"folder": redact.values(str(place)), "sha256": models_files.fingerprint(place)}
            for name, place in (("model", model), ("drafter", drafter)) if place}
