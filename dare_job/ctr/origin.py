"""What the table of texts says of each text: when it was written, whether the features are of it, and whether
its prompt alone tells what it was written from."""

import hashlib
from datetime import date

import numpy as np
import pyarrow as pa

from dare_job.ctr import rows
from dare_job.data.history import end_of_day
from dare_job.errors import DataError
from dare_job.files import AnyPath

_SHOWN = 3


def of_features(table: pa.Table, texts: pa.Table | None, folder: AnyPath, dt: str) -> pa.Table | None:
    """The table of texts as far as it tells of features: None where it does not say which texts they are of.

    Raises DataError where a vector is of another text than the one published, or of none.
    """
    if texts is None or "text_sha256" not in table.column_names:
        return None
    words = rows.by_id(texts, "knowledge")
    of = zip(table["entity_id"].to_pylist(), table["text_sha256"].to_pylist(), strict=True)
    other = [entity for entity, sha256 in of if entity not in words or sha256 != _sha256(words[entity])]
    if other:
        named = ", ".join(map(repr, other[:_SHOWN])) + (" ..." if len(other) > _SHOWN else "")
        raise DataError(f"{folder}: {len(other)} of {len(table)} features are of other texts than those "
                        f"published ({named}): run `dare-job encode --date {dt}`")
    return texts


def usable_from(ids: list[str], dt: str, texts: pa.Table | None) -> np.ndarray:
    """(T,) end of the day whose run wrote each text; of the table's own day where that is not known.

    Raises DataError for a day that is none, or after ``dt``.
    """
    written = rows.by_id(texts, "generated_dt")
    days = [written.get(entity, dt) for entity in ids]
    try:
        ends = {day: end_of_day(date.fromisoformat(day)) for day in {*days, dt}}
    except ValueError as error:
        raise DataError(f"generated_dt of a text of {dt} is no date: {error}; write it as YYYY-MM-DD"
                        ) from None
    late = next((entity for entity, day in zip(ids, days, strict=True) if ends[day] > ends[dt]), None)
    if late is not None:
        raise DataError(f"text of {late!r} was written on {written[late]}, after the date {dt} that its "
                        "table is of")
    return np.array([ends[day] for day in days], np.int64)


def drafted(texts: pa.Table | None, said: dict) -> frozenset[str]:
    """Ids of texts that may hold what older text has seen, whatever their prompt is.

    A relaxed token is one that a draft put there. Old text has seen interactions up to its own date, and the
    groups by which it is chosen are made of all up to tonight's. Where there was none, drafts are texts of
    the same night, each of another user and written from that one's prompt, so without labels.

    said  the texts' manifest: ``previous`` is the old text, None where there was none; not there: not known
    """
    if texts is None or said.get("previous", "not known") is None:
        return frozenset()
    relaxed = rows.by_id(texts, "relaxed_tokens")
    return frozenset(entity for entity in texts["entity_id"].to_pylist() if relaxed.get(entity) != 0)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
