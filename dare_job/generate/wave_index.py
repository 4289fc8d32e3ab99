"""The stage generate wave by wave: what each wave drafts from, what is left of it, and what it came to.

A wave begins when every chunk of the one before is there. The texts so far are then frozen in an index, one
an entity type, from which the wave drafts beside its other pools:

    generate/waves/entity=E/wave-<n>/    what wave n drafts from: kept rows, and those of the waves before

A run that goes on takes the index that is there: the first rows of the wave drafted from the same.
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
from dare_job.schemas import ENTITIES, GLOBAL
from dare_job.storage import paths
from dare_job.storage.local_copy import local_copy
from dare_job.storage.paths import AnyPath
from dare_job.tables import chunk_files, published
from pools import store
from pools.errors import PoolError

_LOG = logging.getLogger("dare_job")


def unfinished_rows(work: ShardPlan, wave: int) -> int:
    """Rows of a wave whose chunk is not committed."""
    rows, _ = work.waves[wave - 1]
    return rows - sum(_totals(work, wave, entity).rows for entity in work.entities)


def wave_name(work: ShardPlan, wave: int) -> str:
    """A wave as progress and messages call it."""
    return f"wave {wave} of {len(work.waves)}" if len(work.waves) > 1 else "writing"


def require_complete(work: ShardPlan, wave: int) -> None:
    """Raise InfrastructureError where rows of a wave are missing after all its tasks ended."""
    if left := unfinished_rows(work, wave):
        raise InfrastructureError(f"{work.folder} lacks {left} of the {work.waves[wave - 1][0]} rows of "
                                  f"{wave_name(work, wave)} after all tasks ended: run it again")


def wave_record(work: ShardPlan) -> dict[str, list[dict]]:
    """Sums of each wave by entity type; empty lists where all rows were written at once."""
    several = range(1, 1 + len(work.waves)) if len(work.waves) > 1 else ()
    totals = {entity: [_totals(work, wave, folder) for wave in several]
              for entity, folder in zip(ENTITIES, work.entities, strict=True)}
    return {entity: [{"rows": found.rows, **found.record()} for found in waves]
            for entity, waves in totals.items()}


def build_indexes(job: Job, work: ShardPlan, wave: int) -> tuple[tuple[str, str, str], ...]:
    """Index the texts before a wave, where that was not done; returns ``Task.wave_pools`` of the wave."""
    found = []
    for entity, folder in zip(ENTITIES, work.entities, strict=True):
        texts = [*folder.glob("kept-*.parquet"), *_chunks(work, range(1, wave), folder)]
        if entity not in work.drafting or not texts:
            continue
        pool = work.folder / "waves" / folder.name / f"wave-{wave}"
        checksum = _opened(pool, tokenizer_hash(job.model_path)) or _build(job, entity, texts, pool)
        if checksum:
            found.append((entity, str(pool.resolve()), checksum))
    return tuple(found)


def _texts(path: AnyPath) -> pa.Table:
    with paths.arrow_source(path) as source:
        return pq.read_table(source, columns=["entity_id", "error", "token_ids"])


def _totals(work: ShardPlan, wave: int, folder: AnyPath) -> chunk_files.Totals:
    found = _chunks(work, range(wave, wave + 1), folder)
    return sum(paths.map_paths(chunk_files.read_totals, found), chunk_files.Totals())


def _chunks(work: ShardPlan, waves: range, folder: AnyPath) -> list[AnyPath]:
    """Committed chunk files of some waves."""
    numbers = {shard for wave in waves for shard in work.shards_of(wave)}
    return [
        folder / chunk_files.name(*chunk)
        for chunk in sorted(chunk_files.committed(folder))
        if chunk[0] in numbers
    ]


def _opened(pool: AnyPath, tokenizer: str) -> str | None:
    """Checksum of a finished pool's manifest; None, with the folder removed, where it is none or damaged."""
    for unfinished in pool.parent.glob(f".{pool.name}-*"):  # of a writer that was killed
        paths.remove_tree(unfinished)
    if not pool.exists():
        return None
    try:
        return store.open_pool(local_copy(pool, _version(pool)), tokenizer).manifest["manifest_sha256"]
    except PoolError as error:
        _LOG.warning("%s: it is built anew from the rows that are written", error)
        paths.remove_tree(pool)
        return None


def _version(pool: AnyPath) -> str:
    """The checksum that a pool's manifest names, which a task asks for; empty where it is damaged."""
    try:
        return json.loads((pool / "manifest.json").read_text(encoding="utf-8"))["manifest_sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _build(job: Job, entity: str, texts: list[AnyPath], pool: AnyPath) -> str | None:
    """Index the texts of some files of KNOWLEDGE; the manifest's checksum, or None where there is no text."""
    settings = job.config.pools
    rows = pa.concat_tables(paths.map_paths(_texts, texts))
    rows = rows.filter(pc.and_(pc.is_null(rows["error"]), pc.is_valid(rows["token_ids"])))
    if not len(rows):
        return None
    sample = store.sample_ids(rows["entity_id"].to_pylist(), settings.max_global_texts, job.config.seed)
    rows = rows.filter(pc.is_in(rows["entity_id"], pa.array(sample, pa.string())))
    _LOG.info("indexing %d %s texts of tonight", len(rows), entity)
    writer = published.writer_record(job)
    meta = {"tokenizer": writer["tokenizer"], "model": writer["model"]["hash"], "dt": job.space.dt,
            "prompt": writer["prompts"][entity], "entity": entity, "source": str(pool.parents[2])}
    rows = rows.append_column("pool", pa.array([pool.name] * len(rows)))
    rows = rows.append_column("kind", pa.array([GLOBAL] * len(rows)))
    previous_text.build_pool(rows, str(pool.parent), meta)
    return _opened(pool, writer["tokenizer"])
