"""Token ids of previous texts, from which pools and rows draft, and the index of one pool."""

import logging
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dare_job.decode.prompt.tokens import text_ids
from dare_job.job import Job
from dare_job.models.files import files, tokenizer_hash, vocabulary
from dare_job.spark import shipping
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath
from dare_job.tables import published
from pools.index import Index

_LOG = logging.getLogger("dare_job")
POOL_STATS = "pool string, kind string, texts long, tokens long, bytes long"
TOKENS = pa.schema([("entity_id", pa.string()), ("token_ids", pa.list_(pa.int32()))])


@lru_cache(maxsize=1)
def _tokenizer(model: str, trust_remote_code: bool):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)


def tokenize_batches(batches: Iterable[pa.RecordBatch], model: str,
                     trust_remote_code: bool) -> Iterator[pa.RecordBatch]:
    """Tokenize batches of ``entity_id, knowledge`` to TOKENS, by ``text_ids``."""
    for batch in batches:
        if not batch.num_rows:
            continue
        ids = text_ids(_tokenizer(model, trust_remote_code), batch.column("knowledge").to_pylist())
        columns = [batch.column("entity_id"), pa.array(ids, TOKENS.field("token_ids").type)]
        yield pa.RecordBatch.from_arrays(columns, schema=TOKENS)


def build_pool(table: pa.Table, folder: str, meta: dict) -> pa.Table:
    """Index one pool and write it atomically to its subfolder of ``folder``. Returns one row of POOL_STATS.

    Parameters
    ----------
    table
        Rows (entity_id, pool, kind, token_ids) of one pool.
    """
    name, kind = table["pool"][0].as_py(), table["kind"][0].as_py()
    ordered = table.sort_by("entity_id")["token_ids"].combine_chunks()
    flat, ends = ordered.flatten().to_numpy(), ordered.value_lengths().to_numpy().cumsum()
    texts = [flat[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    index = Index.build(texts, kind=kind)
    _save(index, paths.path(folder) / name, {**meta, "name": name})
    return pa.table({
        "pool": [name], "kind": [kind], "texts": [index.texts], "tokens": [index.token_count],
        "bytes": [index.array_bytes]})


def _save(index: Index, folder: paths.AnyPath, meta: dict) -> None:
    if paths.is_local(folder):
        index.save(folder, meta)
        return
    with TemporaryDirectory(prefix="dare-job-") as temporary:
        index.save(Path(temporary) / folder.name, meta)
        paths.upload(Path(temporary) / folder.name, folder)


def previous_token_ids(job: Job, folder: AnyPath) -> DataFrame:
    """``entity_id, token_ids`` of a folder's texts: as stored, or tokenized again if the tokenizer differs.

    Excludes texts with token ids outside the model's vocabulary.
    """
    written, rest = _parts(job, folder)
    model, trust = str(job.model_path.absolute()), job.config.model.trust_remote_code
    archive = _tokenizer_archive(job)

    def tokenize(batches):
        yield from tokenize_batches(batches, shipping.unpack_archive(archive) if archive else model, trust)

    tokenized = rest.mapInArrow(tokenize, "entity_id string, token_ids array<int>")
    table = tokenized if written is None else written.unionByName(tokenized)
    return table.where(_valid_ids(_size(job)))


def _tokenizer_archive(job: Job) -> shipping.Archive | None:
    if not shipping.should_ship(job, "model"):
        return None
    folder = job.model_path.absolute()
    return shipping.ship_folder(job.spark, folder, f"{job.model_hash} without weights",
                                files(folder, weights=False))


def warn_invalid_ids(job: Job, folder: AnyPath) -> None:
    """Log a warning that names texts with token ids outside the model's vocabulary, if any."""
    written, _ = _parts(job, folder)
    if written is None:
        return
    size = _size(job)
    bad = written.where(~F.coalesce(_valid_ids(size), F.lit(False)))
    first = [row.entity_id for row in bad.select("entity_id").orderBy("entity_id").limit(3).collect()]
    if first:
        _LOG.warning("%s: texts have token ids outside the model's vocabulary of %d and are not used as "
                     "drafts: %s%s", folder, size, ", ".join(first), " ..." if len(first) == 3 else "")


def _parts(job: Job, folder: AnyPath) -> tuple[DataFrame | None, DataFrame]:
    """Texts with token ids of the current tokenizer (None if there are none), and all other texts.

    Without texts that loop: as drafts they would lead into their loops.
    """
    table = published.read_texts(job, folder, ("entity_id", "knowledge", "token_ids", "finish_reason"))
    table = table.where((F.length("knowledge") > 0) & ~F.col("finish_reason").eqNullSafe("loop"))
    columns = ["entity_id", "knowledge"]
    if published.read_manifest(folder).get("tokenizer") != tokenizer_hash(job.model_path):
        return None, table.select(columns)
    tokenized = F.coalesce(F.size("token_ids"), F.lit(0)) > 0
    return table.where(tokenized).select("entity_id", "token_ids"), table.where(~tokenized).select(columns)


def _size(job: Job) -> int:
    return vocabulary(job.model_path, job.config.model.trust_remote_code)


def _valid_ids(size: int) -> Column:
    return F.forall("token_ids", lambda token: token.isNotNull() & (token >= 0) & (token < size))
