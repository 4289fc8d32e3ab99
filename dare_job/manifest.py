"""What a published snapshot says about itself in ``_manifest.json``."""

from collections import Counter
from datetime import UTC, datetime

import pyarrow.compute as pc

from dare_job import knowledge
from dare_job.data.text_key import text_salt
from dare_job.files import AnyPath
from dare_job.job import Job
from dare_job.observe import redact, times
from dare_job.spark import chunks, cut
from dare_job.spark.parts import Part
from dare_job.stages import upstream
from dare_job.tables import PLAN, SCHEMA_VERSION
from dare_job.workspace import digest


def describe(job: Job, entity: str, generated: dict, folder: AnyPath, files: list[Part],
             fingerprint: str, gates: dict) -> dict:
    """The manifest of a staged snapshot: who wrote it, counts, sums, rates, files with checksums.

    generated    what the stage generate reported; fingerprint: of what the snapshot was made from
    gates        what the stage gate found of the entity type, by check
    """
    counts, totals, kinds = _count(job, entity, [folder / part.file for part in files])
    plan, work = upstream.require(job, "plan"), cut.read(job.space.stage("generate"))
    return {
        "date": job.space.dt, "entity": entity, "run_id": job.run_id, "schema_version": SCHEMA_VERSION,
        "published": datetime.now(UTC).isoformat(timespec="seconds"), "seconds": times.read(job.space),
        "fingerprint": fingerprint, "plan": plan["fingerprint"], "cut": work and work.token,
        "config": digest(job.config.model_dump()), "mode": job.config.decode.mode,
        "settings": redact.values(job.config.model_dump(mode="json")), "limit": job.limit,
        "verify": job.config.verify.rule, "choice": job.choice, **_writer(job),
        "text_settings": text_salt(job.config, job.model_hash, job.draft_hash),
        "counts": counts, "totals": totals, "pool_kinds": kinds,
        "accepted_per_step": _ratio(totals["accepted_tokens"], totals["target_steps"]),
        "busy_slots": _ratio(totals["target_steps"], totals["slot_steps"]),
        "tokens_per_s": generated["tokens_per_s"], "baseline": generated["baseline"],
        "gates": gates, "beams": generated.get("beams"),
        "busy_s": generated.get("busy_s"), "workers": generated.get("workers"),
        "waves": generated.get("waves", {}).get(entity, []),
        "rejects": {"broken": plan["input"]["broken"], "duplicate": plan["input"]["duplicates"]},
        "previous": str(knowledge.old_folder(job, entity) or "") or None,
        "files": {part.file: {"rows": part.rows, "sha256": part.sha256,
                              "bytes": (folder / part.file).stat().st_size} for part in files},
    }


def _writer(job: Job) -> dict:
    writer = knowledge.writer(job)
    return writer | {"model": redact.values(writer["model"])}  # a name may be an address with a token


def _count(job: Job, entity: str, files: list[AnyPath]) -> tuple[dict, dict, dict]:
    """Counts of rows, sums over tonight's texts, and how many texts each kind of pool drafted."""
    sums = ("tokens", "target_steps", "scored_tokens", "accepted_tokens", "relaxed_tokens", "slot_steps")
    counts, totals, kinds = Counter(guarded=0), dict.fromkeys(sums, 0), Counter()
    columns = ["error", "generated_dt", "tokens", "pool_kind", "guarded_tokens", *sums[1:]]
    for batch in knowledge.dataset_of(files).to_batches(columns=columns):
        no_text = pc.is_null(batch["generated_dt"])
        fresh = pc.fill_null(pc.equal(batch["generated_dt"], job.space.dt), False)
        counts["rows"] += batch.num_rows
        counts["written"] += pc.sum(fresh).as_py() or 0
        counts["errors"] += batch.num_rows - batch["error"].null_count
        counts["without_text"] += pc.sum(no_text).as_py() or 0
        new = batch.filter(fresh)
        counts["guarded"] += chunks.guarded(new)
        kinds.update({entry["values"]: entry["counts"]
                      for entry in pc.value_counts(new["pool_kind"].drop_null()).to_pylist()})
        for name in sums:
            totals[name] += pc.sum(new[name]).as_py() or 0
    plan = knowledge.dataset(upstream.folder(job, "plan", entity), PLAN)
    counts["carried"] = counts["rows"] - counts["written"] - counts["without_text"]
    counts["skipped_fresh"] = plan.count_rows(filter=~pc.field("stale"))
    counts["pending"] = plan.count_rows() - counts["rows"]
    return dict(counts), totals, dict(kinds)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
