"""Stage publish: merges the rows of this run with the previous snapshot and writes the manifest.

Every entity of the plan that has a text or an error gets one row:

- generated in this run: the new text;
- failed in this run: the previous text with ``error`` set, so that CTR training loses no feature; without a
  previous text, ``knowledge`` is null;
- not stale, carried over by the section ``refresh``, or not reached because of ``--limit``: the previous text
  unchanged, with its ``generated_dt`` and ``source_run_id``; ``carried_reason`` says why. An entity that was
  never generated and not reached has no row.
- with the prompt of another row (``text_of``, a copy): that row's text, marked as ``copied``.
- without a prompt, for the same reason as before: the previous row with its ``error``.

If texts are JSON by ``decode.schema``, a further column ``parsed`` has the values of all texts.

Both entity types are staged with their manifests and checked before either is published, each in one step
(``atomic_folder.publish``): users first, then items. If the run is killed between the two, the users are of
this run and the items of the previous publication, each complete; publishing again repairs it. Each
publication uses new file names, so a reader with an older file list reads the old files or gets an error,
never a mix.
"""

import secrets
import time
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from dare_job.data.text_key import text_salt
from dare_job.errors import DataError
from dare_job.generate import shard_plan
from dare_job.generate.task import prompt_format
from dare_job.job import Job
from dare_job.models.files import tokenizer_hash
from dare_job.observe import figures, progress, redact
from dare_job.publish import report
from dare_job.publish.gate import input_size
from dare_job.refresh import acceptance, chosen, stopping, words
from dare_job.schemas import ENTITIES, KNOWLEDGE, PLAN, SCHEMA_VERSION
from dare_job.stages import gate
from dare_job.storage import atomic_folder, lock
from dare_job.storage.paths import AnyPath
from dare_job.tables import chunk_files, parsed, parts, plan_table, published, stage_inputs
from dare_job.workspace import MANIFEST, Workspace, digest, write_json

_ROWS_PER_FILE = 100_000
# Columns about how a text was decoded: null in the rows that share the text of another one.
_OF_DECODING = ("target_steps", "scored_tokens", "accepted_tokens", "relaxed_tokens", "guarded_tokens",
                "step_tokens", "retrieval_ms", "decode_ms", "prompt_ms", "slot_steps", "pool", "pool_kind")
_SUMS = ("tokens", "target_steps", "scored_tokens", "accepted_tokens", "relaxed_tokens", "slot_steps")


def make_manifest(job: Job, entity: str, generated: dict, folder: AnyPath, files: list[parts.Part],
                  fingerprint: str, gates: dict, choice: dict) -> dict:
    """The manifest of a staged snapshot: model and settings, counts, totals, rates, files with checksums.

    Parameters
    ----------
    generated
        Record of the stage generate.
    fingerprint
        Of the snapshot's sources.
    gates
        Findings of the stage gate about the entity type, by check.
    choice
        Which rows were written, as in the record of the stage plan.
    """
    counts, totals, kinds = _count(job, entity, [folder / part.file for part in files])
    plan, work = stage_inputs.require_stage(job, "plan"), shard_plan.read_plan(job.space.stage("generate"))
    writer = published.writer_record(job)
    return {
        "date": job.space.dt, "entity": entity, "run_id": job.run_id, "schema_version": SCHEMA_VERSION,
        "published": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": figures.stage_seconds(job.space), "stages": figures.stage_spans(job.space),
        "fingerprint": fingerprint, "plan": plan["fingerprint"], "cut": work and work.token,
        "config": digest(job.config.model_dump()), "mode": job.config.decode.mode,
        "settings": redact.values(job.config.model_dump(mode="json")), "limit": job.limit,
        "verify": job.config.verify.rule, "choice": job.choice, **writer,
        "plugins": {key: plugin.record() for key, plugin in job.config.plug_ins.items()},
        "model": redact.values(writer["model"]),  # a name may be a URL with a token
        "text_settings": text_salt(job.config, job.model_hash, job.draft_hash, entity),
        "prompt_format": prompt_format(job.config, entity).record(),
        "counts": counts, "totals": {name: getattr(totals, name) for name in _SUMS}, "pool_kinds": kinds,
        "accepted_per_step": totals.accepted_per_step, "busy_slots": totals.busy_slots,
        "tokens_per_s": generated["tokens_per_s"], "baseline": generated["baseline"],
        "refresh": _carried_over(job, generated, choice, entity, [folder / part.file for part in files]),
        "gates": gates, "waves": generated["waves"][entity],
        acceptance.KEY: acceptance.newest((generated.get(acceptance.KEY) or {}).get(entity),
                                          published.previous_manifest(job, entity).get(acceptance.KEY)),
        **{name: generated.get(name) for name in ("beams", "busy_s", "workers", "baseline_span", "loss")},
        "input": input_size.compared_counts(plan["input"]),
        "rejects": {"broken": plan["input"]["broken"], "duplicate": plan["input"]["duplicates"]},
        "previous": str(published.previous_folder(job, entity) or "") or None,
        "files": {part.file: {"rows": part.rows, "sha256": part.sha256,
                              "bytes": (folder / part.file).stat().st_size} for part in files},
    }


