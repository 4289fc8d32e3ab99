"""Parquet ``interactions`` as the job reads them (``data/readers``), without Spark: files of other types side
by side, ids that are numbers, times in seconds or of a timestamp type. A row that lacks a user, an item or a
time, or has a rating that is no number, is left out.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dare_job.data.readers.checks import LATEST_S
from dare_job.errors import DataError, describe

_NEEDED = ("user_id", "item_id", "timestamp")


def read(files: Iterable[Path]) -> tuple[pd.DataFrame, int]:
    """Columns user, item (text), time (seconds), rating (NaN: none), and how many rows were left out.

    Raises DataError for a file that cannot be read or has no such columns.
    """
    parts = [_file(path) for path in files]
    whole = pd.concat(parts, ignore_index=True)
    there = whole["user"].notna() & whole["item"].notna() & whole["time"].between(0, LATEST_S)
    kept = whole[there & ~whole["odd"]]
    return kept.drop(columns="odd").reset_index(drop=True), len(whole) - len(kept)


def _file(path: Path) -> pd.DataFrame:
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if missing := [name for name in _NEEDED if name not in names]:
                raise DataError(f"{path}: column {missing[0]} is missing")
            table = file.read(columns=[*_NEEDED, *(["rating"] if "rating" in names else [])])
            rating = table["rating"] if "rating" in names else pa.nulls(len(table), pa.float64())
            number = _numbers(rating)
            return pd.DataFrame({
                "user": _text(table["user_id"]), "item": _text(table["item_id"]),
                "time": _seconds(table["timestamp"]), "rating": number,
                "odd": rating.is_valid().to_numpy(zero_copy_only=False) & ~np.isfinite(number)})
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {describe(error)}") from error


def _text(column: pa.ChunkedArray) -> pd.Series:
    """Ids as text, None where there is none; a whole number stored as a float is a whole number."""
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        number = _numbers(column)
        whole = np.isfinite(number) & (number == np.floor(number))
        return pd.Series([str(int(one)) if there else None for one, there in zip(number, whole, strict=True)],
                         dtype=object)
    found = column.cast("string").to_pandas()
    return found.where(found.notna() & found.str.strip().ne(""), None)


def _seconds(column: pa.ChunkedArray) -> np.ndarray:
    """float64, NaN where it is no number."""
    if not pa.types.is_timestamp(column.type):
        return np.floor(_numbers(column))
    a_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[column.type.unit]
    return np.floor(_numbers(column.cast("int64")) / a_second)


def _numbers(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """float64, NaN where there is none."""
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return np.asarray(column.cast("float64", safe=False).fill_null(np.nan))
    return pd.to_numeric(pd.Series(column.to_pylist(), dtype=object), errors="coerce").to_numpy(np.float64)
