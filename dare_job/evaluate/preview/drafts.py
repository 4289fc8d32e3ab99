"""Pools of a preview: of previous texts if OUT has them, else of the other texts of the preview."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dare_job.data.input.preview_rows import Row
from dare_job.generate.previous_text import tokenize_batches
from dare_job.generate.task import Task
from dare_job.job import Job
from dare_job.models.files import vocabulary
from dare_job.observe.progress import counted
from dare_job.schemas import ENTITIES
from dare_job.storage.paths import AnyPath
from dare_job.tables import published
from pools.index import Index

MAX_TEXTS = 2000  # previous texts of each entity type that a preview indexes
_BATCH = 4096


@dataclass(frozen=True)
class Previous:
    """Previous texts of one entity type.

    Attributes
    ----------
    own
        Token ids of the previewed rows' previous texts, by id.
    pool
        Index of previous texts.
    texts
        Those in ``pool``.
    """

    own: dict[str, np.ndarray]
    pool: Index
    texts: list[np.ndarray]


def read_previous(job: Job, task: Task, rows: Sequence[Row],
                  max_texts: int = MAX_TEXTS) -> dict[str, Previous]:
    """Previous texts by entity type, where there are any; up to ``max_texts`` are indexed."""
    by_entity = {}
    for entity in ENTITIES:
        folder = published.previous_folder(job, entity)
        wanted = {row.entity_id for row in rows if row.entity == entity}
        if folder and wanted and (previous := _read(folder, wanted, task, max_texts)):
            by_entity[entity] = previous
    return by_entity


def _read(folder: AnyPath, wanted: set[str], task: Task, max_texts: int) -> Previous | None:
    """Read the stored token ids; if another tokenizer made them, tokenize the texts, as in stage pools.

    Leaves out texts that loop, and texts with token ids outside the model's vocabulary.
    """
    kept = published.read_manifest(folder).get("tokenizer") == task.tokenizer
    size = vocabulary(task.model, task.config.model.trust_remote_code)
    own, texts = {}, []
    column = "token_ids" if kept else "knowledge"
    names = pa.array(sorted(wanted), pa.string())
    usable = published.usable_as_draft()
    for batch in published.dataset(folder).to_batches(columns=["entity_id", column], filter=usable,
                                                      batch_size=_BATCH):
        batch = batch.filter(pc.is_valid(batch[column]))
        first = pa.array(np.arange(len(batch)) < max_texts - len(texts))
        batch = batch.filter(pc.or_(first, pc.is_in(batch["entity_id"], names)))
        for tokens in [batch] if kept else tokenize_batches(
                [batch], task.model, task.config.model.trust_remote_code):
            for name, ids in zip(tokens["entity_id"].to_pylist(), tokens["token_ids"], strict=True):
                token_ids = np.asarray(ids.values, np.int32)
                if len(token_ids) and not 0 <= token_ids.min() <= token_ids.max() < size:
                    continue
                own |= {name: token_ids} if name in wanted else {}
                texts += [token_ids] if len(texts) < max_texts else []
    return Previous(own, Index.build(texts), texts) if texts else None


def previous_pools(previous: Previous, row: Row) -> tuple[tuple[Index, ...], np.ndarray | None]:
    """Pools of a row, and its previous text int32 (tokens,), as in a run without groups."""
    own = previous.own.get(row.entity_id)
    if own is None or not len(own):
        return (previous.pool,), None
    return (Index.build([own], kind="own"), previous.pool), own


def pool_of_others(texts: dict[tuple[str, str], np.ndarray], row: Row) -> tuple[Index, ...]:
    """A pool of the other previewed texts of the same entity type; none if there are none."""
    others = [ids for (entity, name), ids in texts.items()
              if entity == row.entity and name != row.entity_id and len(ids)]
    return (Index.build(others),) if others else ()


def origin(previous: dict[str, Previous], job: Job) -> str:
    """Where the drafts of a preview come from, in words."""
    if job.draft_path:
        return f"drafter.model {job.config.drafter.model}"
    words = []
    for entity in ENTITIES:
        if entity in previous:
            own, texts = len(previous[entity].own), counted(len(previous[entity].texts), "previous text")
            words.append(f"{entity}s: {texts}, {own} of previewed rows")
        else:
            words.append(f"{entity}s: the other texts of this preview (there are no previous texts)")
    return f"{'; '.join(words)}; decode.mode {job.config.decode.mode}, without groups"
