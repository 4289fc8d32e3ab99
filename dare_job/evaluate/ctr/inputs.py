"""One set of texts joined to the label rows: the input of a CTR model."""

from dataclasses import dataclass, field

import numpy as np

from dare_job.evaluate.ctr.examples import Examples
from dare_job.evaluate.ctr.knowledge import Knowledge

BASE = "base"


@dataclass(frozen=True)
class Side:
    """Texts of one entity type. Row 0 of the tables means "no text".

    Attributes
    ----------
    text : int32 (N,)
        Row of each label row's text.
    history : int32 (N, L)
        Rows of the items clicked before; items only.
    vectors : float32 (T + 1, d)
        Centered and scaled to variance 1 over the entities of the data.
    clusters : int32 (T + 1, levels)
        0 means none.
    """

    text: np.ndarray
    vectors: np.ndarray | None = None
    clusters: np.ndarray | None = None
    history: np.ndarray | None = None


@dataclass(frozen=True)
class Inputs:
    """A named set of texts; ``sides`` by entity type, none for the base. ``counts`` are for the report."""

    name: str
    sides: dict[str, Side] = field(default_factory=dict)
    counts: dict[str, dict] = field(default_factory=dict)


def rows_of(table: Knowledge, examples: Examples) -> np.ndarray:
    """(N,) index in ``table`` of each label row's text; -1: no text."""
    return _places(table, examples)[examples.dense(table.entity)]


def _places(table: Knowledge, examples: Examples) -> np.ndarray:
    """Index of each entity's text by dense id; -1: no text."""
    ids = examples.of(table.entity).ids
    places = np.full(len(ids) + 1, -1, np.int64)
    known = ids.get_indexer(table.ids)
    places[known[known >= 0] + 1] = np.flatnonzero(known >= 0)
    return places


def join(name: str, tables: list[Knowledge], examples: Examples) -> Inputs:
    """Join texts to the label rows; ids that are not in the data are counted and ignored."""
    sides, counts = {}, {}
    for table in tables:
        places = _places(table, examples)
        text = places[examples.dense(table.entity)]
        known = examples.of(table.entity).ids.get_indexer(table.ids) >= 0
        counts[table.entity] = {
            "texts": len(table.ids), "unknown_ids": int((~known).sum()), "without_text": table.missing,
            "label_rows_with_text": round(float((text >= 0).mean()), 4)}
        vectors = None if table.vectors is None else with_none(scaled(table.vectors, known))
        clusters = None if table.clusters is None else with_none(table.clusters + 1)
        history = (places[examples.history] + 1).astype(np.int32) if table.entity == "item" else None
        sides[table.entity] = Side((text + 1).astype(np.int32), vectors, clusters, history)
    return Inputs(name, sides, counts)


def scaled(vectors: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Center and scale: texts of one prompt are so similar that their mean dominates their differences."""
    if not known.any():
        return vectors
    centred = vectors - vectors[known].mean(0)
    return (centred / max(float(centred[known].std()), 1e-8)).astype(np.float32)


def with_none(rows: np.ndarray) -> np.ndarray:
    """Rows (T, ...) after a row 0 of zeros, which means "no text"."""
    return np.concatenate([np.zeros((1, rows.shape[1]), rows.dtype), rows])
