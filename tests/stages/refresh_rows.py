"""Input, earlier texts and the plan's rows of ``test_refresh_plan``."""

import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq

from dare_job import schemas
from dare_job.data.text_key import text_salt
from dare_job.refresh import acceptance
from dare_job.stages import plan
from dare_job.tables import plan_table, published
from dare_job.workspace import MANIFEST

JAN_9 = 1_767_916_800  # 2026-01-09 00:00 UTC
DEC_9 = JAN_9 - 31 * 86_400  # before all texts of earlier dates
USERS = [f"u{number}" for number in range(8)]


def shared(rows):
    return {name: row["text_of"] for name, row in rows.items() if row["text_of"]}


def interactions():
    """User uN has N + 1 interactions, with items of its own, so no two prompts are equal."""
    return [(user, f"{user}-{place}", 5.0, DEC_9 + place)
            for user in USERS for place in range(int(user[1]) + 1)]


def publish_old(job, day, rows):
    """Texts of an earlier date that answer other prompts: id -> columns that differ."""
    for entity in schemas.ENTITIES:
        salt = text_salt(job.config, job.model_hash, job.draft_hash, entity)
        key = hashlib.sha256(f"other{salt}".encode()).hexdigest()
        folder = job.space.knowledge(entity, day)
        folder.mkdir(parents=True)
        table = [{"entity_id": name, "knowledge": "text", "text_key": key, "prompt_sha256": "other",
                  "generated_dt": day, "text_interactions": 1, "tokens": 10, "target_steps": 5,
                  "run_id": "old", **columns} for name, columns in rows.items()] if entity == "user" else []
        pq.write_table(pa.Table.from_pylist(table, schema=schemas.KNOWLEDGE), folder / "part-0.parquet")
        (folder / MANIFEST).write_text(json.dumps({"date": day, "run_id": "old",
                                                   **published.writer_record(job)}))


def rated(job, day, **record):
    """The run of ``day`` measured these rates of rows without a previous text."""
    path = job.space.knowledge("user", day) / MANIFEST
    measured = {"date": day, "mode": "dare", "steps": 1000, "tokens": 4000, "kinds": {}, "pools": {}}
    path.write_text(json.dumps(json.loads(path.read_text()) | {acceptance.KEY: measured | record}))


def planned(job):
    record = plan.run(job)
    rows = {row["entity_id"]: row.asDict() for row in plan_table.read(job, "user").collect()}
    assert set(plan_table.rows_to_generate(job, "user")["entity_id"].to_pylist()) == written(rows)
    return record, rows


def written(rows):
    return {name for name, row in rows.items()
            if row["stale"] and not row["carried_reason"] and not row["text_of"]}
