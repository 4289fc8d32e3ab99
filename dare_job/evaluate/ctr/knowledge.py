"""Texts of an output folder as CTR inputs: vectors or cluster ids, and the time from which each is usable.

OUT/features/entity=E/dt=D is read if it exists; otherwise the texts of OUT/knowledge/entity=E/dt=D are
encoded. The latter also has the date and the prompt of each text. For features without ``text_sha256`` these
are unknown, and the features' date counts.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dare_job.data.history import end_of_day
from dare_job.errors import DataError
from dare_job.evaluate.ctr import features
from dare_job.evaluate.ctr.features import Maker
from dare_job.storage.paths import AnyPath, dated_folders
from dare_job.tables.published import parquet_files, read_manifest

_LOG = logging.getLogger("dare_job")


def choose(out: AnyPath, dt: str | None, entities: list[str]) -> tuple[str, list[str]]:
    """Choose the date (by default the newest that all entity types have), and the entity types with texts.

    Warns of an entity type without texts.

    Raises
    ------
    DataError
        There is no text, or an entity type has texts of other dates only.
    """
    dates = {entity: days for entity in entities if (days := _dates(out, entity))}
    if not dates:
        raise DataError(f"--knowledge {out}: found no texts; expected OUT/features or OUT/knowledge, each "
                        "with entity=user|item/dt=YYYY-MM-DD/*.parquet")
    common = set.intersection(*map(set, dates.values()))
    chosen = dt or max(common, default=None)
    if chosen not in common:
        published = "; ".join(f"{entity} {', '.join(days)}" for entity, days in dates.items())
        raise DataError(f"--knowledge {out}: not all entity types have texts of {dt or 'a common date'} "
                        f"({published}): choose another --date, or leave out an entity type (--entities)")
    if len(dates) < len(entities):
        missing = " and ".join(entity for entity in entities if entity not in dates)
        _LOG.warning("%s has no %s texts on any date: the set uses the others only (--entities)", out,
                     missing)
    return chosen, list(dates)


def _dates(out: AnyPath, entity: str) -> list[str]:
    """Dates of an entity type that have files, in features or knowledge."""
    return sorted({folder.name[3:] for kind in ("features", "knowledge")
                   for folder in dated_folders(out / kind / f"entity={entity}") if parquet_files(folder)})


def of_features(table: pa.Table, texts: pa.Table | None, folder: AnyPath, dt: str) -> pa.Table | None:
    """The texts that features were made from; None if the features do not name their texts.

    Raises
    ------
    DataError
        A vector belongs to a text that is not published.
    """
    if texts is None or "text_sha256" not in table.column_names:
        return None
    hashes = {entity: hashlib.sha256(text.encode()).hexdigest()
              for entity, text in features.by_id(texts, "knowledge").items()}
    encoded = zip(table["entity_id"].to_pylist(), table["text_sha256"].to_pylist(), strict=True)
    other = [entity for entity, sha256 in encoded if entity not in hashes or sha256 != hashes[entity]]
    if other:
        raise DataError(f"{folder}: {len(other)} of {len(table)} features do not belong to the published "
                        f"texts (such as {other[0]!r}): run `dare-job run --from encode --date {dt}` "
                        "with the same options as before")
    return texts


def usable_from(ids: list[str], folder: AnyPath, texts: pa.Table | None) -> np.ndarray:
    """(T,) end of the day on which each text was generated; if unknown, of the snapshot's day.

    Days end in the time zone of ``input.day_boundary`` of the snapshot. If the snapshot of the day of the
    text had another one, the later end counts.

    Parameters
    ----------
    folder
        Of the snapshot, ``knowledge/entity=E/dt=D``.

    Raises
    ------
    DataError
        A day is not a valid date.
    """
    generated = features.by_id(texts, "generated_dt")
    dt, zone = folder.name.removeprefix("dt="), _zone(folder)
    days = [generated.get(entity, dt) for entity in ids]
    try:
        ends = {day: max(end_of_day(date.fromisoformat(day), each)
                         for each in {zone, _zone(folder.with_name(f"dt={day}"))})
                for day in set(days)}
    except ValueError as error:
        raise DataError(f"generated_dt of a text of {dt} is not a date: {error}; write it as YYYY-MM-DD"
                        ) from None
    return np.array([ends[day] for day in days], np.int64)


def _zone(folder: AnyPath) -> str:
    """Time zone in which the day of a snapshot ended; UTC if it has no manifest."""
    return read_manifest(folder).get("settings", {}).get("input", {}).get("day_boundary", "UTC")


def drafted(texts: pa.Table | None, manifest: dict) -> frozenset[str]:
    """Ids of texts that may contain information from previous texts, whatever their prompt is.

    Relaxed verification accepts tokens of drafts. Previous texts were generated from interactions up to their
    own date, and the groups that select them depend on all interactions of the run. Without previous text,
    drafts come from other users' texts of the same run, whose prompts contain no labels.

    Parameters
    ----------
    manifest
        Of the texts; ``previous`` is None if there was no previous text, and missing if unknown.
    """
    if texts is None or manifest.get("previous", "unknown") is None:
        return frozenset()
    relaxed = features.by_id(texts, "relaxed_tokens")
    return frozenset(entity for entity in texts["entity_id"].to_pylist() if relaxed.get(entity) != 0)


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
    encoder: Maker | None = None  # that made the vectors, if known
    prompts: dict[str, str] = field(default_factory=dict)  # SHA-256 of the prompt by id, if known
    settings: dict = field(default_factory=dict)  # of the run, from the texts' manifest
    drafted: frozenset[str] = frozenset()  # ids whose text may contain information from previous texts

    @property
    def width(self) -> int:
        """Size of the vectors, or number of cluster levels."""
        return (self.clusters if self.vectors is None else self.vectors).shape[1]


def read(out: AnyPath, dt: str | None, entities: list[str], clusters: bool, encode: Encode
         ) -> list[Knowledge]:
    """Read the texts of a published date; they are usable from the day after they were generated.

    Warns of an entity type without texts.

    Parameters
    ----------
    dt
        Date; None: the newest.
    clusters
        Read cluster ids, which only features have, instead of vectors.

    Raises
    ------
    DataError
        There is no such date or no text, a file or column is damaged, an id is duplicated, or vectors differ
        in size.
    """
    chosen, present = choose(out, dt, entities)
    read_tables = [_entity(out, entity, chosen, clusters, encode) for entity in present]
    tables = [table for table in read_tables if table.ids]
    empty = [f"all {table.missing} {table.entity} texts of {chosen} are missing" for table in read_tables
             if not table.ids]
    if not tables:
        raise DataError(f"{out}: {', '.join(empty)}; choose another --date")
    for message in empty:
        _LOG.warning("%s: %s; the set uses the others only", out, message)
    if len({table.width for table in tables}) > 1 and not clusters:
        sizes = ", ".join(f"{table.entity} {table.width}" for table in tables)
        raise DataError(f"{out}: vectors of {chosen} are of different sizes ({sizes}); encode users and "
                        "items with one encoder")
    return tables


def _entity(out: AnyPath, entity: str, dt: str, clusters: bool, encode: Encode) -> Knowledge:
    folder, features_folder = (out / kind / f"entity={entity}" / f"dt={dt}"
                               for kind in ("knowledge", "features"))
    texts = features.read(folder, ["knowledge", "generated_dt"])
    table = features.read(features_folder)
    if table is None and clusters and len(_written(texts)):
        raise DataError(f"{out} has no features of {entity} texts of {dt}, so no cluster ids: run the stage "
                        "`encode` (encode.model), or choose a name that does not start with 'cluster'")
    entities = {name for part in (texts, table) if part is not None
                for name in part["entity_id"].to_pylist()}
    vectors = codes = None
    if table is None:
        written = _written(texts)
        ids = written["entity_id"].to_pylist()
        vectors, made_by = encode(written["knowledge"].to_pylist())
    else:
        made_by = features.maker(table)
        texts = of_features(table, texts, features_folder, dt)
        if clusters:
            ids, codes = features.clusters(table, features_folder)
        else:
            ids, vectors = features.vectors(table, features_folder)
    manifest = read_manifest(folder)
    return Knowledge(entity, dt, ids, vectors, codes, usable_from(ids, folder, texts),
                     len(entities) - len(ids), made_by, features.by_id(texts, "prompt_sha256"),
                     manifest.get("settings", {}), drafted(texts, manifest))


def _written(texts: pa.Table) -> pa.Table:
    """Rows with a non-empty text."""
    words = pc.utf8_length(pc.utf8_trim_whitespace(texts["knowledge"]))
    return texts.filter(pc.fill_null(pc.greater(words, 0), False))
