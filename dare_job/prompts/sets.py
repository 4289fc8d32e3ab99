"""Prompt sets and the rendering of prompts for users and items, with Jinja templates in a sandbox."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import jinja2
from jinja2 import nodes
from jinja2.meta import find_referenced_templates, find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dare_job.errors import ConfigError, RowError, describe

_ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False
)


def check_template(where: str, template: str, variables: Iterable[str]) -> None:
    """Raises ConfigError that begins with ``where`` and names the line.

    Where the template is empty, cannot be compiled, reads another one, or uses none of ``variables``.
    """
    if not template.strip():
        raise ConfigError(f"{where}: the template is empty")
    try:
        tree = _ENVIRONMENT.parse(template)
        _compiled(template)  # filters and tests
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"{where}, line {error.lineno} of the template: {error.message}") from error
    if any(True for _ in find_referenced_templates(tree)):
        raise ConfigError(f"{where}: a template cannot include, import or extend another: write it as one")
    unknown = find_undeclared_variables(tree) - set(variables)
    if unknown:
        line = min(name.lineno for name in tree.find_all(nodes.Name) if name.name in unknown)
        raise ConfigError(f"{where}, line {line} of the template: uses unknown {', '.join(sorted(unknown))}; "
                          f"it may use {', '.join(sorted(variables))}")


def render_template(where: str, template: str, **values: object) -> str:
    """The text. Raises ConfigError as ``check`` does, where these values do not fit the template."""
    try:
        text = _compiled(template).render(**values)
        text.encode()  # half of a surrogate pair has no place in a table
    except Exception as error:  # filters and methods of values raise what they like
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
                 if frame.filename == "<template>"]
        line = f", line {lines[-1]} of the template" if lines else ""
        why = str(error) if isinstance(error, jinja2.TemplateError) else describe(error)
        raise ConfigError(f"{where}{line}: {why}") from error
    return text


@lru_cache(maxsize=64)
def _compiled(template: str) -> jinja2.Template:
    """Compiling costs a hundred times what rendering does."""
    return _ENVIRONMENT.from_string(template)

VARIABLES = {"user": ("attributes", "history"), "item": ("attributes", "title")}


@dataclass(frozen=True)
class HistoryItem:
    """One past interaction as a prompt may show it."""

    title: str
    rating: float | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PromptSet:
    """Templates under one name, for one domain.

    max_history  number of most recent interactions that a user prompt shows
    templates    by side, "user" and "item"; a Jinja file is one of the two
    words        what the domain puts into the templates: texts, and lists of texts, by variable
    source       where the questions come from: a paper
    """

    name: str
    max_history: int
    templates: Mapping[str, str]
    words: Mapping[str, str | list[str]] = field(default_factory=dict)
    source: str = ""

    @cached_property
    def version_hash(self) -> str:
        """sha256 (hex) of what decides the rendered text: templates, ``max_history``, the domain's words."""
        parts = [str(self.max_history), *(self.templates.get(side, "") for side in VARIABLES)]
        if self.words:
            parts.append(json.dumps(self.words, sort_keys=True))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def user(self, attributes: Mapping[str, str], history: Sequence[HistoryItem]) -> str:
        """Prompt for a user's profile.

        ``history`` is in time order, oldest first; only the last ``max_history`` are shown.
        Raises RowError when it is empty, ConfigError when the template cannot be rendered.
        """
        if not history:
            raise RowError("empty history")
        shown = list(history)[-self.max_history :]
        return self._rendered("user", attributes=dict(attributes), history=shown)

    def item(self, title: str, attributes: Mapping[str, str]) -> str:
        """Prompt for an item's description. Raises RowError on an empty title, ConfigError as above."""
        if not title or not title.strip():
            raise RowError("empty title")
        return self._rendered("item", title=title, attributes=dict(attributes))

    def _rendered(self, side: str, **values: object) -> str:
        if side not in self.templates:
            raise ConfigError(f"prompts: {self.name} has no {side} template: use it as prompts."
                              f"{next(iter(self.templates))} alone")
        return render_template(f"prompts: set {self.name!r}, {side}", self.templates[side],
                               **self.words, **values)