def _carried_over(job: Job, generated: dict, choice: dict, entity: str, files: list[AnyPath]) -> dict:
    """What became of the plan's choice: rows and value, written and carried over, and the curve."""
    rows, workers = published.dataset_of_files(files), (generated["workers"] or {}).get("workers")
    rows = rows.to_table(
        columns=["stale_since", "unseen_interactions"],
        filter=pc.field("carried_reason").is_valid())
    curve, hour = choice["curve"], words.one_more_hour(choice["curve"], generated["busy_s"], workers)
    if hour is None:  # nothing was written, so this run has no rate
        hour = chosen.hour_at_previous_rate(job, curve)
    return {**choice[entity], "curve": curve, "stopped": stopping.reason(job), "one_more_hour": hour,
            "oldest": pc.min(rows["stale_since"]).as_py(),
            "unseen_interactions": pc.sum(rows["unseen_interactions"]).as_py() or 0}


def _choice(job: Job, generated: dict) -> dict:
    """The plan's choice, with what was written of it in place of what was to be written.

    If everything that the plan found stale was written, these are the same.
    """
    choice = stage_inputs.require_stage(job, "plan")["refresh"]
    to_write = sum(choice[entity]["texts"]["rows"] for entity in ENTITIES)
    if not job.config.refresh.is_limited and generated["rows"] - generated["errors"] == to_write:
        return choice
    records = chosen.counts({entity: _outcome(job, entity) for entity in ENTITIES})
    curve = choice["curve"]
    return {**records, "curve": curve and curve | chosen.texts_of(records)}


def _outcome(job: Job, entity: str):
    """The changed rows of the plan that have a prompt; those that were not written get their reason."""
    plan = plan_table.read(job, entity).where(F.col("stale") & F.col("error").isNull())
    plan = plan.withColumn("written_as", F.coalesce("text_of", "entity_id")).drop("prompt")
    new, shared = _rows(job, entity).select("entity_id", "error"), _shared(job, entity)
    new = new if shared is None else new.unionByName(shared.withColumn("error", F.lit(None).cast("string")))
    new = new.select(F.col("entity_id").alias("written_as"), F.col("error").isNull().alias("ok"))
    rows = plan.join(new, "written_as", "left")
    return rows.withColumns({
        "carried_reason": F.when(F.col("ok"), None).otherwise(_unreached(job, F.col("ok").isNotNull())),
        "text_of": F.when(F.col("ok"), F.col("text_of"))})


def _unreached(job: Job, failed: Column) -> Column:
    """Why a changed row was not written."""
    return F.coalesce("carried_reason", F.when(failed, words.FAILED).otherwise(
        stopping.reason(job) or words.LIMIT))


