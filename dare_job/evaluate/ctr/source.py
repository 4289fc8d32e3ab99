"""Reads the clicks for ``dare-job ctr``: inputs of the job, prepared or split files, or a synthetic data set.

All give interactions with a label (and a split if the files have one), and users and items with their
attributes. Ids are text.
"""

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from dare_job.errors import DataError
from dare_job.workspace import MANIFEST

SAMPLE = "sample"
SPLITS = ("train", "valid", "test")
_CTR_COLUMNS = {"uid": "user_id", "iid": "item_id", "label": "label", "timestamp": "timestamp"}
_EVENT = ["user_id", "item_id", "timestamp"]


@dataclass(frozen=True)
class Source:
    """Interactions, users and items.

    Attributes
    ----------
    interactions
        User_id, item_id, timestamp (seconds), label (0 or 1); rating where there is one; split of files that
        are split, missing in rows that are history only.
    users, items
        User_id or item_id, attributes (list of (name, value), or None); items also title, or None.
    """

    interactions: pd.DataFrame
    users: pd.DataFrame
    items: pd.DataFrame


def load(data: str, min_rating: float | None) -> Source:
    """Read ``--data``: ``sample``, a folder with train, valid and test.csv.gz, a folder written by
    ``dare-job data prepare``, or an input folder of the job.

    Parameters
    ----------
    min_rating
        Lowest rating of a click; None: every interaction is one. Split and prepared files have labels.

    Raises
    ------
    DataError
        The data is missing, damaged or invalid. The message names what is wrong.
    """
    if data == SAMPLE:
        with tempfile.TemporaryDirectory() as folder:
            from dare_job.data.sample_world.write import write_world

            write_world(Path(folder))
            return _contract(Path(folder), min_rating)
    folder = Path(data)
    if (folder / "train.csv.gz").exists():
        return _ctr_split(folder)
    if (folder / "ctr").is_dir():
        return _prepared(folder)
    with tempfile.TemporaryDirectory() as temporary:
        _read(data, Path(temporary) / "input")
        return _contract(Path(temporary) / "input", min_rating)


def _read(data: str, into: Path) -> None:
    """Write the contract tables as the job reads its input: every row is checked."""
    from dare_job.config.settings import InputSettings, SparkSettings
    from dare_job.data.input import prepare
    from dare_job.spark.session import session

    spark = session(SparkSettings(conf={"spark.driver.memory": "1g"}))
    prepare.read_input(InputSettings(path=data), into, spark)


def _contract(folder: Path, min_rating: float | None) -> Source:
    tables = {name: _parquet(folder / f"{name}.parquet") for name in ("interactions", "users", "items")}
    rows = tables["interactions"].drop_duplicates(_EVENT)
    if min_rating is None:
        return Source(rows.assign(label=np.float32(1)), tables["users"], tables["items"])
    unrated = int(rows["rating"].isna().sum())
    if unrated:
        raise DataError(f"--data: {unrated} of {len(rows)} interactions have no rating, but a click is a "
                        f"rating of at least {min_rating:g} (--min-rating)")
    label = (rows["rating"] >= min_rating).astype("float32")
    return Source(rows.assign(label=label), tables["users"], tables["items"])


def _prepared(folder: Path) -> Source:
    """Labels and splits of ``dare-job data prepare``; interactions outside of them are history only."""
    try:
        positive = float(json.loads((folder / MANIFEST).read_text("utf-8"))["options"]["positive"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{folder / MANIFEST} does not have the rating of a click: "
                        f"{type(error).__name__}: {error}; prepare the folder again") from None
    parts = pd.concat([_parquet(folder / "ctr" / f"{split}.parquet")[_EVENT].assign(split=split)
                       for split in SPLITS]).drop_duplicates(_EVENT)
    source = _contract(folder, positive)
    rows = source.interactions.merge(parts, how="left", on=_EVENT)
    if rows["split"].notna().sum() < len(parts):
        raise DataError(f"{folder / 'ctr'}: some of its rows are not in interactions.parquet beside it; "
                        "prepare the folder again")
    return replace(source, interactions=rows)


def _parquet(path: Path) -> pd.DataFrame:
    """A file, or a folder of them. Raises DataError naming one that is missing or damaged."""
    try:
        return ds.dataset(path).to_table().to_pandas()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None


def _ctr_split(folder: Path) -> Source:
    parts = []
    for split in SPLITS:
        path = folder / f"{split}.csv.gz"
        try:
            part = pd.read_csv(path, dtype={"uid": str, "iid": str, "title": str})
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path} cannot be read: {error}") from None
        missing = sorted(set(_CTR_COLUMNS) - set(part.columns))
        if missing:
            raise DataError(f"{path} has no column {', '.join(missing)} (found: {', '.join(part.columns)})")
        part = part.assign(split=split, **{name: pd.to_numeric(part[name], errors="coerce")
                                           for name in ("label", "timestamp")})
        bad = ~part["label"].isin([0, 1]) | part[["uid", "iid"]].isna().any(axis=1)
        bad |= ~np.isfinite(part["timestamp"].astype(float))
        if bad.any():
            raise DataError(f"{path}, line {int(bad.idxmax()) + 2}: label must be 0 or 1, and uid, iid and "
                            "timestamp must not be empty; timestamps are seconds since 1970")
        parts.append(part)
    rows = pd.concat(parts, ignore_index=True).rename(columns=_CTR_COLUMNS)
    rows["label"] = rows["label"].astype("float32")
    titles = rows.get("title")
    items = rows[["item_id"]].assign(title=titles, attributes=None).drop_duplicates("item_id")
    users = rows[["user_id"]].assign(attributes=None).drop_duplicates("user_id")
    return Source(rows[[*_EVENT, "label", "split"]], users, items)
