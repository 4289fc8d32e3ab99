"""Hand-made tables for the gate: the plan, the generated rows and the previous snapshot."""

import pyarrow as pa
import pyarrow.parquet as pq

from dare_job.job import Job
from dare_job.publish.gate.findings import NAME
from dare_job.schemas import ENTITIES, KNOWLEDGE, PLAN
from dare_job.tables import published
from dare_job.workspace import write_json

DAY, BEFORE = "2026-01-02", "2026-01-01"


def text(identifier: str, tokens: int = 20, words: str = "a text worth reading", **columns) -> dict:
    """A good row of KNOWLEDGE with this number of tokens, without a loop."""
    return {"entity_id": identifier, "knowledge": words, "token_ids": list(range(tokens)), "tokens": tokens,
            "finish_reason": "eos", "relaxed_tokens": 0, "generated_dt": DAY, "prompt_sha256": "s",
            "text_key": "k", "run_id": "run-1", **columns}


def texts(count: int, name: str = "u", **columns) -> list[dict]:
    return [text(f"{name}{n}", **columns) for n in range(count)]


def failed(identifier: str, reason: str, prompt: str | None = "s") -> dict:
    return {"entity_id": identifier, "error": reason, "finish_reason": "error", "prompt_sha256": prompt,
            "run_id": "run-1"}


def night(job: Job, users: list[dict] = (), items: list[dict] = (), old: list[dict] = (),
          fingerprint: str = "g", fresh: int = 0, prompt: str = "Describe what this viewer likes.",
          **manifest) -> Job:
    """Write the tables of a run.

    old : users of the previous date, generated with the same settings except for ``manifest``
    fresh : number of additional users in the plan, which are not stale
    """
    rows = {"user": users, "item": items}
    for entity in ENTITIES:
        plan = [{"entity_id": row["entity_id"], "prompt": prompt, "stale": True, "strict": False,
                 "interactions": 1} for row in rows[entity]]
        _write(job.space.stage("plan") / f"entity={entity}", plan, PLAN)
        _write(job.space.stage("generate") / f"entity={entity}", rows[entity], KNOWLEDGE)
        before = job.space.knowledge(entity, BEFORE)
        _write(before, old if entity == "user" else [], KNOWLEDGE)
        write_json(before / "_manifest.json", {"run_id": "before"} | published.writer_record(job) | manifest)
    more = {"user": fresh, "item": 0}
    counts = {entity: {"rows": len(rows[entity]) + more[entity], "stale": len(rows[entity]), "errors": 0}
              for entity in ENTITIES}
    write_json(job.space.stage("plan") / "_done.json",
               {"fingerprint": "p", "model": job.model_hash, "before": {},
                "input": {"broken": 0, "duplicates": 0, "up_to_date": 9, "users": 2, "items": 3},
                **counts})
    write_json(job.space.stage("generate") / "_done.json",
               {"fingerprint": fingerprint, "rows": len(users) + len(items), "tokens_per_s": 1.0,
                "baseline": None, "waves": {"user": [], "item": []}, "beams": None, "busy_s": 1.0,
                "workers": None})
    return job


def _write(folder, rows, schema) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), folder / "part-0.parquet")


def listed(job: Job) -> list[tuple]:
    """(entity, entity_id, check, value, text) of each row in the table of failing rows."""
    return [tuple(row.values()) for row in pq.read_table(job.space.stage("gate") / NAME).to_pylist()]