def _count(job: Job, entity: str, files: list[AnyPath]) -> tuple[dict, chunk_files.Totals, dict]:
    """Row counts, totals over the texts of this run, and the number of texts per kind of pool."""
    counts = Counter(dict.fromkeys(("rows", "written", "copied", "errors", "without_text"), 0))
    totals, kinds = chunk_files.Totals(), Counter()
    columns = ["error", "generated_dt", "copied", "pool_kind", "guarded_tokens", *_SUMS]
    for batch in published.dataset_of_files(files).to_batches(columns=columns):
        new = batch.filter(pc.fill_null(pc.equal(batch["generated_dt"], job.space.dt), False))
        is_copy = pc.fill_null(new["copied"], False)
        copied, new = pc.sum(is_copy).as_py() or 0, new.filter(pc.invert(is_copy))
        counts.update(rows=batch.num_rows, written=new.num_rows, copied=copied,
                      errors=batch.num_rows - batch["error"].null_count,
                      without_text=batch["generated_dt"].null_count)
        totals += chunk_files.totals_of(new)
        kinds.update({entry["values"]: entry["counts"]
                      for entry in pc.value_counts(new["pool_kind"].drop_null()).to_pylist()})
    plan = published.dataset(stage_inputs.stage_folder(job, "plan", entity), PLAN)
    counts["guarded"] = totals.guarded_rows
    new = counts["written"] + counts["copied"]
    counts["carried"] = counts["rows"] - new - counts["without_text"]
    counts["skipped_fresh"] = plan.count_rows(filter=~pc.field("stale") & pc.field("error").is_null())
    counts["errors_before"] = plan.count_rows(filter=~pc.field("stale") & pc.field("error").is_valid())
    counts["pending"] = plan.count_rows() - counts["rows"]
    return dict(counts), totals, dict(kinds)


def run(job: Job) -> dict:
    """Publish the date and write its report; returns the manifests by entity type.

    Publishes nothing if nothing changed. If the report cannot be written, logs a warning.

    Raises
    ------
    DataError
        The gate has not checked this run's rows, the previous text has changed since the stage plan, or an id
        occurs twice.
    ThresholdError
        The gate failed.
    """
    manifests = _publish(job)
    with progress.doing("writing the report"):
        report.write_or_warn(job.space.out, job.space.dt)
    return manifests


def _publish(job: Job) -> dict:
    start, began = time.time(), time.perf_counter()
    with progress.doing("comparing with the published snapshot"):
        stage_inputs.require_plan(job)
        generated = stage_inputs.require_generated(job)
        gates = gate.require_passed(job, generated)
        fingerprints = {entity: _fingerprint(job, entity, generated) for entity in ENTITIES}
        current = {entity: published.current_manifest(job.space.knowledge(entity), fingerprints[entity])
                   for entity in ENTITIES}
    if all(current.values()):
        return {entity: _with_baseline(job, entity, manifest, generated)
                for entity, manifest in current.items()}
    with ExitStack() as failing:
        staged = {entity: _stage(job, entity, failing) for entity in ENTITIES}
        with progress.doing("counting what was written"):
            choice = _choice(job, generated)
        manifests = {}
        for entity, files in staged.items():
            with progress.doing(f"counting rows of the {entity} snapshot"):
                manifests[entity] = make_manifest(job, entity, generated, *files, fingerprints[entity],
                                                  gates[entity], choice)
            seconds = round(time.perf_counter() - began, 3)
            manifests[entity]["seconds"]["publish"] = seconds
            earlier = [span for span in manifests[entity]["stages"] if span["end"] < start]
            manifests[entity]["stages"] = [
                *earlier, {"stage": "publish", "start": round(start, 3), "end": round(start + seconds, 3)}]
        _make_visible(job.space, {entity: folder for entity, (folder, _) in staged.items()}, manifests)
    return manifests


