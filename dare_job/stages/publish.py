"""Stage publish: tonight's rows and yesterday's others become the date's snapshot, with a manifest.

Every entity of the plan that has a text or an error gets one row:

- written tonight: the new text;
- failed tonight: yesterday's text with ``error`` set, so that CTR training loses no feature; where there
  was none, ``knowledge`` is null;
- not stale, or not reached because of ``--limit``: yesterday's row as it was (``generated_dt`` and
  ``source_run_id`` stay). An entity never written and not reached has no row.

Both entity types are staged with their manifests and checked before either is shown, each in one step
(``swap.show``): users first, then items. A kill between the two leaves users of this run beside items of
the publication before, each whole; publishing again ends it. File names are new in each publication, so that
who listed the older files finds them or misses them, and never reads some of both.
"""

import secrets
import time
from contextlib import ExitStack

import pyarrow.dataset as ds

from dare_job import knowledge, lock, manifest, report, swap
from dare_job.errors import DataError
from dare_job.files import AnyPath
from dare_job.job import Job
from dare_job.model_files import tokenizer_hash
from dare_job.spark import parts
from dare_job.stages import gate, upstream, written
from dare_job.tables import ENTITIES, KNOWLEDGE, PLAN, SCHEMA_VERSION
from dare_job.workspace import MANIFEST, Workspace, digest, write_json

_ROWS_A_FILE = 100_000


def run(job: Job) -> dict:
    """Publish the date and write its report; returns the manifests by entity type.

    They are as they were where nothing changed. A report that cannot be written is a warning.

    Raises DataError where the gate has not looked at tonight's rows, the text before is another than the
    plan's, or an id would be there twice; ThresholdError where the gate failed.
    """
    manifests = _publish(job)
    report.write_or_warn(job.space.out, job.space.dt)
    return manifests


def _publish(job: Job) -> dict:
    began = time.perf_counter()
    upstream.require_plan(job)
    generated = written.require(job)
    gates = gate.passed(job, generated)
    fingerprints = {entity: _fingerprint(job, entity, generated) for entity in ENTITIES}
    published = {entity: knowledge.made_from(job.space.knowledge(entity), fingerprints[entity])
                 for entity in ENTITIES}
    if all(published.values()):
        return {entity: _with_baseline(job, entity, found, generated) for entity, found in published.items()}
    with ExitStack() as failing:
        staged = {entity: _stage(job, entity, failing) for entity in ENTITIES}
        manifests = {}
        for entity, files in staged.items():
            manifests[entity] = manifest.describe(job, entity, generated, *files, fingerprints[entity],
                                                  gates[entity])
            manifests[entity]["seconds"]["publish"] = round(time.perf_counter() - began, 3)
        _show(job.space, {entity: folder for entity, (folder, _) in staged.items()}, manifests)
    return manifests


def _show(space: Workspace, staged: dict[str, AnyPath], manifests: dict) -> None:
    """Let readers see staged snapshots; at a URL the manifest does it. Nothing where the lock was lost."""
    for entity, folder in staged.items():
        lock.require_held()
        write_json(folder / MANIFEST, manifests[entity])
    swap.show({folder: space.knowledge(entity) for entity, folder in staged.items()})


def _with_baseline(job: Job, entity: str, found: dict, generated: dict) -> dict:
    """The manifest of rows that stay as they are, with a baseline that was measured since."""
    if generated["baseline"] in (None, found["baseline"]):
        return found
    found = found | {name: generated[name] for name in ("tokens_per_s", "baseline")}
    lock.require_held()
    write_json(job.space.knowledge(entity) / MANIFEST, found)
    return found


def _fingerprint(job: Job, entity: str, generated: dict) -> str:
    return digest(["publish", SCHEMA_VERSION, generated["fingerprint"], *written.identity(job, entity)])


def _plan(job: Job, entity: str) -> ds.Dataset:
    return knowledge.dataset(upstream.folder(job, "plan", entity), PLAN)


def _stage(job: Job, entity: str, failing: ExitStack) -> tuple[AnyPath, list[parts.Part]]:
    """Write the snapshot beside its place; returns the folder, removed where ``failing`` fails, and files."""
    staging = swap.staged(job.space.knowledge(entity), flat=True)
    failing.enter_context(swap.discarding(staging))
    known = _plan(job, entity).count_rows()
    name = f"part-{secrets.token_hex(4)}"
    written = parts.write_parts(_snapshot(job, entity), staging, name, 1 + known // _ROWS_A_FILE)
    repeated = next((part.repeated for part in written if part.repeated is not None), None)
    if repeated is not None:
        raise DataError(
            f"{entity} {repeated!r} would be published twice: the input or the old text in "
            f"{knowledge.old_folder(job, entity)} holds the id more than once; nothing was published")
    return staging, written


def _snapshot(job: Job, entity: str):
    """DataFrame of KNOWLEDGE: the rule in the module's text."""
    from pyspark.sql import functions as F

    known = upstream.table(job, "plan", entity)
    rows = known.select("entity_id", "stale").join(_prefixed(_rows(job, entity), "new"), "entity_id", "left")
    old = knowledge.old_folder(job, entity)
    before = knowledge.read_table(job, old) if old else _empty(job)
    if old and old.name.startswith("dt="):
        before = before.withColumn("generated_dt", F.coalesce("generated_dt", F.lit(old.name[3:])))
    if old and knowledge.manifest(old).get("tokenizer") != tokenizer_hash(job.model_path):
        before = before.withColumn("token_ids", F.lit(None).cast("array<int>"))  # ids of another tokenizer
    rows = rows.join(_prefixed(before, "old"), "entity_id", "left")
    is_new, has_old = F.col("new").isNotNull(), F.col("old").isNotNull()
    failed = is_new & F.col("new.error").isNotNull()
    keep_old = has_old & (~is_new | (failed & F.col("old.knowledge").isNotNull()))
    chosen = F.when(keep_old, F.col("old")).otherwise(F.col("new"))
    error = F.when(failed, F.col("new.error")).when(has_old & ~is_new & F.col("stale"), F.col("old.error"))
    rows = rows.where(is_new | has_old).select("entity_id", chosen.alias("row"), error.alias("error"))
    own = {"entity_id": F.col("entity_id"), "error": F.col("error"), "run_id": F.lit(job.run_id)}
    return rows.select([own.get(name, F.col(f"row.{name}")).alias(name) for name in KNOWLEDGE.names])


def _rows(job: Job, entity: str):
    """Tonight's rows, or an empty table."""
    folder = written.folder(job, entity)
    if not any(folder.glob("*.parquet")):
        return _empty(job)
    return knowledge.read_table(job, folder)


def _empty(job: Job):
    from pyspark.sql.pandas.types import from_arrow_schema

    return job.spark.createDataFrame([], from_arrow_schema(KNOWLEDGE))


def _prefixed(table, name: str):
    from pyspark.sql import functions as F

    rest = [column for column in KNOWLEDGE.names if column != "entity_id"]
    return table.select("entity_id", F.struct(*rest).alias(name))
