"""Commands whose options are the fields of a dataclass."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from dare_job.cli.result import AsJson
from dare_job.config.options import Option

FieldPath = tuple[str, ...]  # names of nested fields


def paragraphs(function: Callable) -> str:
    """The docstring of a command with each paragraph on one line, which the help wraps to the terminal."""
    return "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(function) or "").split("\n\n"))


def takes(options: type, json: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn ``function(options, as_json)`` into a command that has the fields of a dataclass as its options.

    Fields that are dataclasses contribute their own fields. Fields without ``option(...)`` are left out.

    Parameters
    ----------
    json
        The command has ``--json``; else the function is called with the options alone.
    """
    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        by_name = {"__".join(path): (path, field, kind) for path, field, kind in _options(options)}

        def command(as_json: bool = False, **values) -> None:
            parsed = {by_name[name][0]: _parsed(by_name[name][1], value) for name, value in values.items()}
            function(_built(options, parsed), *([as_json] if json else []))

        parameters = [_parameter(name, field, kind) for name, (_, field, kind) in by_name.items()]
        parameters.sort(key=lambda parameter: parameter.default is not inspect.Parameter.empty)
        if json:
            parameters.append(inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False,
                                                annotation=AsJson))
        command.__signature__ = inspect.Signature(parameters)
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        return command

    return decorate


def _options(options: type, above: FieldPath = ()) -> Iterator[tuple[FieldPath, Field, Any]]:
    kinds = get_type_hints(options)
    for field in fields(options):
        path, kind = (*above, field.name), kinds[field.name]
        if is_dataclass(kind):
            yield from _options(kind, path)
        elif "option" in field.metadata:
            yield path, field, kind


def _parameter(name: str, field: Field, kind: Any) -> inspect.Parameter:
    option: Option = field.metadata["option"]
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    if option.parse:
        kind = list[str] if option.repeatable else str
        if default is not inspect.Parameter.empty:
            default, kind = _text(default), kind | None
    elif option.negated:
        default = False
    bounds = {key: value for key, value in (("min", option.min), ("max", option.max)) if value is not None}
    hidden = default is None or default is False or default in ("", inspect.Parameter.empty)
    shown = "" if hidden else f" \\[{default}]"  # on the line of the help, where typer begins a new one
    typed = typer.Argument(help=option.help, metavar=option.metavar) if option.argument else typer.Option(
        _flag(field), help=f"{option.help.removesuffix('.')}{shown}.", show_default=False,
        metavar=_metavar(option, kind, bool(bounds)), rich_help_panel=option.panel,
        envvar=option.envvar, **bounds)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default,
                             annotation=Annotated[kind, typed])


def _metavar(option: Option, kind: Any, bounded: bool) -> str | None:
    """The value in the help: none after a flag, a plain word for a list. None: the type's name."""
    if option.metavar or kind is bool:
        return option.metavar or ""
    lists = [part for part in (kind, *get_args(kind)) if get_origin(part) is list]
    if lists:
        return "PATH" if get_args(lists[0]) == (Path,) else "TEXT"
    return "N" if bounded else None


def _flag(field: Field) -> str:
    return field.metadata["option"].flag or f"--{field.name.replace('_', '-')}"


def _text(default: Any) -> str | None:
    """A parsed default as it would be written on the command line."""
    if default is None or default == ():
        return None
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _parsed(field: Field, value: Any) -> Any:
    option: Option = field.metadata["option"]
    if option.negated:
        return not value
    if option.parse is None:
        return value
    if option.repeatable:
        return option.parse(_flag(field), value or [])
    return field.default if value is None else option.parse(_flag(field), value)


def _built(options: type, parsed: dict[FieldPath, Any]) -> Any:
    kinds = get_type_hints(options)
    values = {}
    for field in fields(options):
        if is_dataclass(kinds[field.name]):
            below = {path[1:]: value for path, value in parsed.items() if path[0] == field.name}
            values[field.name] = _built(kinds[field.name], below)
        elif (field.name,) in parsed:
            values[field.name] = parsed[field.name,]
    return options(**values)
