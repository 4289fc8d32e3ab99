"""Prompt sets and the rendering of prompts for users and items, with Jinja templates in a sandbox."""

from __future__ import annotations

import hashlib
import json
import re
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import jinja2
from jinja2 import nodes
from jinja2.meta import find_referenced_templates, find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dare_job.errors import ConfigError, RowError, describe

_YEAR = re.compile(r"\s*\(\d{4}\)$")
MAX_WORDS = "max_words"  # the variable of all templates that says how long a text may be
VARIABLES = {"user": ("attributes", "history"), "item": ("attributes", "title")}
_ENVIRONMENT = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True,
                                             autoescape=False)


def check_template(where: str, template: str, variables: Iterable[str]) -> None:
    """Check a template.

    Raises
    ------
    ConfigError
        The template is empty, cannot be compiled, includes another one, or uses a variable that is not in
        ``variables``. The message begins with ``where`` and names the line.
    """
    if not template.strip():
        raise ConfigError(f"{where}: the template is empty")
    try:
        tree = _ENVIRONMENT.parse(template)
        _compiled(template)  # also checks filters and tests
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"{where}, line {error.lineno} of the template: {error.message}") from error
    if any(True for _ in find_referenced_templates(tree)):
        raise ConfigError(f"{where}: a template cannot include, import or extend another: merge them")
    unknown = find_undeclared_variables(tree) - set(variables)
    if unknown:
        line = min(name.lineno for name in tree.find_all(nodes.Name) if name.name in unknown)
        raise ConfigError(f"{where}, line {line} of the template: uses unknown {', '.join(sorted(unknown))}; "
                          f"it may use {', '.join(sorted(variables))}")


def uses(template: str, variable: str) -> bool:
    """Whether a template that compiles uses a variable."""
    return variable in find_undeclared_variables(_ENVIRONMENT.parse(template))


@lru_cache(maxsize=64)
def _compiled(template: str) -> jinja2.Template:
    """Compile a template. Cached, as compiling takes a hundred times as long as rendering."""
    return _ENVIRONMENT.from_string(template)


@dataclass(frozen=True)
class HistoryItem:
    """One past interaction, for a prompt."""

    title: str
    rating: float | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)

    def compact(self) -> HistoryItem:
        """The title alone, without a year in parentheses at its end."""
        return HistoryItem(_YEAR.sub("", self.title) or self.title)


@dataclass(frozen=True)
class PromptSet:
    """Prompt templates for one domain.

    Attributes
    ----------
    max_history
        Number of most recent interactions in a user prompt.
    templates
        By side, "user" and "item"; a Jinja file has only one of them.
    words
        Values of the domain's variables, texts or lists of texts, and ``max_words`` if a template uses it.
    system
        Templates of the system text by side; they may use ``words``.
    examples
        Templates of (user, assistant) turns by side, likewise.
    compact
        Templates see the titles of a history without years, and neither ratings nor attributes.
    """

    name: str
    max_history: int
    templates: Mapping[str, str]
    words: Mapping[str, str | list[str] | int] = field(default_factory=dict)
    system: Mapping[str, str] = field(default_factory=dict)
    examples: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    compact: bool = False

    @cached_property
    def version_hash(self) -> str:
        """SHA-256 (hex) of everything that determines the text: templates, ``max_history``, words, system
        text, examples.
        """
        parts = [str(self.max_history), *(self.templates.get(side, "") for side in VARIABLES)]
        if self.words:
            parts.append(json.dumps(self.words, sort_keys=True))
        if self.system or self.examples:
            parts.append(json.dumps([self.conversation_hash(side) for side in VARIABLES]))
        if self.compact:
            parts.append("compact")
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def user(self, attributes: Mapping[str, str], history: Sequence[HistoryItem]) -> str:
        """Prompt for a user's profile.

        ``history`` is sorted by time, oldest first; the prompt contains the last ``max_history`` entries.

        Raises
        ------
        RowError
            The history is empty.
        ConfigError
            The set has no template for users, or it cannot be rendered.
        """
        if not history:
            raise RowError("empty history")
        newest = list(history)[-self.max_history :]
        if self.compact:
            newest = [entry.compact() for entry in newest]
        return self._render("user", attributes=dict(attributes), history=newest)

    def item(self, title: str, attributes: Mapping[str, str]) -> str:
        """Prompt for an item description.

        Raises
        ------
        RowError
            The title is empty.
        ConfigError
            The set has no template for items, or it cannot be rendered.
        """
        if not title or not title.strip():
            raise RowError("empty title")
        return self._render("item", title=title, attributes=dict(attributes))

    def system_text(self, side: str) -> str:
        """The system text of a side; empty if it has none.

        Raises
        ------
        ConfigError
            The text cannot be rendered.
        """
        return self._fill(f"system of {side}", self.system.get(side, "")).strip()

    def example_turns(self, side: str) -> tuple[tuple[str, str], ...]:
        """Turns (user, assistant) before every prompt of a side.

        Raises
        ------
        ConfigError
            A turn cannot be rendered.
        """
        place = f"example of {side}"
        return tuple((self._fill(place, user), self._fill(place, answer).strip())
                     for user, answer in self.examples.get(side, ()))

    def conversation_hash(self, side: str) -> str:
        """SHA-256 (hex) of the system text and the examples of a side; empty if it has neither."""
        parts = [self.system_text(side), self.example_turns(side)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest() if any(parts) else ""

    def _render(self, side: str, **values: object) -> str:
        if side not in self.templates:
            raise ConfigError(f"prompts: {self.name} has no {side} template: use it only as prompts."
                              f"{next(iter(self.templates), 'user')}")
        return self._fill(side, self.templates[side], **values)

    def _fill(self, place: str, template: str, **values: object) -> str:
        try:
            text = _compiled(template).render(**self.words, **values)
            text.encode()  # fails for lone surrogates, which tables cannot store
        except Exception as error:  # filters and methods of values can raise anything
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
                     if frame.filename == "<template>"]
            line = f", line {lines[-1]} of the template" if lines else ""
            cause = str(error) if isinstance(error, jinja2.TemplateError) else describe(error)
            raise ConfigError(f"prompts: set {self.name!r}, {place}{line}: {cause}") from error
        return text
