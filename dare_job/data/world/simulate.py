"""One sample world in memory, and what its grammar says about it on a given day."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dare_job.data.world import grammar
from dare_job.data.world.catalogue import MAX_ITEMS, Catalogue, make_catalogue
from dare_job.data.world.people import Events, People, make_events, make_people
from dare_job.errors import ConfigError
from dare_job.prompts import HistoryItem, PromptSet

DAYS = 60


@dataclass(frozen=True)
class World:
    """U users, I items and E interactions over ``DAYS`` days; days are counted from 0."""

    catalogue: Catalogue
    people: People
    events: Events


@dataclass(frozen=True)
class Example:
    """A prompt and the text that the grammar writes for it. ``titles``: as shown, newest first."""

    entity: str  # user | item
    row: int  # index of the user or item in the world
    prompt: str
    text: str
    titles: tuple[str, ...]


def simulate(users: int, items: int, seed: int) -> World:
    """A world that is the same for the same arguments. Raises ConfigError on impossible sizes."""
    if users < 1:
        raise ConfigError(f"users: must be at least 1, got {users}")
    if not 8 <= items <= MAX_ITEMS:
        raise ConfigError(f"items: must be between 8 and {MAX_ITEMS} (titles stay distinct), got {items}")
    rng = np.random.default_rng(seed)
    catalogue = make_catalogue(items, DAYS, rng)
    people = make_people(users, rng)
    return World(catalogue, people, make_events(people, catalogue, DAYS, rng))


def user_examples(world: World, prompts: PromptSet, end_day: int) -> Iterator[Example]:
    """For each user with a history before midnight at the end of day ``end_day - 1``: prompt and profile."""
    events = world.events
    seen = events.second < end_day * 86_400
    user, item, rating = events.user[seen], events.item[seen], events.rating[seen]
    starts = np.searchsorted(user, np.arange(len(world.people.attributes) + 1))
    for row, attributes in enumerate(world.people.attributes):
        own = slice(starts[row], starts[row + 1])
        history = [HistoryItem(world.catalogue.titles[i], stars, world.catalogue.attributes[i])
                   for i, stars in zip(item[own], rating[own].tolist(), strict=True)]
        if not history:
            continue
        prompt = prompts.user(attributes, history)
        shown = tuple(entry.title for entry in history[: -prompts.max_history - 1 : -1])
        yield Example("user", row, prompt, grammar.profile(attributes, shown), shown)


def item_examples(world: World, prompts: PromptSet, end_day: int) -> Iterator[Example]:
    """For each item released before the end of day ``end_day - 1``: prompt and description."""
    for row, (title, attributes) in enumerate(
        zip(world.catalogue.titles, world.catalogue.attributes, strict=True)
    ):
        if world.catalogue.release_day[row] < end_day:
            text = grammar.description(title, attributes)
            yield Example("item", row, prompts.item(title, attributes), text, (title,))
