"""Compares a column with the values of the setting ``where``: text, numbers and booleans."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dare_job.data.input import values

Value = str | bool | int | float
_TRUTHS = dict.fromkeys(("true", "t", "yes", "y", "on", "1", "1.0"), True) | dict.fromkeys(
    ("false", "f", "no", "n", "off", "0", "0.0"), False)


def places(column: pa.Array, allowed: Sequence[Value]) -> pa.Array:
    """(N,) places in ``allowed`` of the text, number or boolean that equals each value; null: none does."""
    column = values.plain(column)
    if pa.types.is_boolean(column.type):
        asked = [_TRUTHS.get(values.as_text(value).lower()) for value in allowed]
        return pc.index_in(column, pa.array(asked, pa.bool_()), skip_nulls=True)
    text = _trimmed(column)
    found = [pc.index_in(text, pa.array(map(values.as_text, allowed), pa.string()), skip_nulls=True)]
    if any(isinstance(value, bool) for value in allowed):
        truths = pa.array([*_TRUTHS.values()]).take(pc.index_in(pc.utf8_lower(text), pa.array([*_TRUTHS])))
        asked = [value if isinstance(value, bool) else None for value in allowed]
        found.append(pc.index_in(truths, pa.array(asked, pa.bool_()), skip_nulls=True))
    if any(type(value) in (int, float) for value in allowed):
        asked = [float(value) if type(value) in (int, float) and abs(value) < 2**53 else None
                 for value in allowed]  # a larger float equals several integers
        found.append(pc.index_in(values.numbers(text, "")[0], pa.array(asked, pa.float64()), skip_nulls=True))
    return pc.coalesce(*found)


def beside_booleans(column: pa.Array, allowed: Sequence[Value]) -> str | None:
    """A text of a column that is no boolean, if some of ``allowed`` are; YAML reads NO as false."""
    if not any(isinstance(value, bool) for value in allowed) or not values.is_text(values.plain(column).type):
        return None
    text = values.without_missing(_trimmed(column), "None", "").drop_null()
    others = text.filter(pc.invert(pc.is_in(pc.utf8_lower(text), pa.array([*_TRUTHS]))))
    return others[0].as_py() if len(others) else None


def _trimmed(column: pa.Array) -> pa.Array:
    return pc.utf8_trim_whitespace(values.texts(column, "")[0])