@progress.doing("replacing the published snapshot")
def _make_visible(space: Workspace, staged: dict[str, AnyPath], manifests: dict) -> None:
    """Publish staged snapshots. At a URL, writing the manifest publishes. Stops if the lock was lost."""
    for entity, folder in staged.items():
        lock.require_held()
        write_json(folder / MANIFEST, manifests[entity])
    atomic_folder.publish({folder: space.knowledge(entity) for entity, folder in staged.items()})


def _with_baseline(job: Job, entity: str, manifest: dict, generated: dict) -> dict:
    """The manifest of unchanged rows, updated if the baseline was measured after their publication."""
    if generated["baseline"] in (None, manifest["baseline"]):
        return manifest
    manifest = manifest | {name: generated[name] for name in ("tokens_per_s", "baseline")}
    lock.require_held()
    write_json(job.space.knowledge(entity) / MANIFEST, manifest)
    return manifest


def _fingerprint(job: Job, entity: str, generated: dict) -> str:
    return digest(["publish", SCHEMA_VERSION, generated["fingerprint"],
                   *stage_inputs.snapshot_identity(job, entity)])


def _stage(job: Job, entity: str, failing: ExitStack) -> tuple[AnyPath, list[parts.Part]]:
    """Write the snapshot to a staging folder, which an error in ``failing`` removes."""
    staging = atomic_folder.stage_folder(job.space.knowledge(entity), flat=True)
    failing.enter_context(atomic_folder.remove_on_error(staging))
    files = 1 + plan_table.row_count(job, entity) // _ROWS_PER_FILE
    schema = job.config.decode.form_of(entity).json
    with progress.doing(f"writing the {entity} snapshot and its checksums"):
        written = parts.write_parts(_snapshot(job, entity), staging, f"part-{secrets.token_hex(4)}", files,
                                    parsed_type=schema and parsed.column_type(schema))
    repeated = next((part.repeated for part in written if part.repeated is not None), None)
    if repeated is not None:
        raise DataError(
            f"{entity} {repeated!r} would be published twice, so nothing was published: the id occurs more "
            f"than once in the input or in the previous text "
            f"{published.previous_folder(job, entity)}; remove the duplicate")
    return staging, written


def _snapshot(job: Job, entity: str):
    """DataFrame of KNOWLEDGE, by the rules in the module's docstring."""
    plan = plan_table.read(job, entity).select(
        "entity_id", "stale", "interactions", "unseen_interactions", "carried_reason", "text_of", "distance",
        "sampled",
        F.col("error").alias("no_prompt"), F.coalesce("text_of", "entity_id").alias("written_as"))
    written = _prefixed(_texts(job, entity), "new").withColumnRenamed("entity_id", "written_as")
    rows = plan.join(written, "written_as", "left")
    rows = rows.join(_prefixed(_before(job, entity), "old"), "entity_id", "left")
    is_new, has_old = F.col("new").isNotNull() & F.col("stale"), F.col("old").isNotNull()
    failed = is_new & F.col("new.error").isNotNull()
    keep_old = has_old & (~is_new | (failed & F.col("old.knowledge").isNotNull()))
    chosen = F.when(keep_old, F.col("old")).otherwise(F.col("new"))
    kept = F.when(F.col("stale"), F.col("old.error")).otherwise(F.col("no_prompt"))
    error = F.when(failed, F.col("new.error")).when(has_old & ~is_new, kept)
    replaced = {"error": error, "run_id": F.lit(job.run_id),
                **refresh_columns(job, entity, is_new & ~failed, failed)}
    copy = ~keep_old & F.col("text_of").isNotNull()
    replaced |= {name: F.when(~copy, F.col(f"row.{name}")) for name in _OF_DECODING}
    with_text = copy & F.col("row.knowledge").isNotNull()
    replaced["copied"] = F.when(with_text, True).otherwise(F.col("row.copied"))
    rows = rows.where(is_new | has_old).withColumn("row", chosen)
    rest = [name for name in KNOWLEDGE.names if name != "entity_id"]
    return rows.select("entity_id", *[replaced.get(name, F.col(f"row.{name}")).alias(name) for name in rest])


