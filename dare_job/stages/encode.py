"""Stage encode: turns published texts into features: vectors, stable ids, clusters.

The stage is off unless ``encode.model`` is set.

    OUT/features/entity=E/dt=D/part-*.parquet       schemas.features
    OUT/features/entity=E/dt=D/_codebook-*          centroids of the clusters, reused by later runs
    OUT/features/entity=E/dt=D/_manifest.json       sources, counts, drift
    OUT/features/ids/entity=E/ids.parquet           schemas.IDS

A text is not encoded again if an earlier table of the same encoder contains it. A resumed run keeps finished
chunks (``publish/features/encode_tasks.py``). A date's features are published in one step.
"""

import logging
import time
from contextlib import ExitStack
from datetime import UTC, datetime

from dare_job.job import Job
from dare_job.models.files import split_revision
from dare_job.observe import redact
from dare_job.publish.features import encoder_files, inputs
from dare_job.publish.features.build import Night
from dare_job.publish.features.encode_tasks import EncodeTask
from dare_job.schemas import ENTITIES, FEATURES_VERSION
from dare_job.storage import atomic_folder, lock, paths
from dare_job.storage.paths import AnyPath
from dare_job.tables import published
from dare_job.workspace import MANIFEST, digest, write_json

_LOG = logging.getLogger("dare_job")
_VERSION = 1  # increment when the same texts would get other features
MAX_DRIFT = 1.25  # warn if the mean distance to the clusters has grown by more than this factor


def run(job: Job) -> dict:
    """Write the date's features; returns the manifests by entity type, ``{}`` if the stage is off.

    An entity type without texts has no features.

    Raises
    ------
    DataError
        The date is not published, or a table, the ids or the codebooks are damaged.
    ConfigError, ModelError
        The encoder cannot be used.
    """
    settings = job.config.encode
    if settings.model is None:
        return {}
    sources = inputs.require(job)
    folder = encoder_files.resolve(settings.model)
    name, revision = split_revision(settings.model)
    encoder = {"name": redact.values(name), "revision": revision,
               "sha256": encoder_files.fingerprint(folder), "window": None}
    prints = {entity: _fingerprint(job, source, encoder) for entity, source in sources.items()}
    manifests = {entity: manifest for entity, sha256 in prints.items()
                 if (manifest := published.current_manifest(job.space.features(entity), sha256))}
    work = job.space.work / "encode"
    if manifests.keys() != prints.keys():
        task = EncodeTask.of(job, folder, encoder["sha256"])
        key = digest([encoder["sha256"], encoder["window"]])[:12]
        with ExitStack() as failing:
            staged = {}
            for entity in sorted(prints.keys() - manifests.keys(), key=ENTITIES.index):
                night = Night(job, entity, encoder, task, work / key / f"entity={entity}")
                if made := _stage(night, sources[entity], prints[entity], failing):
                    staged[made[0]] = job.space.features(entity)
                    manifests[entity] = made[1]
            atomic_folder.publish(staged)
    if work.exists():
        paths.remove_tree(work)
    return {entity: manifests[entity] for entity in ENTITIES if entity in manifests}


def _fingerprint(job: Job, source: dict, encoder: dict) -> str:
    """Fingerprint of the texts, the encoder and the settings that features depend on."""
    settings = job.config.encode
    return digest(["encode", _VERSION, FEATURES_VERSION, source["run_id"], source["files"], encoder["sha256"],
                   encoder["window"], settings.clusters, settings.refit, job.config.seed])


def _stage(night: Night, source: dict, fingerprint: str, failing: ExitStack) -> tuple[AnyPath, dict] | None:
    """Write features to a staging folder, which an error in ``failing`` removes."""
    job, began = night.job, time.perf_counter()
    staging = atomic_folder.stage_folder(job.space.features(night.entity), flat=True)
    failing.enter_context(atomic_folder.remove_on_error(staging))
    made = night.make(staging)
    if made is None:
        if paths.is_local(staging):
            paths.remove_tree(staging)
        return None
    manifest = {
        "date": job.space.dt, "entity": night.entity, "run_id": job.run_id,
        "schema_version": FEATURES_VERSION,
        "published": datetime.now(UTC).isoformat(timespec="seconds"), "fingerprint": fingerprint,
        "knowledge": {"run_id": source["run_id"], "published": source["published"]},
        **made, "seconds": round(time.perf_counter() - began, 3)}
    lock.require_held()
    write_json(staging / MANIFEST, manifest)
    _warn(job, night.entity, manifest)
    return staging, manifest


def _warn(job: Job, entity: str, manifest: dict) -> None:
    """Warn if clusters no longer fit the texts."""
    drift = manifest["drift"]
    if drift and drift["ratio"] and drift["ratio"] > MAX_DRIFT:
        _LOG.warning("%ss: vectors are %.2f times as far from their clusters as on %s, when the clusters "
                     "were fitted (limit %g): set encode.refit=true to fit new clusters with new ids", entity,
                     drift["ratio"], manifest["codebook"]["fitted"], MAX_DRIFT)
