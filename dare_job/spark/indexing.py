"""What Spark tasks of the stage pools do: token ids of old texts, and the index of one pool."""

import time
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from dare_job import files
from pools.index import Index

STATS = "pool string, kind string, texts long, tokens long, bytes long, seconds double"
TOKENS = pa.schema([("entity_id", pa.string()), ("token_ids", pa.list_(pa.int32()))])


@lru_cache(maxsize=1)
def _tokenizer(model: str, trust_remote_code: bool):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)


def tokenise(batches: Iterable[pa.RecordBatch], model: str,
             trust_remote_code: bool) -> Iterator[pa.RecordBatch]:
    """``entity_id, knowledge`` -> TOKENS, the end-of-text token included, as the model writes it."""
    for batch in batches:
        if not batch.num_rows:
            continue
        tokenizer = _tokenizer(model, trust_remote_code)
        end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        texts = batch.column("knowledge").to_pylist()
        ids = [row + end for row in tokenizer(texts, add_special_tokens=False)["input_ids"]]
        columns = [batch.column("entity_id"), pa.array(ids, TOKENS.field("token_ids").type)]
        yield pa.RecordBatch.from_arrays(columns, schema=TOKENS)


def build(table: pa.Table, folder: str, meta: dict) -> pa.Table:
    """One pool's ``pool, kind, token_ids`` -> its folder, written whole or not at all; returns STATS."""
    began = time.perf_counter()
    name, kind = table["pool"][0].as_py(), table["kind"][0].as_py()
    ordered = table.sort_by("entity_id")["token_ids"].combine_chunks()
    flat, ends = ordered.flatten().to_numpy(), ordered.value_lengths().to_numpy().cumsum()
    texts = [flat[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    index = Index.build(texts, kind=kind)
    _save(index, files.path(folder) / name, {**meta, "name": name})
    return pa.table({
        "pool": [name], "kind": [kind], "texts": [index.texts], "tokens": [index.token_count],
        "bytes": [index.array_bytes], "seconds": [time.perf_counter() - began]})


def _save(index: Index, folder: files.AnyPath, meta: dict) -> None:
    if files.is_local(folder):
        index.save(folder, meta)
        return
    with TemporaryDirectory(prefix="dare-job-") as temporary:
        index.save(Path(temporary) / folder.name, meta)
        files.upload(Path(temporary) / folder.name, folder)
