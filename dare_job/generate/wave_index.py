"""Indexes of this run's earlier waves, and the progress and statistics of each wave.

A wave begins when all chunks of the previous wave are committed. The finished texts are then indexed per
entity type, and the wave drafts from this index as well as from its other pools:

    generate/waves/entity=E/wave-<n>/    index of wave n: kept rows and rows of earlier waves

A resumed run reuses an existing index, so that all rows of a wave draft from the same texts.
"""

import json
import logging

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dare_job.errors import InfrastructureError
from dare_job.generate import previous_text
from dare_job.generate.shard_plan import ShardPlan
from dare_job.job import Job
from dare_job.models.files import tokenizer_hash
from dare_job.observe import progress
from dare_job.schemas import ENTITIES, GLOBAL
from dare_job.storage import paths
from dare_job.storage.local_copy import local_copy
from dare_job.storage.paths import AnyPath
from dare_job.tables import chunk_files, published
from pools import PoolError
from pools.index import Index
from pools.store import sample_ids

_LOG = logging.getLogger("dare_job")


def unfinished_rows(work: ShardPlan, wave: int) -> int:
    """Number of rows of a wave whose chunk is not committed."""
    rows, _ = work.waves[wave - 1]
    return rows - sum(_totals(work, wave, entity).rows for entity in work.entities)


def wave_name(work: ShardPlan, wave: int) -> str:
    """Name of a wave in progress bars and messages."""
    if len(work.waves) == 1:
        return "writing"
    return f"wave {wave} of {len(work.waves)}{' (sample)' if wave == work.sample_wave else ''}"


def require_complete(work: ShardPlan, wave: int) -> None:
    """Check that all rows of a wave are finished after all its tasks have ended.

    Raises
    ------
    InfrastructureError
        Rows are missing.
    """
    if missing := unfinished_rows(work, wave):
        raise InfrastructureError(f"{work.folder} lacks {missing} of the {work.waves[wave - 1][0]} rows of "
                                  f"{wave_name(work, wave)} after all tasks ended: run it again")


def wave_record(work: ShardPlan) -> dict[str, list[dict]]:
    """Totals of each wave by entity type; empty lists if there was only one wave."""
    several = range(1, 1 + len(work.waves)) if len(work.waves) > 1 else ()
    totals = {entity: [_totals(work, wave, folder) for wave in several]
              for entity, folder in zip(ENTITIES, work.entities, strict=True)}
    return {entity: [{"rows": total.rows, **total.record()} for total in waves]
            for entity, waves in totals.items()}


@progress.doing("indexing texts of earlier waves")
def build_indexes(job: Job, work: ShardPlan, wave: int) -> tuple[tuple[str, str, str], ...]:
    """Build missing indexes for a wave from the texts of earlier waves; returns its ``Task.wave_pools``."""
    indexes = []
    for entity, folder in zip(ENTITIES, work.entities, strict=True):
        texts = [*folder.glob("kept-*.parquet"), *committed_chunks(work, range(1, wave), folder)]
        if entity not in work.drafting or not texts:
            continue
        pool = work.folder / "waves" / folder.name / f"wave-{wave}"
        checksum = _opened(pool, tokenizer_hash(job.model_path)) or _build(job, entity, texts, pool)
        if checksum:
            indexes.append((entity, str(pool.resolve()), checksum))
    return tuple(indexes)


def _texts(path: AnyPath) -> pa.Table:
    with paths.arrow_source(path) as source:
        return pq.read_table(source, columns=["entity_id", "error", "token_ids", "finish_reason"])


def _totals(work: ShardPlan, wave: int, folder: AnyPath) -> chunk_files.Totals:
    chunks = committed_chunks(work, range(wave, wave + 1), folder)
    return sum(paths.map_paths(chunk_files.read_totals, chunks), chunk_files.Totals())


def committed_chunks(work: ShardPlan, waves: range, folder: AnyPath) -> list[AnyPath]:
    """Committed chunk files of some waves."""
    numbers = {shard for wave in waves for shard in work.shards_of(wave)}
    return [path for path in sorted(folder.glob("part-*.parquet")) if chunk_files.numbers(path)[0] in numbers]


def _opened(pool: AnyPath, tokenizer: str) -> str | None:
    """Checksum of a finished pool's manifest; None if it is missing or damaged. Removes a damaged pool."""
    for unfinished in pool.parent.glob(f".{pool.name}-*"):  # left by a killed writer
        paths.remove_tree(unfinished)
    if not pool.exists():
        return None
    try:
        return Index.open(local_copy(pool, _version(pool)), tokenizer).manifest["manifest_sha256"]
    except PoolError as error:
        _LOG.warning("%s; rebuilding the index from the finished rows", error)
        paths.remove_tree(pool)
        return None


def _version(pool: AnyPath) -> str:
    """The checksum in a pool's manifest; empty if the manifest is damaged."""
    try:
        return json.loads((pool / "manifest.json").read_text(encoding="utf-8"))["manifest_sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _build(job: Job, entity: str, texts: list[AnyPath], pool: AnyPath) -> str | None:
    """Index the texts of KNOWLEDGE files that do not loop; returns the manifest's checksum, or None if there
    is none.
    """
    settings = job.config.pools
    rows = pa.concat_tables(paths.map_paths(_texts, texts))
    looped = pc.fill_null(pc.equal(rows["finish_reason"], "loop"), False)
    rows = rows.filter(pc.and_(pc.and_not(pc.is_null(rows["error"]), looped), pc.is_valid(rows["token_ids"])))
    if not len(rows):
        return None
    sample = sample_ids(rows["entity_id"].to_pylist(), settings.max_global_texts, job.config.seed)
    rows = rows.filter(pc.is_in(rows["entity_id"], pa.array(sample, pa.string())))
    _LOG.info("indexing %d %s texts of this run", len(rows), entity)
    writer = published.writer_record(job)
    meta = {"tokenizer": writer["tokenizer"], "model": writer["model"]["hash"], "dt": job.space.dt,
            "prompt": writer["prompts"][entity], "entity": entity, "source": str(pool.parents[2])}
    rows = rows.append_column("pool", pa.array([pool.name] * len(rows)))
    rows = rows.append_column("kind", pa.array([GLOBAL] * len(rows)))
    previous_text.build_pool(rows, str(pool.parent), meta)
    return _opened(pool, writer["tokenizer"])
