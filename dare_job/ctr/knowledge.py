"""Texts of an OUT as inputs of a CTR model: vectors or cluster ids, and from when on each is safe.

OUT/features/entity=E/dt=D is read where it is there; else the texts of OUT/knowledge/entity=E/dt=D are
encoded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dare_job import files
from dare_job.data.history import end_of_day
from dare_job.errors import DataError
from dare_job.files import AnyPath
from dare_job.knowledge import parquet_files
from dare_job.tables import ENTITIES

_SHOWN = 3
Encode = Callable[[list[str]], np.ndarray]  # texts -> (n, d) float32


@dataclass(frozen=True)
class Knowledge:
    """T texts of one entity type, each with a vector or with cluster ids."""

    entity: str
    dt: str
    ids: list[str]
    vectors: np.ndarray | None  # (T, d) float32
    clusters: np.ndarray | None  # (T, L) int32, from 0
    usable_from: np.ndarray  # (T,) int64: the second after the day whose run wrote the text
    missing: int  # rows without a text or a vector
    encoder: str | None = None  # what made the vectors, where the table says so

    @property
    def width(self) -> int:
        """Numbers of a text: d of vectors, levels of clusters."""
        return (self.clusters if self.vectors is None else self.vectors).shape[1]


def read(out: AnyPath, dt: str | None, entities: list[str], clusters: bool, encode: Encode
         ) -> list[Knowledge]:
    """The texts of a published date (None: the newest) of an OUT.

    clusters  cluster ids instead of vectors, which only features have
    Raises DataError: no such date, a damaged file or column, an id that is there twice, vectors of two sizes,
    users and items of two dates.
    """
    chosen = dt or _newest(out, entities)
    found = [_entity(out, entity, chosen, clusters, encode) for entity in entities]
    tables = [table for table in found if table is not None]
    if not tables:
        near = ", ".join(sorted({day for entity in entities for day in _dates(out, entity)})) or "none"
        raise DataError(f"{out} holds no text of {chosen}: there are dates {near} (--date)")
    widths = {table.width for table in tables}
    if len(widths) > 1 and not clusters:
        sizes = ", ".join(f"{table.entity} {table.width}" for table in tables)
        raise DataError(f"{out}: vectors of {chosen} are of different sizes ({sizes}); encode users and "
                        "items with one encoder")
    return tables


def _dates(out: AnyPath, entity: str) -> list[str]:
    """Dates of an entity type that have files, in features or knowledge."""
    return sorted({folder.name[3:] for kind in ("features", "knowledge")
                   for folder in (out / kind / f"entity={entity}").glob("dt=*") if parquet_files(folder)})


def _newest(out: AnyPath, entities: list[str]) -> str:
    """The newest date that each entity type with any text has."""
    dates = [set(found) for entity in entities if (found := _dates(out, entity))]
    common = set.intersection(*dates) if dates else set()
    if not dates:
        raise DataError(f"--knowledge {out}: no text in it; expected OUT/features or OUT/knowledge, each "
                        "with entity=user|item/dt=YYYY-MM-DD/*.parquet")
    if not common:
        raise DataError(f"--knowledge {out}: users and items have no date in common (" + "; ".join(
            f"{entity} {', '.join(_dates(out, entity)) or 'none'}" for entity in ENTITIES) + ")")
    return max(common)


def _entity(out: AnyPath, entity: str, dt: str, clusters: bool, encode: Encode) -> Knowledge | None:
    texts = _table(out / "knowledge" / f"entity={entity}" / f"dt={dt}",
                   ["entity_id", "knowledge", "generated_dt"])
    features_folder = out / "features" / f"entity={entity}" / f"dt={dt}"
    features = _table(features_folder)
    if features is not None:
        return _of_features(features, features_folder, entity, dt, clusters, _written(texts))
    if texts is None:
        return None
    if clusters:
        raise DataError(f"{out} has no features of {entity} texts of {dt}, so no cluster ids: run the stage "
                        "`encode` (encode.model), or name it otherwise to have its texts encoded")
    kept = pc.fill_null(pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(texts["knowledge"])), 0), False)
    table = texts.filter(kept)
    ids = table["entity_id"].to_pylist()
    vectors = encode(table["knowledge"].to_pylist())
    return Knowledge(entity, dt, ids, vectors, None, _usable_from(ids, dt, _written(texts)),
                     texts.num_rows - len(ids))


def _table(folder: AnyPath, wanted: list[str] | None = None) -> pa.Table | None:
    """Rows of a folder's files, columns that all have; None where there is no file."""
    import pyarrow.parquet as pq

    parts = []
    for path in parquet_files(folder):
        try:
            with files.source(path) as source:
                parts.append(pq.ParquetFile(source).read())
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} is damaged: {str(error).splitlines()[0]}") from None
    if not parts:
        return None
    try:
        table = pa.concat_tables(parts, promote_options="default")
    except pa.ArrowException as error:
        raise DataError(f"{folder}: its files differ in their columns: {error}") from None
    for name in wanted or ["entity_id"]:
        if name not in table.column_names:
            raise DataError(f"{folder}: column {name} is missing (found: {', '.join(table.column_names)})")
    return _unique(table, folder)


