"""Conversions of values as Spark makes them in ``dare_job/data/readers``."""

from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[dDfF]?$"
_WHOLE = r"^[+-]?[0-9]+$"
_WHITESPACE = "".join(map(chr, range(33)))


def trimmed(text: pa.Array) -> pa.Array:
    """Without spaces at both ends; other whitespace stays."""
    return pc.utf8_trim(text, " ")


def present(text: pa.Array) -> pa.Array:
    """(N,) bool: neither null nor blank."""
    return pc.fill_null(pc.not_equal(trimmed(text), ""), False)


def doubles(column: pa.Array) -> pa.Array:
    """A column of numbers or of text as float64; null where there is no number."""
    if _is_number(column.type):
        return column.cast(pa.float64(), safe=False)
    return _parsed(column, _NUMBER)


def whole_numbers(column: pa.Array) -> pa.Array:
    """A column of timestamps, numbers or text as float64 with whole values; null where there is none."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        unit = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
        whole = pc.floor(pc.divide(column.cast(pa.int64()).cast(pa.float64(), safe=False), float(unit)))
        return whole
    return pc.trunc(doubles(column)) if _is_number(kind) else _parsed(column, _WHOLE)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _parsed(column: pa.Array, pattern: str) -> pa.Array:
    text = pc.utf8_trim(column.cast(pa.string()), _WHITESPACE)
    text = pc.if_else(pc.match_substring_regex(text, pattern), text, pa.scalar(None, pa.string()))
    bare = pc.utf8_rtrim(pc.utf8_ltrim(text, "+"), "dDfF")
    return bare.cast(pa.float64())


def utf8(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Text or bytes as valid text with U+FFFD for invalid bytes; and (N,) bool, where they were."""
    try:
        text = column.cast(pa.binary()).cast(pa.string())
        return text, pa.array(np.zeros(len(text), bool))
    except pa.ArrowInvalid:
        raw = column.cast(pa.binary()).to_pylist()
        text = [value and value.decode("utf-8", "replace") for value in raw]
        broken = [value is not None and value.decode("utf-8", "ignore").encode() != value for value in raw]
        return pa.array(text, pa.string()), pa.array(broken, pa.bool_())


def attribute_map(pairs: Iterable[tuple[str, object]]) -> dict[str, str]:
    """The values that are neither null nor blank, as text."""
    texts = ((name, as_text(value)) for name, value in pairs if value is not None)
    return {name: text for name, text in texts if text.strip(" ")}


def as_text(value: object) -> str:
    """A value as Spark casts it to a string."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float | np.floating):
        return _float_text(value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        text = value.strftime("%Y-%m-%d %H:%M:%S")
        return f"{text}.{value.microsecond:06d}".rstrip("0") if value.microsecond else text
    return value.isoformat() if isinstance(value, date) else str(value)


def _float_text(value: float | np.floating) -> str:
    """As Java writes a double, or a float for np.float32: 1.0E7 from ten million on."""
    if not np.isfinite(value):
        return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return np.format_float_positional(value, trim="0")
    mantissa, _, exponent = np.format_float_scientific(value, trim="0").partition("e")
    return f"{mantissa}E{int(exponent)}"
