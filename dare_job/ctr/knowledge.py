"""Texts of an OUT as inputs of a CTR model: vectors or cluster ids, and from when on each is safe.

OUT/features/entity=E/dt=D is read where it is there; else the texts of OUT/knowledge/entity=E/dt=D are
encoded. In both cases the latter says when each text was written, and from which prompt (``origin``); of
features without ``text_sha256`` it says nothing, and their date counts.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dare_job.ctr import features, origin, rows
from dare_job.errors import DataError
from dare_job.files import AnyPath
from dare_job.knowledge import manifest, parquet_files
from dare_job.tables import ENTITIES

Encode = Callable[[list[str]], np.ndarray]  # texts -> (n, d) float32


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
    encoder: str | None = None  # what made the vectors, where the table says so
    prompts: dict[str, str] = field(default_factory=dict)  # SHA-256 of the prompt by id, where it is known
    settings: dict = field(default_factory=dict)  # of the run, from the texts' manifest

    @property
    def width(self) -> int:
        """Numbers of a text: d of vectors, levels of clusters."""
        return (self.clusters if self.vectors is None else self.vectors).shape[1]


def read(out: AnyPath, dt: str | None, entities: list[str], clusters: bool, encode: Encode
         ) -> list[Knowledge]:
    """The texts of a published date (None: the newest) of an OUT, safe from the day after they were written.

    clusters  cluster ids instead of vectors, which only features have
    Raises DataError: no such date, a damaged file or column, an id that is there twice, vectors of two sizes,
    users and items of two dates.
    """
    chosen = dt or _newest(out, entities)
    found = [_entity(out, entity, chosen, clusters, encode) for entity in entities]
    tables = [table for table in found if table is not None and table.ids]
    if not tables:
        near = ", ".join(sorted({day for entity in entities for day in _dates(out, entity)})) or "none"
        raise DataError(f"{out} holds no text of {chosen}: there are dates {near} (--date)")
    if len({table.width for table in tables}) > 1 and not clusters:
        sizes = ", ".join(f"{table.entity} {table.width}" for table in tables)
        raise DataError(f"{out}: vectors of {chosen} are of different sizes ({sizes}); encode users and "
                        "items with one encoder")
    return tables


def _folder(out: AnyPath, kind: str, entity: str, dt: str) -> AnyPath:
    return out / kind / f"entity={entity}" / f"dt={dt}"


def _dates(out: AnyPath, entity: str) -> list[str]:
    """Dates of an entity type that have files, in features or knowledge."""
    return sorted({folder.name[3:] for kind in ("features", "knowledge")
                   for folder in (out / kind / f"entity={entity}").glob("dt=*") if parquet_files(folder)})


def _newest(out: AnyPath, entities: list[str]) -> str:
    """The newest date that each entity type with any text has."""
    dates = [set(found) for entity in entities if (found := _dates(out, entity))]
    if not dates:
        raise DataError(f"--knowledge {out}: no text in it; expected OUT/features or OUT/knowledge, each "
                        "with entity=user|item/dt=YYYY-MM-DD/*.parquet")
    common = set.intersection(*dates)
    if not common:
        raise DataError(f"--knowledge {out}: users and items have no date in common (" + "; ".join(
            f"{entity} {', '.join(_dates(out, entity)) or 'none'}" for entity in ENTITIES) + ")")
    return max(common)


def _entity(out: AnyPath, entity: str, dt: str, clusters: bool, encode: Encode) -> Knowledge | None:
    """An entity type's texts; None where the date has none."""
    folder = _folder(out, "knowledge", entity, dt)
    texts = rows.read(folder, ["knowledge", "generated_dt"])
    table = rows.read(_folder(out, "features", entity, dt))
    if table is None and texts is None:
        return None
    if table is None and clusters:
        raise DataError(f"{out} has no features of {entity} texts of {dt}, so no cluster ids: run the stage "
                        "`encode` (encode.model), or name it otherwise to have its texts encoded")
    listed = {name for part in (texts, table) if part is not None for name in part["entity_id"].to_pylist()}
    if table is None:
        ids, vectors = _encoded(texts, encode)
        codes, encoder = None, None
    else:
        folder = _folder(out, "features", entity, dt)
        features.require_date(table, folder, dt)
        encoder, texts = features.encoder(table), origin.of_features(table, texts, folder, dt)
        ids, found = (features.clusters if clusters else features.vectors)(table, folder)
        vectors, codes = (None, found) if clusters else (found, None)
    return Knowledge(entity, dt, ids, vectors, codes, origin.usable_from(ids, dt, texts),
                     len(listed) - len(ids), encoder, rows.by_id(texts, "prompt_sha256"),
                     manifest(_folder(out, "knowledge", entity, dt)).get("settings", {}))


def _encoded(texts: pa.Table, encode: Encode) -> tuple[list[str], np.ndarray]:
    """Ids of those with a text, and their vectors."""
    words = pc.utf8_length(pc.utf8_trim_whitespace(texts["knowledge"]))
    table = texts.filter(pc.fill_null(pc.greater(words, 0), False))
    return table["entity_id"].to_pylist(), encode(table["knowledge"].to_pylist())