def _unique(table: pa.Table, folder: AnyPath) -> pa.Table:
    """The table. Raises DataError naming ids that it holds more than once."""
    if table["entity_id"].null_count:
        raise DataError(f"{folder}: {table['entity_id'].null_count} rows have no entity_id")
    counts = pc.value_counts(table["entity_id"])
    twice = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
    if len(twice):
        named = ", ".join(map(str, twice[:_SHOWN].to_pylist())) + (" ..." if len(twice) > _SHOWN else "")
        raise DataError(f"{folder}: {len(twice)} ids are there more than once ({named}); one text an id is "
                        "expected")
    return table.set_column(table.column_names.index("entity_id"), "entity_id",
                            pc.cast(table["entity_id"], pa.string()))


def _of_features(table: pa.Table, folder: AnyPath, entity: str, dt: str, clusters: bool,
                 written: dict[str, str]) -> Knowledge:
    said = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    there = next((value for key, value in said.items() if key.rpartition(".")[2] == "dt"), dt)
    if there != dt:
        raise DataError(f"{folder}: its files say that they are of {there}, the folder says {dt}: encode "
                        "that date again")
    names = sorted((name for name in table.column_names if name.startswith("cluster_")),
                   key=lambda name: int(name[8:])) if clusters else ["vector"]
    if not names or names[0] not in table.column_names:
        raise DataError(f"{folder}: no column {names[0] if names else 'cluster_0'} "
                        f"(found: {', '.join(table.column_names)})")
    full = table
    for name in names:
        table = table.filter(pc.is_valid(table[name]))
    ids = table["entity_id"].to_pylist()
    encoder = next((value for key, value in said.items() if key.rpartition(".")[2] == "encoder"), None)
    vectors = None if clusters else _vectors(table, ids, folder)
    codes = np.column_stack([table[name].to_numpy() for name in names]).astype(np.int32) if clusters else None
    if codes is not None and len(codes) and codes.min() < 0:
        raise DataError(f"{folder}: cluster ids below 0, first at {ids[int((codes < 0).any(1).argmax())]!r}")
    return Knowledge(entity, dt, ids, vectors, codes, _usable_from(ids, dt, written),
                     full.num_rows - len(ids), encoder)


def _vectors(table: pa.Table, ids: list[str], folder: AnyPath) -> np.ndarray:
    """(T, d) float32. Raises DataError naming the first row of another size or without a number."""
    column = table["vector"].combine_chunks()
    lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    if not len(lengths):
        return np.empty((0, getattr(column.type, "list_size", 0)), np.float32)
    odd = np.flatnonzero(lengths != lengths[0])
    if len(odd):
        raise DataError(f"{folder}: the vector of {ids[odd[0]]!r} has {lengths[odd[0]]} numbers, that of "
                        f"{ids[0]!r} {lengths[0]}; one size is expected")
    found = pc.list_flatten(column).to_numpy(zero_copy_only=False).reshape(len(lengths), -1)
    bad = ~np.isfinite(found).all(1)
    if bad.any():
        raise DataError(f"{folder}: the vector of {ids[int(bad.argmax())]!r} has a number that is not finite")
    return found.astype(np.float32)


def _written(texts: pa.Table | None) -> dict[str, str]:
    """generated_dt by id, as far as it is there."""
    if texts is None:
        return {}
    rows = zip(texts["entity_id"].to_pylist(), texts["generated_dt"].to_pylist(), strict=True)
    return {entity: day for entity, day in rows if day is not None}


def _usable_from(ids: list[str], dt: str, written: dict[str, str]) -> np.ndarray:
    """End of the day whose run wrote each text; of the table's own day where that is not known."""
    days = [written.get(entity, dt) for entity in ids]
    try:
        ends = {day: end_of_day(date.fromisoformat(day)) for day in {*days, dt}}
    except ValueError as error:
        raise DataError(f"generated_dt of a text of {dt} is no date: {error}") from None
    late = next((entity for entity, day in zip(ids, days, strict=True) if ends[day] > ends[dt]), None)
    if late is not None:
        raise DataError(f"text of {late!r} was written on {written[late]}, after the date {dt} that its "
                        "table is of")
    return np.array([ends[day] for day in days], np.int64)
