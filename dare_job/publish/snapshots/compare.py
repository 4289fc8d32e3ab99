"""Joins two snapshots of one entity type by id, without Spark and without holding their texts.

It keeps 25 bytes per row: 64-bit hashes of id and text, number of tokens, row number and flags. Ids are
compared by hash: the probability of a collision among 10 million ids is 1 in 370,000.
"""

import difflib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pandas.util import hash_array
from rich.text import Text

from dare_job.storage.paths import AnyPath, arrow_source
from dare_job.tables.published import parquet_files

_BATCH = 65_536

_TEXT, _ERROR, _NEW = 1, 2, 4  # flags of a row


@dataclass(frozen=True)
class Rows:
    """The rows (N,) of a snapshot, sorted by ``ids``; ``places`` are their row numbers in the files."""

    ids: np.ndarray  # uint64
    texts: np.ndarray  # uint64; 0 for rows without text
    tokens: np.ndarray  # int32
    flags: np.ndarray  # uint8
    places: np.ndarray  # int32


@dataclass(frozen=True)
class Comparison:
    """Counts of ids, lengths in tokens of texts in both snapshots, and the changed texts.

    changed  two int32 arrays (C,): row numbers of changed texts in either snapshot, sorted by hash of the id
    """

    counts: dict[str, int]
    lengths: dict
    changed: tuple[np.ndarray, np.ndarray]


def read(folder: AnyPath, dt: str) -> Rows:
    """Read a snapshot in batches; rows whose text was generated for ``dt`` are new."""
    parts: list[tuple] = []
    columns = ["entity_id", "knowledge", "tokens", "error", "generated_dt"]
    for path in parquet_files(folder):
        with arrow_source(path) as file:
            for batch in pq.ParquetFile(file).iter_batches(_BATCH, columns=columns):
                parts.append(_batch(batch, dt))
    if not parts:
        return Rows(*(np.zeros(0, kind) for kind in (np.uint64, np.uint64, np.int32, np.uint8, np.int32)))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    del parts
    order = np.argsort(columns[0]).astype(np.int32)
    return Rows(*(column[order] for column in columns), order)


def compare(before: Rows, after: Rows) -> Comparison:
    """Match two snapshots by id."""
    at = np.searchsorted(after.ids, before.ids)
    at[at == len(after.ids)] = 0
    both = after.ids[at] == before.ids if len(after.ids) else np.zeros(len(before.ids), bool)
    old, new = np.flatnonzero(both), at[both]
    flags, texts = before.flags[old], before.texts[old]
    flags_after, texts_after = after.flags[new], after.texts[new]
    had, has = flags & _TEXT > 0, flags_after & _TEXT > 0
    differs = had & has & (texts != texts_after)
    same = had & has & ~differs
    counts = {
        "before": len(before.ids), "after": len(after.ids), "added": len(after.ids) - len(new),
        "removed": len(before.ids) - len(old), "changed": differs.sum(), "same": same.sum(),
        "same_written_anew": (same & (flags_after & _NEW > 0)).sum(), "text_gained": (~had & has).sum(),
        "text_lost": (had & ~has).sum(), "errors_before": (before.flags & _ERROR > 0).sum(),
        "errors_after": (after.flags & _ERROR > 0).sum(),
        "errors_new": ((flags & _ERROR == 0) & (flags_after & _ERROR > 0)).sum()}
    lengths = _lengths(before.tokens[old][had & has], after.tokens[new][had & has],
                       before.tokens[old][differs], after.tokens[new][differs])
    changed = before.places[old][differs], after.places[new][differs]
    return Comparison({name: int(count) for name, count in counts.items()}, lengths, changed)


def texts_at(folder: AnyPath, places: list[int]) -> list[tuple[str, str]]:
    """(id, text) of rows by row number; reads only the row groups that contain them."""
    texts, first = {}, 0
    for path in parquet_files(folder):
        with arrow_source(path) as opened:
            file = pq.ParquetFile(opened)
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if any(first <= place < first + rows for place in places):
                    texts |= _picked(file, group, first, places)
                first += rows
    return [texts[place] for place in places]


def _picked(file: pq.ParquetFile, group: int, first: int, places: list[int]) -> dict[int, tuple[str, str]]:
    picked = {}
    for batch in file.iter_batches(_BATCH, row_groups=[group], columns=["entity_id", "knowledge"]):
        for place in places:
            if first <= place < first + len(batch):
                picked[place] = tuple(column[place - first].as_py() for column in batch.columns)
        first += len(batch)
    return picked


def _batch(batch: pa.RecordBatch, dt: str) -> tuple[np.ndarray, ...]:
    text = batch["knowledge"].is_valid().to_numpy(zero_copy_only=False)
    error = batch["error"].is_valid().to_numpy(zero_copy_only=False)
    new = pc.fill_null(pc.equal(batch["generated_dt"], dt), False).to_numpy(zero_copy_only=False)
    flags = _TEXT * text + _ERROR * error + _NEW * new
    texts = np.where(text, _hashes(pc.fill_null(batch["knowledge"], "")), 0).astype(np.uint64)
    tokens = pc.fill_null(batch["tokens"], 0).to_numpy(zero_copy_only=False).astype(np.int32)
    return _hashes(batch["entity_id"]), texts, tokens, flags.astype(np.uint8)


def _hashes(texts: pa.Array) -> np.ndarray:
    return hash_array(texts.to_numpy(zero_copy_only=False), categorize=False)


def _lengths(before: np.ndarray, after: np.ndarray, changed: np.ndarray, into: np.ndarray) -> dict:
    """Lengths in tokens of texts in both snapshots, and how the changed texts grew."""
    def spread(tokens: np.ndarray) -> dict | None:
        if not len(tokens):
            return None
        median, high = np.percentile(tokens, (50, 95))
        return {"mean": round(float(tokens.mean()), 1), "median": float(median), "p95": float(high)}

    grown = into.astype(np.int64) - changed
    return {"before": spread(before), "after": spread(after), "longer": int((grown > 0).sum()),
            "shorter": int((grown < 0).sum()),
            "mean_change": round(float(grown.mean()), 2) if len(grown) else None}


def side_by_side(before: str, after: str, colour: bool) -> tuple[Text, Text]:
    """Both texts with removed words in red or [-...-], and added words in green or {+...+}."""
    old, new = before.split(), after.split()
    left, right = Text(), Text()
    for kind, i, j, k, n in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        _append(left, old[i:j], kind != "equal", "red" if colour else "[--]")
        _append(right, new[k:n], kind != "equal", "green" if colour else "{++}")
    return left, right


def _append(text: Text, words: list[str], marked: bool, mark: str) -> None:
    if not words:
        return
    text.append(" " if text else "")
    joined = " ".join(words)
    if marked and not mark.isalpha():
        text.append(f"{mark[:2]}{joined}{mark[2:]}")
    else:
        text.append(joined, style=mark if marked else "")
