"""Prompt sets: one YAML file each, rendered to plain text. Knows nothing about models or tokenizers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import jinja2
import yaml
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dare_job.errors import ConfigError, RowError

_FOLDER = Path(__file__).parent
_ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False
)
_VARIABLES = {"user": {"attributes", "history"}, "item": {"title", "attributes"}}


@dataclass(frozen=True)
class HistoryItem:
    """One past interaction as a prompt may show it."""

    title: str
    rating: float | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PromptSet:
    """A user and an item template under one name.

    ``max_history`` is the number of most recent interactions a user prompt shows.
    """

    name: str
    max_history: int
    user_template: str
    item_template: str

    @cached_property
    def version_hash(self) -> str:
        """sha256 (hex) of what decides the rendered text: both templates and ``max_history``."""
        parts = (str(self.max_history), self.user_template, self.item_template)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def user(self, attributes: Mapping[str, str], history: Sequence[HistoryItem]) -> str:
        """Prompt for a user's profile.

        ``history`` is in time order, oldest first; only the last ``max_history`` are shown.
        Raises RowError when it is empty, ConfigError when the template cannot be rendered.
        """
        if not history:
            raise RowError("empty history")
        shown = list(history)[-self.max_history :]
        return _render(self.name, "user", self.user_template, attributes=dict(attributes), history=shown)

    def item(self, title: str, attributes: Mapping[str, str]) -> str:
        """Prompt for an item's description. Raises RowError on an empty title, ConfigError as above."""
        if not title or not title.strip():
            raise RowError("empty title")
        return _render(self.name, "item", self.item_template, title=title, attributes=dict(attributes))


def load(name_or_path: str) -> PromptSet:
    """Read a prompt set that comes with the package (``"kar"``) or a YAML file of your own.

    Raises ConfigError when there is no such set, when a key is missing, unknown or of the wrong type,
    when a template does not parse or uses a variable that prompts do not have.
    """
    path = _FOLDER / f"{name_or_path}.yaml"
    if not path.is_file():
        path = Path(name_or_path)
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in _FOLDER.glob("*.yaml")))
        raise ConfigError(f"prompts: no set {name_or_path!r}; use one of {known} or a path to a YAML file")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"prompts: {path} is not YAML: {error}") from error
    wanted = {"name": str, "max_history": int, "user": str, "item": str}
    if not isinstance(content, dict) or set(content) != set(wanted):
        raise ConfigError(f"prompts: {path} must have exactly the keys {', '.join(wanted)}")
    for key, kind in wanted.items():
        if not isinstance(content[key], kind) or isinstance(content[key], bool):
            raise ConfigError(f"prompts: {path}: {key} must be of type {kind.__name__}, got {content[key]!r}")
    if content["max_history"] < 1:
        raise ConfigError(f"prompts: {path}: max_history must be at least 1, got {content['max_history']}")
    for key in ("user", "item"):
        _check_template(path, key, content[key])
    return PromptSet(content["name"], content["max_history"], content["user"], content["item"])


def _check_template(path: Path, key: str, template: str) -> None:
    try:
        unknown = find_undeclared_variables(_ENVIRONMENT.parse(template)) - _VARIABLES[key]
    except jinja2.TemplateError as error:
        raise ConfigError(f"prompts: {path}: template {key}: {error}") from error
    if unknown:
        raise ConfigError(
            f"prompts: {path}: template {key} uses unknown {', '.join(sorted(unknown))}; "
            f"it may use {', '.join(sorted(_VARIABLES[key]))}"
        )


def _render(set_name: str, key: str, template: str, **values: object) -> str:
    try:
        return _compiled(template).render(**values)
    except (jinja2.TemplateError, TypeError) as error:
        raise ConfigError(f"prompts: set {set_name!r}, template {key}: {error}") from error


@lru_cache(maxsize=64)
def _compiled(template: str) -> jinja2.Template:
    """Compiling costs a hundred times what rendering does."""
    return _ENVIRONMENT.from_string(template)
