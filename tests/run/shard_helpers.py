"""One shard's rows written by a worker's own code in this process, with the embedded model."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dare_job.config.settings import JobConfig
from dare_job.generate import shard_plan, worker
from dare_job.generate.task import Task
from dare_job.models import embedded_path
from dare_job.tables import chunk_files

_KINDS = ("quiet dramas", "loud comedies", "old westerns", "space operas", "heist films")


def prompt(number: int) -> str:
    return f"User {number} watched {_KINDS[number % 5]} and, lately, {_KINDS[number // 5 % 5]}.\nProfile:"


def prepared(folder: Path, run_id: str = "run-1", **decode) -> Task:
    """A task of a cut in ``folder``; four rows at once, unless ``decode`` says else."""
    for entity in ("user", "item"):
        (folder / f"entity={entity}").mkdir(parents=True, exist_ok=True)
    (folder / shard_plan.SHARD_PLAN).write_text(json.dumps(
        {"token": "cut-1", "fingerprint": "f", "shards": 1, "rows": 9, "kept": 0, "waves": [[9, 9]]}))
    decode = {"max_new_tokens": 20, "min_new_tokens": 20, "batch_size": 4, "nodes": 4, **decode}
    config = JobConfig.model_validate({"decode": decode})
    return Task(config, str(embedded_path()), "t", str(folder), str(folder / "pools"), "", "cut-1",
                "2026-01-02", run_id, 1)


def write(task: Task, prompts: dict[str, str], shard: int = 0) -> dict[str, dict]:
    """Write a shard of these rows, and read what was committed."""
    table = [{"entity": "user", "entity_id": name, "prompt": words, "prompt_sha256": "s", "text_key": "k",
              "error": None, "pool": "global", "pool_kind": "global", "own_ids": None, "strict": False,
              "shard": shard, "chunk": place // 4, "position": place}
             for place, (name, words) in enumerate(prompts.items())]
    schema = pa.Table.from_pylist(table).schema.set(
        list(table[0]).index("own_ids"), pa.field("own_ids", pa.list_(pa.int32())))
    list(worker.write_shard(pa.Table.from_pylist(table, schema).to_batches(max_chunksize=4), task))
    shard_plan.raise_failure(Path(task.folder))
    return committed(task)


def committed(task: Task) -> dict[str, dict]:
    """Rows by id; fails where an id is there twice."""
    rows = [row for path in sorted(Path(task.folder).glob("entity=user/part-*"))
            for row in pq.read_table(path).to_pylist()]
    found = {row["entity_id"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def sizes(task: Task) -> list[int]:
    """Rows at once that the chunk files name, in their order."""
    return [chunk_files.read_records(path)["maker"]["batch_size"]
            for path in sorted(Path(task.folder).glob("entity=user/part-*"))]
