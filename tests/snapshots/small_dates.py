"""Publishes small dates without a model: rows of KNOWLEDGE, manifests, working files."""

from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dare_job.schemas import ENTITIES, KNOWLEDGE
from dare_job.workspace import Workspace, write_json


def row(identifier: str, words: str | None, day: str, tokens: int = 3, error: str | None = None) -> dict:
    written = {"tokens": tokens, "generated_dt": day} if words is not None else {}
    return {"entity_id": identifier, "knowledge": words, "error": error, "run_id": f"run-{day}", **written}


def publish(out: Path, day: str, rows: list[dict] | None = None, entities=ENTITIES, work: bool = True,
            cut: int | None = None, **manifest) -> Workspace:
    """A published date. ``cut``: rows in a file; ``manifest``: laid over a small one."""
    space, rows = Workspace(out, date.fromisoformat(day)), rows or [row("a", f"text of {day}", day)]
    for entity in entities:
        folder = space.knowledge(entity)
        folder.mkdir(parents=True)
        for n, start in enumerate(range(0, len(rows), cut or len(rows))):
            table = pa.Table.from_pylist(rows[start:start + (cut or len(rows))], schema=KNOWLEDGE)
            pq.write_table(table, folder / f"part-{n:05d}.parquet", row_group_size=3)
        write_json(folder / "_manifest.json", {
            "date": day, "run_id": f"run-{day}", "model": {"name": "m", "hash": "h" * 64}, "tokenizer": "t",
            "prompts": {"user": "u", "item": "i"}, "settings": {"decode": {"nodes": 8}},
            "counts": {"rows": len(rows), "written": 1, "carried": 0, "errors": 0},
            "totals": {"tokens": 30, "relaxed_tokens": 0, "target_steps": 10, "accepted_tokens": 20},
            "accepted_per_step": 2.0, "tokens_per_s": 90.0, "baseline": {"tokens_per_s": 30.0},
            "seconds": {"plan": 20.0, "generate": 50.5}, **manifest})
    if work:
        for name in ("plan/_done.json", "generate/_cut.json", "generate/entity=user/part-0.parquet"):
            (space.work / name).parent.mkdir(parents=True, exist_ok=True)
            (space.work / name).write_text("{}")
    return space
