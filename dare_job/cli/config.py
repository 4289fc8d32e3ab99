"""The commands under ``dare-job config``: settings in effect, and all settings."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dare_job.cli import options
from dare_job.cli.from_dataclass import takes
from dare_job.cli.result import console, print_result
from dare_job.config.options import option
from dare_job.errors import ConfigError


@dataclass(frozen=True)
class SchemaOptions:
    """Options of ``dare-job config schema``."""

    keys: list[str] | None = option("Only these settings or sections, such as decode or out.", None,
                                    argument=True, metavar="[KEY]...")


@dataclass(frozen=True)
class ShowOptions(SchemaOptions):
    """Options of ``dare-job config show``."""

    config: list[Path] | None = options.config_option()
    set_: list[str] | None = options.set_option()


@takes(ShowOptions)
def show(args: ShowOptions, as_json: bool) -> None:
    """Print the settings in effect, and which file or option each one comes from."""
    from dare_job.config import source
    from dare_job.config.settings import load
    from dare_job.observe import redact

    files, overrides = args.config or [], args.set_ or []
    settings = load(files, overrides)
    origins = {value.key: value.origin for file in files
               for value in source.origins(source.read(file), file)}
    origins |= {source.parse(text).key: "--set" for text in overrides}
    values = dict(source.flat(redact.values(settings.model_dump(mode="json"))))
    entries = {key: {"value": value, "origin": origins.get(key, "default")} for key, value in values.items()}
    _print(entries, args.keys, as_json)


@takes(SchemaOptions)
def schema(args: SchemaOptions, as_json: bool) -> None:
    """Print every setting with its type, default and description."""
    _print(settings(), args.keys, as_json)


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
    kind = field.get("type", "object" if "$ref" in field else "any")
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

    from dare_job.config.errors import REPLACED

    if key in REPLACED:
        raise ConfigError(f"no setting {key}: {REPLACED[key]}")
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
