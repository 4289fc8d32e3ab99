"""The column ``parsed`` of published texts that are JSON by ``decode.schema``: their values, in Arrow types.

    string                        string
    integer, number, boolean      int64, double, bool
    array with items              list
    object with properties        struct, with a field for each property

All values may be null. What has no such type is its JSON as a string: arrays and objects without these
keywords, values of several types, and a schema within itself. Properties that the schema does not name are
left out. A value that does not fit its type, as in a text by an earlier schema, is null.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

_KINDS = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_OTHER = pa.string()
_INT64 = 2**63


def column_type(schema: str) -> pa.DataType:
    """The type of the column for a JSON schema, which is given as text."""
    root = json.loads(schema)
    return _type(root, root, ())


def _type(schema: Any, root: Mapping, above: tuple[str, ...]) -> pa.DataType:
    """The type of a part of a schema; ``above``: references that lead to it."""
    if not isinstance(schema, dict):
        return _OTHER
    reference = schema.get("$ref")
    if reference is not None:
        inside = reference in above
        return _OTHER if inside else _type(_referenced(root, reference), root, (*above, reference))
    for name in ("anyOf", "oneOf", "allOf"):
        if name in schema:
            return _common([_type(part, root, above) for part in schema[name] if part != {"type": "null"}])
    kinds = schema.get("type") or _kinds_of(schema)
    kinds = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind != "null"]
    if kinds == ["array"] and isinstance(schema.get("items"), dict) and "prefixItems" not in schema:
        return pa.list_(_type(schema["items"], root, above))
    if kinds == ["object"]:
        return _struct(schema.get("properties") or {}, root, above)
    return _common([_KINDS.get(kind, _OTHER) for kind in kinds])


def _struct(properties: Mapping, root: Mapping, above: tuple[str, ...]) -> pa.DataType:
    """A struct; Parquet has none without fields, and Spark none with names that differ in case alone."""
    if len({name.lower() for name in properties}) < max(1, len(properties)):
        return _OTHER
    return pa.struct([(name, _type(part, root, above)) for name, part in properties.items()])


def _common(types: Sequence[pa.DataType]) -> pa.DataType:
    return types[0] if types and all(each == types[0] for each in types) else _OTHER


def _kinds_of(schema: Mapping) -> list[str]:
    """The types of the values of ``enum`` or ``const``."""
    names = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return [names.get(type(value), "other") for value in values]


def _referenced(root: Any, reference: str) -> Any:
    """The part of a schema that a reference such as ``#/$defs/film`` names; None if there is none."""
    part = root
    for name in reference.removeprefix("#").split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        part = part.get(name) if isinstance(part, dict) else None
    return part if reference.startswith("#") else None


def parse(texts: Sequence[str | None], kind: pa.DataType) -> pa.Array:
    """The values (N,) of N texts; null where a text is not JSON, for instance because it was cut off."""
    return pa.array([_converted(json_value(text), kind) for text in texts], kind)


def json_value(text: str | None) -> Any:
    """The value of a text that is JSON; None if it is not."""
    try:
        return json.loads(text or "")
    except (ValueError, RecursionError):
        return None


def _converted(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _converted(value.get(field.name), field.type) for field in kind} if (
            isinstance(value, dict)) else None
    if pa.types.is_list(kind):
        return [_converted(each, kind.value_type) for each in value] if isinstance(value, list) else None
    if kind == _OTHER:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return text.encode("utf-8", "replace").decode()  # JSON may name half of a character
    if isinstance(value, bool) or kind == pa.bool_():
        return value if isinstance(value, bool) and kind == pa.bool_() else None
    if not isinstance(value, int | float) or not abs(value) < 2**1023:
        return None
    if kind == pa.float64():
        return float(value)
    return int(value) if value == int(value) and -_INT64 <= value < _INT64 else None
