"""The commands under ``dare-job config``: settings in effect, and all settings."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from dare_job.cli.result import AsJson, console, print_result
from dare_job.errors import ConfigError

Config = Annotated[list[Path] | None, typer.Option(
    "--config", help="YAML settings, for example conf/demo.yaml; repeatable, later files win key by key.")]
Set = Annotated[list[str] | None, typer.Option(
    "--set", metavar="KEY=VALUE", help="Override a setting, as in decode.batch_size=16; repeatable.")]
Keys = Annotated[list[str] | None, typer.Argument(
    metavar="[KEY]...", help="Only these settings or sections, such as decode or out.")]


def show(keys: Keys = None, config: Config = None, set_: Set = None, as_json: AsJson = False) -> None:
    """Print the settings in effect, and which file or option each one comes from."""
    from dare_job.config import source
    from dare_job.config.settings import load
    from dare_job.observe import redact

    settings = load(config or [], set_)
    origins = {value.key: value.origin for file in config or []
               for value in source.origins(source.read(file), file)}
    origins |= {source.parse(text).key: "--set" for text in set_ or []}
    values = dict(source.flat(redact.values(settings.model_dump(mode="json"))))
    entries = {key: {"value": value, "origin": origins.get(key, "default")} for key, value in values.items()}
    _print(entries, keys, as_json)


def schema(keys: Keys = None, as_json: AsJson = False) -> None:
    """Print every setting with its type, default and description."""
    _print(settings(), keys, as_json)


def settings() -> dict[str, dict]:
    """Type, default and description of every setting, by its key."""
    from dare_job.config.settings import JobConfig

    root = JobConfig.model_json_schema()
    return dict(_fields(root, root.get("$defs", {}), ""))


def _fields(section: dict, named: dict[str, dict], above: str) -> Iterator[tuple[str, dict]]:
    for name, field in section["properties"].items():
        whole = named.get(field.get("$ref", "").rpartition("/")[2], {})
        if "properties" in whole:
            yield from _fields(whole, named, f"{above}{name}.")
        else:
            yield f"{above}{name}", {"type": _type({**whole, **field}), "default": field.get("default"),
                                     "description": field.get("description", "")}


def _type(field: dict) -> str:
    """The type of a field in words: ``16 | 64``, ``integer >= 1``, ``number or null``."""
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(map(_type, field["anyOf"])))
    if "enum" in field:
        return " | ".join(map(str, field["enum"]))
    if "const" in field:
        return str(field["const"])
    if field.get("exclusiveMinimum", float("-inf")) >= field.get("minimum", float("inf")):
        field = {name: value for name, value in field.items() if name != "minimum"}  # the tighter bound only
    bounds = [f"{sign} {field[name]}" for name, sign in (
        ("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<"))
        if name in field and abs(field[name]) < 2**31 - 1]
    kind = field.get("type", "any")
    if kind == "array":
        kind = f"list of {_type(field.get('items', {}))}"
    return f"{kind} {' and '.join(bounds)}" if bounds else kind


def _print(entries: dict[str, dict], keys: list[str] | None, as_json: bool) -> None:
    """Print the entries of settings or sections (default: all).

    Raises ConfigError if there is no such setting or section.
    """
    keys = [_mapping_of(key, entries) for key in keys or []]
    for key in keys:
        _require_known(key, list(entries))
    entries = {key: entry for key, entry in entries.items()
               if not keys or any(f"{key}.".startswith(f"{section}.") for section in keys)}
    print_result(as_json, lambda: entries, _print_table)


def _mapping_of(key: str, entries: dict[str, dict]) -> str:
    """A mapping for a key inside it: ``gates.max_share`` for ``gates.max_share.loop``."""
    above = key.rpartition(".")[0]
    return above if key not in entries and entries.get(above, {}).get("type") == "object" else key


def _print_table(entries: dict[str, dict]) -> None:
    from rich.table import Table

    columns = list(next(iter(entries.values()), ()))
    table = Table("setting", *columns, box=None, pad_edge=False)
    for key, entry in entries.items():
        table.add_row(key, *(_text(entry[name]) for name in columns),
                      style="dim" if entry.get("origin") == "default" else None)
    console().print(table, markup=False)


def _require_known(key: str, settings: list[str]) -> None:
    """Raise ConfigError, with the valid names beside it, if this is neither a setting nor a section."""
    from difflib import get_close_matches

    if any(f"{name}.".startswith(f"{key}.") for name in settings):
        return
    section = key.rpartition(".")[0]
    inside = [name for name in settings if section and name.startswith(f"{section}.")]
    known = inside or list(dict.fromkeys(name.partition(".")[0] for name in settings))
    close = get_close_matches(key, known, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise ConfigError(f"no setting or section {key}{hint}; valid names: {', '.join(known)}")


def _text(value) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, default=str)
