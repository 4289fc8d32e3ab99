"""Reads settings from YAML files and overrides of the command line, without knowledge of any key."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_origin

import yaml
from pydantic import BaseModel

from dare_job.errors import ConfigError


@dataclass(frozen=True)
class Override:
    """A value and its origin: an option of the command line, or a file after the first."""

    key: str
    value: Any
    origin: str


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, and in which no key appears twice."""

    def compose_mapping_node(self, anchor):
        node, seen = super().compose_mapping_node(anchor), set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if (key.tag, key.value) in seen:
                    raise yaml.composer.ComposerError(problem=f"the key {key.value} appears twice; keep one",
                                                      problem_mark=key.start_mark)
                seen.add((key.tag, key.value))
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789"))


def read(path: Path) -> dict:
    """Return the file's mapping.

    Raises
    ------
    ConfigError
        The file is missing, cannot be read, is not valid YAML, or holds anything but a mapping.
    """
    try:
        data = _yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"configuration file {path} does not exist") from None
    except OSError as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, impossible dates
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold a mapping of sections, found {type(data).__name__}")
    return data


def parse(text: str) -> Override:
    """Parse ``section.key=value`` of the command line.

    Raises
    ------
    ConfigError
        The text has another form, or the value is not valid YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text!r}: write it as section.key=value")
    try:
        return Override(key.strip(), _yaml(value), f"--set {text}")
    except (yaml.YAMLError, ValueError):
        raise ConfigError(f"--set {text!r}: the value is not valid YAML; write a text with % or other marks "
                          f"in quotes (in a shell: --set '{key.strip()}=\"VALUE\"')") from None


def merge(data: dict, above: dict, file: Path) -> None:
    """Apply another file's values, section by section. Its empty sections change nothing.

    Raises
    ------
    ConfigError
        A section of ``above`` is no section in ``data``.
    """
    for name, value in above.items():
        if isinstance(value, dict) and data.get(name) is not None:
            if not isinstance(data[name], dict):
                raise ConfigError(f"{file}: {name} is a section here, but {data[name]!r} in a file before it")
            merge(data[name], value, file)
        elif value is not None or not isinstance(data.get(name), dict):
            data[name] = value


def flat(data: dict, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield full keys and values, as in ``--set``: ``("decode.nodes", 8)``."""
    for name, value in data.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def origins(data: dict, file: Path) -> list[Override]:
    """Return the file's values by key, with the file as their origin."""
    return [Override(key, value, str(file)) for key, value in flat(data)]


def apply(data: dict, override: Override, root: type[BaseModel]) -> None:
    """Set the value of a key. Below a field that is a mapping, the rest of the key is one name.

    Raises
    ------
    ConfigError
        A part of the key before the last one is no section in ``data``.
    """
    *sections, name = _split(override.key, root)
    for section in sections:
        if data.get(section) is None:
            data[section] = {}
        data = data[section]
        if not isinstance(data, dict):
            raise ConfigError(f"{override.origin}: {section} is not a section")
    data[name] = override.value


def spark_conf(value):
    """Convert Spark properties to strings, as Spark expects them. An empty section means none."""
    if not isinstance(value, dict):
        return {} if value is None else value
    return {key: _spark_text(entry) for key, entry in value.items()}


def _spark_text(value):
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _split(key: str, root: type[BaseModel]) -> list[str]:
    names: list[str] = []
    rest, section = key, root
    while rest:
        name, _, rest = rest.partition(".")
        names.append(name)
        kind = section.model_fields[name].annotation if section and name in section.model_fields else None
        if get_origin(kind) is dict and rest:
            return [*names, rest]
        section = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    return names


def _yaml(text: str):
    return yaml.load(text, _Loader)  # a SafeLoader
