"""Converts columns as files have them to ids, numbers and text, and compares them with ``where``.

``times`` converts times. Each converting function returns two arrays of the column's length: the values, null
where there is none, and problems, null where there is none. A problem is what is wrong with a value, in the
words of the rejects table.
"""

import math
import re
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Value = str | bool | int | float
_TRUTHS = dict.fromkeys(("true", "t", "yes", "y", "on", "1", "1.0"), True) | dict.fromkeys(
    ("false", "f", "no", "n", "off", "0", "0.0"), False)
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_COMMA_NUMBER = r"^[+-]?([0-9]+|[0-9]{1,3}(\.[0-9]{3})+)(,[0-9]*)?([eE][+-]?[0-9]+)?$"
# at the ends of an id: spaces of any kind, ends of lines, and characters that have no width
_BLANK = " \t\r\n\v\f\x85\xa0\u2002\u2003\u2009\u200b\u200c\u200d\u2028\u2029\u202f\u2060\u3000\ufeff"
_MISSING = ("null", "NULL", "nan", "NaN", "NaT", "<NA>", r"\N")  # as exports write a missing value
_NO_ID = ("undefined", "(null)", "N/A", "n/a", "#N/A")  # beside them; a title may be one of these
_NO_NUMBER = ("", "none", "na", "n/a", "#n/a")  # beside them, in any case, where a number or time is expected
_CONTROL = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f]")  # but not ends of lines and tabs
# a float as an id: with zeros only, or as pandas and spreadsheets write long numbers
_FLOAT = r"^(?P<whole>-?[0-9]+)\.0+$|^(?P<exponent>-?[0-9](?:\.[0-9]+)?[eE]\+[0-9]+)$"
_EXACT = {pa.float16(): 2.0**11, pa.float32(): 2.0**24}  # whole numbers from here on are rounded; else 2**53
_SIMPLE = {pa.large_string(): pa.string(), pa.string_view(): pa.string(), pa.large_binary(): pa.binary(),
           pa.binary_view(): pa.binary()}
Checked = tuple[pa.Array, pa.Array]


def ids(column: pa.Array, name: str) -> Checked:
    """Ids as text without blanks at their ends.

    A float with a whole value is that integer, as pandas writes integers with gaps. Bytes that are no text
    are hexadecimal digits.
    """
    column = plain(column)
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        column = _ids_of_bytes(column)
    if is_text(kind):
        return _text_ids(column, name)
    if pa.types.is_integer(kind):
        return column.cast(pa.string()), no_problem(column)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _whole_ids(column, name)
    if pa.types.is_boolean(kind) or pa.types.is_nested(kind):
        return pa.nulls(len(column), pa.string()), problem_where(pc.is_valid(column),
                                                                 f"{name} is {kind}, no id")
    texts = [None if value is None else as_text(value) for value in _python(column)]
    return pa.array(texts, pa.string()), no_problem(column)


def _ids_of_bytes(column: pa.Array) -> pa.Array:
    """Bytes as text, or in hexadecimal where they are none or another id would be the same without blanks."""
    def text(value: bytes) -> str:
        decoded = as_text(value)
        return decoded if decoded.strip(_BLANK) == decoded.rstrip(" ") else value.hex()

    encoded = column.dictionary_encode()
    return pa.array(map(text, encoded.dictionary.to_pylist()), pa.string()).take(encoded.indices)


def _text_ids(column: pa.Array, name: str) -> Checked:
    text, broken = utf8(column)
    text, problem = pc.utf8_trim(text, _BLANK), problem_where(broken, f"{name} is not UTF-8")
    if pc.any(pc.match_substring_regex(text, _FLOAT)).as_py():
        parts = pc.extract_regex(text, _FLOAT)
        whole, exponent = pc.struct_field(parts, "whole"), pc.struct_field(parts, "exponent")
        number = pc.if_else(pc.equal(whole, ""), pa.scalar(None, pa.string()), whole).cast(pa.float64())
        inexact = pc.or_kleene(pc.not_equal(exponent, ""), pc.greater_equal(pc.abs(number), 2.0**53))
        problem = pc.coalesce(problem, problem_where(inexact, _inexact(name)))
        text = pc.coalesce(whole, text)
    return without_missing(text, "None", *_NO_ID), problem


def _inexact(name: str) -> str:
    return f"{name} is a float that may have lost digits: export ids as integers or text"


