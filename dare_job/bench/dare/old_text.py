"""What the model itself said before: strict text of the old prompts, and the pools made of it."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.progress import track

from dare_job.decode import Request
from dare_job.decode.prompt import prompt_ids
from dare_job.errors import DataError
from dare_job.spark import indexing, loading
from dare_job.workspace import committing, digest, is_done
from pools.index import Index
from pools.store import sample

Pool = tuple[str, str]  # name, kind
_WAVES = (32, 256)  # texts that draft the rest; as they are strict, drafts change none of them
_WRITING = {"mode": "resd", "batch_size": 16, "nodes": 8}


def write(task: loading.Task, prompts: Mapping[str, str], folder: Path, made_of: str) -> dict[str, list[int]]:
    """Token ids by id of the model's text for each prompt, kept in ``folder``.

    Raises DataError naming a row that cannot be written.
    """
    if not is_done(folder, made_of := digest([made_of, task.model, dict(prompts)])):
        with committing(folder, made_of, {}) as staging:
            texts = _written(task, prompts, folder.name)
            table = pa.table([list(texts), list(texts.values())], schema=indexing.TOKENS)
            pq.write_table(table, staging / "texts.parquet")
    rows = pq.read_table(folder / "texts.parquet").to_pylist()
    return {row["entity_id"]: row["token_ids"] for row in rows}


def _written(task: loading.Task, prompts: Mapping[str, str], name: str) -> dict[str, list[int]]:
    loaded = loading.loaded(task)
    engine = loading.engine(_with(task, _WRITING))
    chat = task.config.model.chat_template
    ids = {key: prompt_ids(loaded.tokenizer, prompt, chat) for key, prompt in prompts.items()}
    order, texts = list(ids), {}
    for first, last in zip((0, *_WAVES), (*_WAVES, len(order)), strict=True):
        wave = sorted(order[first:last], key=lambda key: len(ids[key]))
        pools = (Index.build([np.asarray(text, np.int32) for text in texts.values()]),) if texts else ()
        requests = (Request(key, ids[key], pools) for key in wave)
        for result in track(engine.run(requests), f"{name}: old text", total=len(wave), transient=True):
            if result.error:
                raise DataError(f"no old text of {result.id}: {result.error}")
            texts[result.id] = result.token_ids.tolist()
    return texts


def _with(task: loading.Task, decode: Mapping) -> loading.Task:
    config = task.config
    return replace(task, config=config.model_copy(update={"decode": config.decode.model_copy(update=decode)}))


def index(texts: Mapping[str, list[int]], pools: Mapping[str, Pool], most: int, tokenizer: str, folder: Path,
          made_of: str) -> dict[str, int]:
    """Build the pools of one entity type as the job does; returns the number of texts of each.

    most  texts in a group's pool, drawn by seed; the pool of everybody has them all
    """
    members = defaultdict(list, {(loading.GLOBAL, loading.GLOBAL): list(texts)})
    for key in texts:
        if pools[key][0] != loading.GLOBAL:
            members[pools[key]].append(key)
    kept = {pool: sorted(sample(keys, most)) if pool[0] != loading.GLOBAL else keys
            for pool, keys in members.items()}
    made_of = digest([made_of, tokenizer, sorted((*pool, keys) for pool, keys in kept.items())])
    if not is_done(folder, made_of):
        with committing(folder, made_of, {}) as staging:
            for (name, kind), keys in kept.items():
                table = pa.table({"pool": [name] * len(keys), "kind": [kind] * len(keys), "entity_id": keys,
                                  "token_ids": pa.array([texts[key] for key in keys], pa.list_(pa.int32()))})
                indexing.build(table, str(staging), {"tokenizer": tokenizer})
    return {name: len(keys) for (name, _), keys in kept.items()}
