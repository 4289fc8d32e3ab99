"""Texts of an OUT as inputs of a CTR model: vectors or cluster ids, and from when on each is safe.

OUT/features/entity=E/dt=D is read where it is there; else the texts of OUT/knowledge/entity=E/dt=D are
encoded. In both cases the latter says when each text was written, and from which prompt (``origin``); of
features without ``text_sha256`` it says nothing, and their date counts.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dare_job.ctr import dates, features, origin, rows
from dare_job.ctr.features import Maker
from dare_job.errors import DataError
from dare_job.files import AnyPath
from dare_job.knowledge import manifest

_LOG = logging.getLogger("dare_job")
Encode = Callable[[list[str]], tuple[np.ndarray, Maker | None]]  # texts -> (n, d) float32, of which encoder


@dataclass(frozen=True)
class Knowledge:
    """T texts of one entity type, each with a vector or with cluster ids."""

    entity: str
    dt: str
    ids: list[str]
    vectors: np.ndarray | None  # (T, d) float32
    clusters: np.ndarray | None  # (T, L) int32, from 0
    usable_from: np.ndarray  # (T,) int64: first second of which a label may use the text
    missing: int  # entities without a text
    encoder: Maker | None = None  # what made the vectors, where it is known
    prompts: dict[str, str] = field(default_factory=dict)  # SHA-256 of the prompt by id, where it is known
    settings: dict = field(default_factory=dict)  # of the run, from the texts' manifest
    drafted: frozenset[str] = frozenset()  # ids whose text may hold what older text has seen

    @property
    def width(self) -> int:
        """Numbers of a text: d of vectors, levels of clusters."""
        return (self.clusters if self.vectors is None else self.vectors).shape[1]


def read(out: AnyPath, dt: str | None, entities: list[str], clusters: bool, encode: Encode
         ) -> list[Knowledge]:
    """The texts of a published date (None: the newest) of an OUT, safe from the day after they were written.

    clusters  cluster ids instead of vectors, which only features have
    Warns of an entity type without a text. Raises DataError: no such date, a damaged file or column, an id
    that is there twice, vectors of two sizes, users and items of two dates, no text.
    """
    chosen, present = dates.choose(out, dt, entities)
    found = [_entity(out, entity, chosen, clusters, encode) for entity in present]
    tables = [table for table in found if table.ids]
    empty = [f"all {table.missing} {table.entity} texts of {chosen} are missing" for table in found
             if not table.ids]
    if not tables:
        raise DataError(f"{out}: {', '.join(empty)}; choose another --date")
    for said in empty:
        _LOG.warning("%s: %s; the set is of the others alone", out, said)
    if len({table.width for table in tables}) > 1 and not clusters:
        sizes = ", ".join(f"{table.entity} {table.width}" for table in tables)
        raise DataError(f"{out}: vectors of {chosen} are of different sizes ({sizes}); encode users and "
                        "items with one encoder")
    return tables


def _folder(out: AnyPath, kind: str, entity: str, dt: str) -> AnyPath:
    return out / kind / f"entity={entity}" / f"dt={dt}"


def _entity(out: AnyPath, entity: str, dt: str, clusters: bool, encode: Encode) -> Knowledge:
    """An entity type's texts of a date that it has files of."""
    folder = _folder(out, "knowledge", entity, dt)
    texts = rows.read(folder, ["knowledge", "generated_dt"])
    table = rows.read(_folder(out, "features", entity, dt))
    if table is None and clusters and len(_written(texts)):
        raise DataError(f"{out} has no features of {entity} texts of {dt}, so no cluster ids: run the stage "
                        "`encode` (encode.model), or name it otherwise to have its texts encoded")
    listed = {name for part in (texts, table) if part is not None for name in part["entity_id"].to_pylist()}
    if table is None:
        ids, vectors, made_by = _encoded(texts, encode)
        codes = None
    else:
        folder = _folder(out, "features", entity, dt)
        features.require_date(table, folder, dt)
        made_by, texts = features.maker(table, folder), origin.of_features(table, texts, folder, dt)
        ids, found = (features.clusters if clusters else features.vectors)(table, folder)
        vectors, codes = (None, found) if clusters else (found, None)
    said = manifest(_folder(out, "knowledge", entity, dt))
    return Knowledge(entity, dt, ids, vectors, codes, origin.usable_from(ids, dt, texts),
                     len(listed) - len(ids), made_by, rows.by_id(texts, "prompt_sha256"),
                     said.get("settings", {}), origin.drafted(texts, said))


def _written(texts: pa.Table) -> pa.Table:
    """The rows with a text."""
    words = pc.utf8_length(pc.utf8_trim_whitespace(texts["knowledge"]))
    return texts.filter(pc.fill_null(pc.greater(words, 0), False))


def _encoded(texts: pa.Table, encode: Encode) -> tuple[list[str], np.ndarray, Maker | None]:
    """Ids of those with a text, their vectors, and what made these."""
    table = _written(texts)
    return table["entity_id"].to_pylist(), *encode(table["knowledge"].to_pylist())