def _whole_ids(column: pa.Array, name: str) -> Checked:
    if pa.types.is_decimal(column.type):
        number = column.to_pylist()
        texts = [str(int(value)) if value is not None and value == int(value) else None for value in number]
        broken = [value is not None and text is None for value, text in zip(number, texts, strict=True)]
        return pa.array(texts, pa.string()), problem_where(pa.array(broken, pa.bool_()),
                                                      f"{name} is not a whole number")
    number = _floats(column)
    whole = pc.equal(number, pc.trunc(number))
    exact = pc.less(pc.abs(number), _EXACT.get(column.type, 2.0**53))
    kept = pc.if_else(pc.and_(whole, exact), number, pa.scalar(None, pa.float64()))
    problem = pc.coalesce(problem_where(pc.invert(whole), f"{name} is not a whole number"),
                          problem_where(pc.invert(exact), _inexact(name)))
    return kept.cast(pa.int64()).cast(pa.string()), problem


def numbers(column: pa.Array, name: str, decimal: str = "point") -> Checked:
    """Numbers as float64. With the decimal mark ``comma``, points between digits divide thousands."""
    column = plain(column)
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _floats(column), no_problem(column)
    if not is_text(kind):
        return pa.nulls(len(column), pa.float64()), problem_where(pc.is_valid(column),
                                                             f"{name} is {kind}, no number")
    text = present_text(column)
    if decimal == "comma":
        text = _with_point(text)
    valid = pc.match_substring_regex(text, NUMBER)
    number = pc.if_else(valid, text, pa.scalar(None, pa.string()))
    number = pc.utf8_ltrim(number, "+").cast(pa.float64())
    infinite = pc.fill_null(pc.match_substring_regex(text, "(?i)^[+-]?inf(inity)?$"), False)
    broken = problem_where(pc.fill_null(pc.invert(valid), False), f"{name} is not a number")
    return number, pc.coalesce(problem_where(infinite, f"{name} is not a finite number"), broken)


def _floats(column: pa.Array) -> pa.Array:
    """Numbers as float64; NaN is null, as in text."""
    number = column.cast(pa.float64(), safe=False)
    return pc.if_else(pc.is_nan(number), pa.scalar(None, pa.float64()), number)


def _with_point(text: pa.Array) -> pa.Array:
    """Numbers as 4,5 or 1.234,5 with a decimal point; other text, such as 4.5, is no number."""
    fits = pc.match_substring_regex(text, _COMMA_NUMBER)
    plain_text = pc.replace_substring(pc.replace_substring(text, ".", ""), ",", ".")
    return pc.if_else(fits, plain_text, pc.binary_join_element_wise("?", text, ""))


def texts(column: pa.Array, name: str) -> Checked:
    """Values as text: lists with commas, times without empty parts, whole floats as integers."""
    column = plain(column)
    kind = column.type
    if is_text(kind):
        text, broken = utf8(column)
        return text, problem_where(broken, f"{name} is not UTF-8")
    if pa.types.is_integer(kind):
        return column.cast(pa.string()), no_problem(column)
    if pa.types.is_floating(kind):
        column = pa.array([None if value is None or math.isnan(value) else _float_text(value, kind)
                           for value in column.to_pylist()], pa.string())
        return column, no_problem(column)
    return pa.array([None if value is None else as_text(value) for value in _python(column)],
                    pa.string()), no_problem(column)


def _python(column: pa.Array) -> list:
    """Values as Python objects; None for times that Python does not have."""
    try:
        return column.to_pylist()
    except (OverflowError, ValueError):
        objects = []
        for value in column:
            try:
                objects.append(value.as_py())
            except (OverflowError, ValueError):
                objects.append(None)
        return objects


def as_text(value: object) -> str:
    """A value in words for a prompt; empty for what has none, such as an empty list."""
    if isinstance(value, str):
        return paired(value)
    if isinstance(value, bytes):
        text = _decoded(value)
        return value.hex() if text is None or _CONTROL.search(text) else text
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return "" if math.isnan(value) else _float_text(value, pa.float64())
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S").removesuffix(" 00:00:00")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, dict):
        return next((as_text(value[key]) for key in ("name", "title", "description") if value.get(key)), "")
    if isinstance(value, set | frozenset):
        value = sorted(value, key=as_text)
    if isinstance(value, list | tuple):
        return ", ".join(dict.fromkeys(filter(None, map(as_text, _flat(value)))))
    return "" if value is None else str(value)


