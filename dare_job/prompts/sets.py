"""What a prompt set is, and the prompts it writes for users and items."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dare_job.errors import ConfigError, RowError
from dare_job.prompts import template

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
        return template.render(f"prompts: set {self.name!r}, {side}", self.templates[side],
                               **self.words, **values)
