"""Stage recommend: the top K items of each user by a generative recommender. Off unless ``recommend.model``.

    OUT/candidates/dt=D/part-*.parquet      tables.CANDIDATES
    OUT/candidates/dt=D/_manifest.json      what made them, counts, forwards

Reads the input alone: ``dare-job recommend`` needs no other stage. A killed run goes on with the chunks of
users that it finished (``recommend/chunks.py``); the date's table is shown in one step (``swap.show``).
"""

import logging
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.compute as pc

from dare_job.data.input import prepare
from dare_job.errors import ConfigError, DataError, InfrastructureError, ModelError, ThresholdError
from dare_job.generate import hangs
from dare_job.generate.shard_plan import RETRY
from dare_job.job import Job
from dare_job.models import files as models_files
from dare_job.observe import redact
from dare_job.publish.gate.failures import Reasons
from dare_job.recommend import chunks, publishing, users
from dare_job.recommend import task as recommend_task
from dare_job.recommend.catalogue import Catalogue
from dare_job.recommend.task import RecommendTask
from dare_job.recommend.vocabulary import Recommender
from dare_job.schemas import CANDIDATES_VERSION
from dare_job.storage import atomic, lock, paths
from dare_job.tables import published
from dare_job.workspace import MANIFEST, digest, done_record, write_json

_LOG = logging.getLogger("dare_job")
_VERSION = 3  # of what makes lists: one more where the same input gets other ones


def run(job: Job) -> dict:
    """Write the date's candidates; returns the manifest, ``{}`` where the stage is off.

    Raises ConfigError for a recommender of no use or K above the number of items, ModelError for a damaged
    one, DataError for a bad input, ThresholdError where more users failed than limits.max_error_share allows:
    then nothing is shown, and the next run tries the chunks of these users again.
    """
    settings = job.config.recommend
    if settings.model is None:
        return {}
    began = time.perf_counter()
    folder = models_files.resolve(settings.model, settings.revision, setting="recommend.model")
    recommender, drafter = Recommender.open(folder), _drafter(job)
    known = len(recommender.ids.items)
    _require_ids(job, known, known)  # refused before anything costs
    if drafter:
        recommend_task.open_drafter(recommender, drafter)
    if settings.drafter and settings.dtype != "float32" and not settings.temperature:
        _LOG.warning("recommend.dtype = %s: some lists will not be those of plain beam search, as drafts "
                     "group sums otherwise; set it to float32, or recommend.drafter to null, where they "
                     "must be", settings.dtype)
    made_by = {name: {"folder": redact.values(str(place)), "sha256": models_files.fingerprint(place)}
               for name, place in (("model", folder), ("drafter", drafter)) if place}
    source = prepare(job)
    fingerprint = _fingerprint(job, done_record(source)["fingerprint"], made_by)
    target = job.space.candidates()
    if found := published.current_manifest(target, fingerprint):
        return found
    work = job.space.work / "recommend" / fingerprint[:12]
    table = users.prepare(job, source, work / "users", fingerprint)
    if not table["users"]:
        raise DataError(f"{source} names no user, or --limit is 0: there is nobody to recommend to")
    counts = users.counts(atomic.current(work / "users"), recommender.ids)
    _require_items(job, Catalogue.of(recommender.ids, counts))
    task = RecommendTask.of(job, folder, drafter, atomic.current(work / "users"), work, fingerprint)
    said = chunks.write(job, task, table["chunks"], table["users"])
    if hung := hangs.hang_count(work, fingerprint):
        _LOG.warning("workers hung, or their device failed, %d times, and they were started anew; users "
                     "over whom two did have an error that says what happened", hung)
    manifest = _publish(job, table, task.chunks, fingerprint, {
        "made_by": made_by, "settings": settings.model_dump(),
        "workers": {"workers": len({row["worker"] for row in said}),
                    "users": sum(row["users"] for row in said),
                    "hangs": hung,
                    "busy_s": round(sum(row["busy_s"] for row in said), 3)},
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


def _fingerprint(job: Job, input_: str, made_by: dict) -> str:
    """Of the input, the model and the settings that lists, or their chunks, depend on. Drafts are among
    them only where lists are drawn, or in a narrow type: beam search in float32 finds the same with any.
    A drafter that is a folder counts by its files, not by their place.
    """
    settings = job.config.recommend.model_dump(exclude={"model", "revision", "batch_size"})
    if "drafter" in made_by:
        del settings["drafter"]
    if not settings["temperature"] and settings["dtype"] == "float32":
        settings = {name: settings[name] for name in ("dtype", "k", "scores", "exclude", "rows_per_commit")}
        made_by = {"model": made_by["model"]}
    return digest(["recommend", _VERSION, CANDIDATES_VERSION, input_, job.space.dt, job.limit,
                   job.config.history.min_rating, settings,
                   {name: found["sha256"] for name, found in made_by.items()}])


def _require_ids(job: Job, items: int, most: int) -> None:
    """most: of these items a list can hold."""
    if job.config.recommend.k > most:
        of_which = "" if most == items else f", of which a list can hold {most}"
        raise ConfigError(f"recommend.k = {job.config.recommend.k}: the recommender has ids for {items} "
                          f"items{of_which}: set recommend.k to at most that")


def _require_items(job: Job, catalogue: Catalogue) -> None:
    settings = job.config.recommend
    _require_ids(job, len(catalogue.ids.items), catalogue.most(settings.exclude))
    if not catalogue.counts.any():
        _LOG.warning("no item of the input has an id in %s: all users get the most popular items of that "
                     "file, in its order; are these the ids of another catalogue?", settings.model)


def _publish(job: Job, table: dict, made: paths.AnyPath, fingerprint: str, said: dict) -> dict:
    """Write the table beside its place, check it and let readers see it; the manifest."""
    target = job.space.candidates()
    staging = atomic.stage_folder(target, flat=True)
    with atomic.remove_on_error(staging):
        named, sums = publishing.write(job, made, staging, table["users"], job.config.recommend.k)
        _require_few_errors(job, sums, staging, made.parent)
        searched = sums["users"] - sums["errors"] - sums["popular"]
        manifest = {
            "date": job.space.dt, "run_id": job.run_id, "schema_version": CANDIDATES_VERSION,
            "published": datetime.now(UTC).isoformat(timespec="seconds"), "fingerprint": fingerprint,
            "files": named, "counts": sums | {"searched": searched},
            "forwards_a_user": round(sums["forwards"] / searched, 4) if searched else None, **said}
        lock.require_held()
        write_json(staging / MANIFEST, manifest)
        atomic.publish({staging: target})
    return manifest


def _require_few_errors(job: Job, sums: dict, made: paths.AnyPath, work: paths.AnyPath) -> None:
    """made: the table's files."""
    limit = job.config.limits.max_error_share
    if limit is not None and sums["users"] and sums["errors"] / sums["users"] > limit:
        reasons = Reasons()
        failed = paths.parquet_dataset(made).to_table(columns=["error"], filter=pc.field("error").is_valid())
        for reason in failed["error"].to_pylist():
            reasons.add(reason)
        write_json(work / RETRY, {"run_id": job.run_id})
        raise ThresholdError(f"{sums['errors']} of {sums['users']} users got no list, more than "
                             f"limits.max_error_share = {limit}; nothing was published. Commonest: "
                             f"{reasons.commonest()}")
