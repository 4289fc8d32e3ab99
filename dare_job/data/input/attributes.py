"""Attributes of users and items: columns as maps of text."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dare_job.data.input import formats, values
from dare_job.data.input.cleaning import clean, clean_texts
from dare_job.schemas import ATTRIBUTES

_MAX_LISTED = 10  # entries of a list in an attribute
_LISTED = r"""^\s*([\[{]|\(b?['"]|set\(\)$)"""  # but no number as (1,234)
_QUOTED = r"""b?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
# NumPy writes no commas between them; Python would join them
_ADJOINING = re.compile(rf"""({_QUOTED})\s*(?=b?['"])|{_QUOTED}""", re.DOTALL)
_ENTRY = r'''"(?:[^"\\]|\\.)*"|[^\s'"{},\\][^\s"{},\\]*'''  # of an array of PostgreSQL
_POSTGRES = re.compile(rf"\{{(?:{_ENTRY})(?:,(?:{_ENTRY}))*\}}", re.DOTALL)


def attribute_maps(columns: dict[str, pa.Array], rows: int) -> pa.Array:
    """(N,) map of the values of each row that are neither null nor blank, as clean text.

    A name must not end its line either. Of several that are equal then, the others get a number.
    """
    cleaned = [clean(values.paired(name)) for name in columns]
    numbers = [cleaned[:at].count(name) + 1 for at, name in enumerate(cleaned)]
    named = {f"{name} #{number}" if number > 1 else name: column
             for name, number, column in zip(cleaned, numbers, columns.values(), strict=True) if name}
    names, texts = list(named), [_attribute_text(column) for column in named.values()]
    if not names:
        return pa.array([[]] * rows, ATTRIBUTES)
    present = np.stack([text.is_valid().to_numpy(zero_copy_only=False) for text in texts], axis=1)
    row, name = np.nonzero(present)
    offsets = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int32)
    flat = pa.concat_arrays(texts).take(pa.array(name * rows + row))
    return pa.MapArray.from_arrays(pa.array(offsets), pa.array(names, pa.string()).take(pa.array(name)), flat)


def _attribute_text(column: pa.Array) -> pa.Array:
    if pa.types.is_map(column.type):  # a list of pairs; no text says what it is
        return pa.nulls(len(column), pa.string())
    text = values.texts(column, "")[0]
    text = pc.replace_substring_regex(text, r"^(-?\d+)\.0$", r"\1")  # as pandas writes integers with gaps
    return clean_texts(unlisted(values.without_missing(text, "none", "None")))


def unlisted(text: pa.Array) -> pa.Array:
    """Lists and objects that are written as text, in words; other text as it is."""
    listed = pc.fill_null(pc.match_substring_regex(text, _LISTED), False)
    if not pc.any(listed).as_py():
        return text
    unpacked = pa.array([_listed(value) for value in text.filter(listed).to_pylist()], pa.string())
    return pc.replace_with_mask(text, listed, unpacked)


def _listed(text: str) -> str:
    """The entries of a list or the name of an object that is written as text; other text as it is."""
    value = _parsed(text)
    if isinstance(value, set):
        value = sorted(value, key=values.as_text)
    return values.as_text(value[:_MAX_LISTED] if isinstance(value, list | tuple) else value)


def _parsed(text: str) -> object:
    """The value that a text is in JSON, as an array of PostgreSQL or as a literal of Python; else the text.

    Lists of Python may lack commas between quoted entries, as NumPy writes them.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if len(text) > formats.MAX_CHARACTERS:
        return text
    if _POSTGRES.fullmatch(text.strip()):
        entries = re.findall(_ENTRY, text, re.DOTALL)
        return [re.sub(r"\\(.)", r"\1", entry[1:-1] if entry[0] == '"' else entry)
                for entry in entries if entry != "NULL"]
    divided = _ADJOINING.sub(lambda match: f"{match[1]}, " if match[1] else match[0], text)
    value = formats.parse_literal(divided)
    return value if isinstance(value, list | tuple | set | dict) else text


def holds_attributes(kind: pa.DataType | None) -> bool:
    """Whether a column ``attributes`` of a type (None: of a text file) may be a map, a struct or objects."""
    return kind is None or pa.types.is_map(kind) or pa.types.is_struct(kind) or values.is_text(
        values.plain(pa.nulls(0, kind)).type)


def given_attributes(column: pa.Array | None, rows: int) -> pa.Array:
    """Attributes of a column ``attributes``: a map, a struct, or objects in JSON."""
    if column is None:
        return pa.array([[]] * rows, ATTRIBUTES)
    column = values.plain(column)
    if pa.types.is_struct(column.type):
        fields = column.flatten()
        return attribute_maps({field.name: value for field, value in zip(column.type, fields, strict=True)},
                              rows)
    if values.is_text(column.type):
        objects = [_parsed(text) if text else None for text in values.utf8(column)[0].to_pylist()]
        objects = [value if isinstance(value, dict) else {} for value in objects]
        names = dict.fromkeys(str(name) for value in objects for name in value)
        return attribute_maps({name: pa.array([values.as_text(value.get(name)) for value in objects],
                                              pa.string()) for name in names}, rows)
    if not pa.types.is_map(column.type):
        return pa.array([[]] * rows, ATTRIBUTES)
    keys, items = clean_texts(values.texts(column.keys, "")[0]), _attribute_text(column.items)
    starts = column.offsets.to_numpy()
    valid = pc.and_(items.is_valid(), keys.is_valid()).to_numpy(zero_copy_only=False)
    before = np.concatenate([[0], np.cumsum(valid)])
    offsets = (before[starts - starts[0]]).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(offsets), keys.filter(pa.array(valid)),
                                   items.filter(pa.array(valid)))