def refresh_columns(job: Job, entity: str, written: Column, failed: Column) -> dict[str, Column]:
    """What the snapshot says about a row's text and the changes that it does not know, by column.

    Parameters
    ----------
    written, failed
        Whether the row's text was written in this run, and whether it was tried in vain.
    """
    fresh, tried = ~F.col("stale"), failed & F.col("no_prompt").isNull()
    known = F.coalesce("old.text_interactions", F.when(
        fresh & F.col("old.knowledge").isNotNull() & F.col("no_prompt").isNull(), F.col("interactions")))
    carried = F.col("stale") & ~written & F.col("no_prompt").isNull()
    return {
        "prompt_set": F.when(written, job.config.prompt_set(entity).version_hash).otherwise(
            F.col("old.prompt_set")),
        **{name: F.when(written, F.col(planned)).otherwise(F.col(f"old.{name}")) for name, planned in (
            ("sampled", "sampled"), ("distance", "distance"), ("new_interactions", "unseen_interactions"))},
        "text_interactions": F.when(written, F.col("interactions")).otherwise(known).cast("int"),
        "unseen_interactions": F.when(written, 0).otherwise(F.coalesce(
            "unseen_interactions", F.when(known.isNotNull(), 0))).cast("int"),
        "stale_since": F.when(carried, F.coalesce("old.stale_since", F.lit(job.space.dt))),
        "carried_reason": F.when(carried, _unreached(job, failed)),
        "failures": F.when(tried, F.coalesce("old.failures", F.lit(0)) + 1).when(
            ~written & F.col("stale"), F.col("old.failures")).cast("int"),
        "failed_dt": F.when(tried, F.lit(job.space.dt)).when(
            ~written & F.col("stale"), F.col("old.failed_dt")),
    }


def _before(job: Job, entity: str):
    """The rows of the previous text; without token ids if they are those of another tokenizer."""
    old = published.previous_folder(job, entity)
    if old is None:
        return _empty(job)
    before = published.read_texts(job, old).withColumn("generated_dt", published.text_date())
    if old.name.startswith("dt="):
        dated = F.coalesce("generated_dt", F.lit(old.name[3:]))
        before = before.withColumn("generated_dt", F.when(F.col("knowledge").isNotNull(), dated))
    else:  # texts that came with the input: from before this run
        earlier = (job.space.day - timedelta(days=1)).isoformat()
        before = before.withColumn("generated_dt", F.coalesce(
            "generated_dt", F.when(F.col("knowledge").isNotNull(), earlier)))
    if published.read_manifest(old).get("tokenizer") != tokenizer_hash(job.model_path):
        before = before.withColumn("token_ids", F.lit(None).cast("array<int>"))
    return before


def _texts(job: Job, entity: str):
    """The rows generated in this run, and those of before whose text rows with the same prompt get.

    The latter with the date of the run, which would have written the same: what their text knows ends there.
    """
    rows, shared = _rows(job, entity), _shared(job, entity)
    if shared is None:
        return rows
    before = _before(job, entity).join(shared, "entity_id", "left_semi")
    return rows.unionByName(before.withColumns({
        "generated_dt": F.lit(job.space.dt), "error": F.lit(None).cast("string")}))


def _shared(job: Job, entity: str):
    """``entity_id`` of the rows whose text of before others get; None if there are none."""
    ids = plan_table.current_texts_shared(job, entity)
    return job.spark.createDataFrame(pa.table({"entity_id": ids.unique()})) if len(ids) else None


def _rows(job: Job, entity: str):
    """The rows generated in this run, or an empty table."""
    folder = stage_inputs.generated_folder(job, entity)
    if not any(folder.glob("*.parquet")):
        return _empty(job)
    return published.read_texts(job, folder)


def _empty(job: Job):
    return job.spark.createDataFrame([], from_arrow_schema(KNOWLEDGE))


def _prefixed(table, name: str):
    rest = [column for column in KNOWLEDGE.names if column != "entity_id"]
    return table.select("entity_id", F.struct(*rest).alias(name))