def paired(text: str) -> str:
    """Text with U+FFFD for half of a character, which JSON has where an emoji was cut and Arrow refuses."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _flat(values: list | tuple) -> Iterator[object]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


def _float_text(value: float, kind: pa.DataType) -> str:
    if math.isinf(value) or value == int(value) and abs(value) < 1e15:
        return str(value) if math.isinf(value) else str(int(value))
    return str({pa.float32(): np.float32, pa.float16(): np.float16}.get(kind, float)(value))


def plain(column: pa.Array) -> pa.Array:
    """Without dictionaries, extension types, views and large offsets, also in lists; UUIDs are text."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return plain(column.dictionary_decode())
    if isinstance(kind, pa.UuidType):
        return pa.array([value and str(value) for value in column.to_pylist()], pa.string())
    if isinstance(kind, pa.BaseExtensionType):
        return plain(column.storage)
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and kind.value_type in _SIMPLE:
        return column.cast(pa.list_(_SIMPLE[kind.value_type]))
    return column.cast(_SIMPLE[kind]) if kind in _SIMPLE else column


def is_text(kind: pa.DataType) -> bool:
    """Whether a type holds text or bytes."""
    return pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind) \
        or pa.types.is_null(kind)


def utf8(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Text or bytes as text, those that are not UTF-8 in hexadecimal; and (N,) bool, where they were."""
    raw = column.cast(pa.binary())
    try:
        return raw.cast(pa.string()), pa.array(np.zeros(len(raw), bool))
    except pa.ArrowInvalid:
        binary = raw.to_pylist()
        texts = [None if value is None else _decoded(value) for value in binary]
        broken = [value is not None and text is None for value, text in zip(binary, texts, strict=True)]
        texts = [value.hex() if bad else text for value, text, bad in zip(binary, texts, broken, strict=True)]
        return pa.array(texts, pa.string()), pa.array(broken, pa.bool_())


def _decoded(value: bytes) -> str | None:
    """Text of UTF-8; None for other bytes."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def present_text(column: pa.Array) -> pa.Array:
    """Trimmed text of numbers or times; null where it is a word for a missing value."""
    text = pc.utf8_trim_whitespace(utf8(column)[0])
    words = [word.lower() for word in (*_MISSING, *_NO_NUMBER)]
    return _null_where(pc.is_in(pc.utf8_lower(text), pa.array(words)), text)


def without_missing(text: pa.Array, *words: str) -> pa.Array:
    """Null where a text is a word that exports write for a missing value, or one of ``words``."""
    return _null_where(pc.is_in(text, pa.array([*_MISSING, *words])), text)


def _null_where(missing: pa.Array, text: pa.Array) -> pa.Array:
    return pc.if_else(missing, pa.scalar(None, pa.string()), text)


def no_problem(column: pa.Array) -> pa.Array:
    """Nulls (N,): no value of the column has a problem."""
    return pa.nulls(len(column), pa.string())


def problem_where(broken: pa.Array, reason: str) -> pa.Array:
    """``reason`` where a value is broken."""
    return pc.if_else(broken, pa.scalar(reason, pa.string()), pa.scalar(None, pa.string()))


def places(column: pa.Array, allowed: Sequence[Value]) -> pa.Array:
    """(N,) places in ``allowed`` of the text, number or boolean that equals each value; null: none does."""
    column = plain(column)
    if pa.types.is_boolean(column.type):
        booleans = [_TRUTHS.get(as_text(value).lower()) for value in allowed]
        return pc.index_in(column, pa.array(booleans, pa.bool_()), skip_nulls=True)
    text = _trimmed(column)
    indexes = [pc.index_in(text, pa.array(map(as_text, allowed), pa.string()), skip_nulls=True)]
    if any(isinstance(value, bool) for value in allowed):
        truths = pa.array([*_TRUTHS.values()]).take(pc.index_in(pc.utf8_lower(text), pa.array([*_TRUTHS])))
        booleans = [value if isinstance(value, bool) else None for value in allowed]
        indexes.append(pc.index_in(truths, pa.array(booleans, pa.bool_()), skip_nulls=True))
    if any(type(value) in (int, float) for value in allowed):
        floats = [float(value) if type(value) in (int, float) and abs(value) < 2**53 else None
                  for value in allowed]  # a larger float equals several integers
        indexes.append(pc.index_in(numbers(text, "")[0], pa.array(floats, pa.float64()), skip_nulls=True))
    return pc.coalesce(*indexes)


def beside_booleans(column: pa.Array, allowed: Sequence[Value]) -> str | None:
    """A text of a column that is no boolean, if some of ``allowed`` are; YAML reads NO as false."""
    if not any(isinstance(value, bool) for value in allowed) or not is_text(plain(column).type):
        return None
    text = without_missing(_trimmed(column), "None", "").drop_null()
    others = text.filter(pc.invert(pc.is_in(pc.utf8_lower(text), pa.array([*_TRUTHS]))))
    return others[0].as_py() if len(others) else None


def _trimmed(column: pa.Array) -> pa.Array:
    return pc.utf8_trim_whitespace(texts(column, "")[0])
