"""Joins two snapshots of one entity type by id, without Spark and without holding their texts.

Ids and texts are compared by 64-bit hash: among 10 million ids a collision has a probability of 1 in 370,000.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pandas.util import hash_array
from rich.text import Text

from dare_job.publish.report import changes
from dare_job.schemas import KNOWLEDGE
from dare_job.storage.paths import AnyPath
from dare_job.tables import published

_COLUMNS = ("entity_id", "knowledge", "tokens", "error", "generated_dt")
_BATCH = 65_536


@dataclass(frozen=True)
class Comparison:
    """Counts of ids, lengths in tokens of texts in both snapshots, and the changed texts.

    Attributes
    ----------
    changed : int64 (C, 2)
        Row numbers of changed texts in both snapshots, sorted by hash of the id.
    """

    counts: dict[str, int]
    lengths: dict
    changed: np.ndarray


def read(folder: AnyPath, dt: str) -> pd.DataFrame:
    """Read a snapshot in batches; rows whose text was generated for ``dt`` are new.

    Columns: hashes of ``id`` and ``text``, ``has_text``, ``tokens``, ``error``, ``new`` and the row number.
    """
    batches = published.dataset(folder).to_batches(columns=list(_COLUMNS), batch_size=_BATCH,
                                                   batch_readahead=2, fragment_readahead=1)
    empty = pa.RecordBatch.from_pylist([], schema=pa.schema([KNOWLEDGE.field(name) for name in _COLUMNS]))
    rows = pd.concat([_hashed(batch, dt) for batch in (empty, *batches)], ignore_index=True)
    return rows.assign(number=np.arange(len(rows), dtype=np.int64))


def compare(before: pd.DataFrame, after: pd.DataFrame) -> Comparison:
    """Match two snapshots by id."""
    both = before.merge(after, on="id", suffixes=("", "_after")).sort_values("id")
    had, has = both["has_text"], both["has_text_after"]
    differs = had & has & (both["text"] != both["text_after"])
    same = had & has & ~differs
    counts = {
        "before": len(before), "after": len(after), "added": len(after) - len(both),
        "removed": len(before) - len(both), "changed": differs.sum(), "same": same.sum(),
        "same_written_anew": (same & both["new_after"]).sum(), "text_gained": (~had & has).sum(),
        "text_lost": (had & ~has).sum(), "errors_before": before["error"].sum(),
        "errors_after": after["error"].sum(), "errors_new": (~both["error"] & both["error_after"]).sum()}
    with_text, changed = both[had & has], both[differs]
    growth = changed["tokens_after"] - changed["tokens"]
    lengths = {"before": _spread(with_text["tokens"]), "after": _spread(with_text["tokens_after"]),
               "longer": int((growth > 0).sum()), "shorter": int((growth < 0).sum()),
               "mean_change": round(float(growth.mean()), 2) if len(growth) else None}
    return Comparison({name: int(count) for name, count in counts.items()}, lengths,
                      changed[["number", "number_after"]].to_numpy())


def _hashed(batch: pa.RecordBatch, dt: str) -> pd.DataFrame:
    is_new = pc.fill_null(pc.equal(batch["generated_dt"], dt), False)
    columns = {"has_text": batch["knowledge"].is_valid(), "tokens": pc.fill_null(batch["tokens"], 0),
               "error": batch["error"].is_valid(), "new": is_new}
    return pd.DataFrame({"id": _hashes(batch["entity_id"]),
                         "text": _hashes(pc.fill_null(batch["knowledge"], "")),
                         **{name: column.to_numpy(zero_copy_only=False) for name, column in columns.items()}})


def _hashes(texts: pa.Array) -> np.ndarray:
    return hash_array(texts.to_numpy(zero_copy_only=False), categorize=False)


def _spread(tokens: pd.Series) -> dict | None:
    """Mean, median and 95th percentile of lengths in tokens."""
    if not len(tokens):
        return None
    return {"mean": round(float(tokens.mean()), 1), "median": float(tokens.median()),
            "p95": float(tokens.quantile(0.95))}


def side_by_side(before: str, after: str, colour: bool) -> tuple[Text, Text]:
    """Both texts with removed words in red or [-...-], and added words in green or {+...+}.

    If comparing them takes too long, all words are marked.
    """
    everything = [("removed", changes.shorten(before)), ("added", changes.shorten(after))]
    left, right = Text(), Text()
    for kind, words in changes.words(before, after) or everything:
        if kind != "added":
            _append(left, words, kind != "same", "red" if colour else "[--]")
        if kind != "removed":
            _append(right, words, kind != "same", "green" if colour else "{++}")
    return left, right


def _append(text: Text, words: str, marked: bool, mark: str) -> None:
    words = " ".join(words.split())
    if not words:
        return
    text.append(" " if text else "")
    if marked and not mark.isalpha():
        text.append(f"{mark[:2]}{words}{mark[2:]}")
    else:
        text.append(words, style=mark if marked else "")
