"""Turns a validation failure of the settings into lines that a user can act on."""

import difflib
import typing

from pydantic import BaseModel, ValidationError


def explain(error: ValidationError, root: type[BaseModel], file: str) -> str:
    """One line for each failure: the key, its value, the file, and the valid choices or keys."""
    lines = [_line(failure, root) for failure in error.errors()]
    return f"{file}: " + "; ".join(dict.fromkeys(lines))


def _line(failure, root: type[BaseModel]) -> str:
    path = [part for part in failure["loc"] if isinstance(part, str)]
    section, names = _resolve(root, path)
    key = ".".join(names)
    if failure["type"] == "extra_forbidden":
        known = sorted(section.model_fields)
        close = difflib.get_close_matches(names[-1], known, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        return f"unknown key {key}{hint}; valid keys: {', '.join(known)}"
    message = failure["msg"][0].lower() + failure["msg"][1:]
    field = section.model_fields.get(names[-1]) if names else None
    choices = _choices(field.annotation) if field else []
    hint = f"; valid choices: {', '.join(choices)}" if choices and "input should be '" not in message else ""
    return f"{key} = {failure['input']!r}: {message}{hint}"


def _resolve(root: type[BaseModel], path: list[str]) -> tuple[type[BaseModel], list[str]]:
    """The section that holds the failing key, and the key's path without union branches."""
    section, names = root, []
    for part in path:
        field = section.model_fields.get(part)
        names.append(part)
        if field is None:
            break
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            section = field.annotation
        else:
            break
    return section, names


def _choices(annotation) -> list[str]:
    if typing.get_origin(annotation) is typing.Literal:
        return [str(value) for value in typing.get_args(annotation)]
    return [choice for part in typing.get_args(annotation) for choice in _choices(part)]
