"""Simulates a synthetic data set: users in taste clusters that drift, and their rated interactions.

Also makes the prompts and texts of a world on a date.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dare_job.data.sample_world import catalogue as catalogues
from dare_job.data.sample_world import grammar
from dare_job.data.sample_world.catalogue import AGES, GENDERS, OCCUPATIONS, Catalogue
from dare_job.errors import ConfigError
from dare_job.prompts.sets import HistoryItem, PromptSet

DAYS = 60
_CLUSTERS = 10
_SHARE_COLD = 0.08
_SHARE_WITHOUT_HISTORY = 0.004
_SHARE_ACTIVE_LAST_DAY = 0.3
_FAVOURITES = {"mood": 3, "theme": 3, "genre": 2}  # per cluster, of 12 each
_PULL = 3.0  # log-odds of choosing an item per matching taste


@dataclass(frozen=True)
class Users:
    """Users. ``taste``: preference (0 to 1) for each mood, theme and genre, on the first and last day."""

    attributes: tuple[dict[str, str], ...]
    taste: dict[str, np.ndarray]  # name -> (2, U, 12) float
    strictness: np.ndarray  # (U,) float, in rating points
    interactions: np.ndarray  # (U,) int, number per user


@dataclass(frozen=True)
class Events:
    """Interactions in (user, time) order. ``second`` counts from the world's first midnight."""

    user: np.ndarray  # (E,) int
    item: np.ndarray  # (E,) int
    rating: np.ndarray  # (E,) float32, 1 to 5 in halves
    second: np.ndarray  # (E,) int64


def make_users(count: int, rng: np.random.Generator) -> Users:
    """``count`` users in taste clusters. Most drift towards a second cluster; some have a short history."""
    sizes = {"mood": len(catalogues.MOODS), "theme": len(catalogues.THEMES), "genre": len(catalogues.GENRES)}
    first, second = rng.integers(_CLUSTERS, size=(2, count))
    moves = 0.6 * rng.random(count)[:, None]
    taste = {}
    for name, size in sizes.items():
        centre = np.zeros((_CLUSTERS, size))
        for cluster in range(_CLUSTERS):
            centre[cluster, rng.choice(size, _FAVOURITES[name], replace=False)] = 1.0
        own = 0.25 * rng.random((count, size))
        start = 0.75 * centre[first] + own
        taste[name] = np.stack([start, (1 - moves) * start + moves * (0.75 * centre[second] + own)])
    interactions = np.clip(np.rint(rng.lognormal(3.1, 0.5, size=count)), 6, 120).astype(int)
    cold = rng.random(count) < _SHARE_COLD
    interactions[cold] = rng.integers(1, 4, size=int(cold.sum()))
    interactions[: int(np.ceil(_SHARE_WITHOUT_HISTORY * count)) if count >= 100 else 0] = 0
    # One occupation is over-represented in each cluster, so attributes correlate with taste.
    attributes = attributes_of(first, rng)
    return Users(attributes, taste, rng.normal(0.0, 0.3, size=count), interactions)


def attributes_of(occupation: np.ndarray, rng: np.random.Generator) -> tuple[dict[str, str], ...]:
    """Attributes of U users; four of ten have the ``occupation`` (U,) given, the others any."""
    return tuple(
        {"gender": GENDERS[rng.integers(len(GENDERS))],
         "age": AGES[rng.choice(len(AGES), p=(0.06, 0.22, 0.30, 0.20, 0.13, 0.09))],
         "occupation": OCCUPATIONS[own if rng.random() < 0.4 else rng.integers(len(OCCUPATIONS))]}
        for own in occupation)


def make_events(population: Users, catalogue: Catalogue, days: int, rng: np.random.Generator) -> Events:
    """Simulate interactions: popularity and taste determine the items, and no user watches an item twice.

    Interactions are spread evenly over the days; the last one of some users is moved to the last day. Ratings
    depend on mood, theme, genre, the item's quality and the user's strictness.
    """
    users, items, ratings, seconds = [], [], [], []
    log_popularity = np.log(catalogue.popularity)
    counts = np.minimum(population.interactions, len(catalogue.titles) // 2)
    for user, count in enumerate(counts):
        if count == 0:
            continue
        when = np.sort(days * rng.random(count))
        if rng.random() < _SHARE_ACTIVE_LAST_DAY:
            when[-1] = days - rng.random()
        # (I,) each: match of an item with the taste of the first and of the last day
        early, late = (
            sum(population.taste[name][side, user][getattr(catalogue, name)] for name in population.taste)
            for side in (0, 1))
        gumbel = rng.gumbel(size=len(log_popularity))
        free = np.ones(len(log_popularity), dtype=bool)
        for moment in when:
            share = moment / days
            liking = (1 - share) * early + share * late
            score = log_popularity + _PULL * liking + gumbel
            score[~free | (catalogue.release_day > moment)] = -np.inf
            item = int(np.argmax(score))
            if not np.isfinite(score[item]):
                break
            free[item] = False
            value = 2.15 + 1.1 * liking[item] + catalogue.quality[item] - population.strictness[user]
            ratings.append(np.clip(np.rint(2 * (value + rng.normal(0.0, 0.4))) / 2, 1.0, 5.0))
            users.append(user)
            items.append(item)
            seconds.append(int(moment * 86_400))
    return Events(np.array(users, np.int64), np.array(items, np.int64), np.array(ratings, np.float32),
                  np.array(seconds, np.int64))


@dataclass(frozen=True)
class World:
    """U users, I items and E interactions over ``DAYS`` days; days are counted from 0."""

    catalogue: Catalogue
    users: Users
    events: Events


@dataclass(frozen=True)
class Example:
    """A prompt and its text by the grammar. ``titles``: those in the prompt, newest first."""

    entity: str  # user | item
    row: int  # index of the user or item in the world
    prompt: str
    text: str
    titles: tuple[str, ...]


def simulate(users: int, items: int, seed: int) -> World:
    """Simulate a world reproducibly.

    Raises
    ------
    ConfigError
        ``users`` or ``items`` is out of range.
    """
    if users < 1:
        raise ConfigError(f"users: must be at least 1, got {users}")
    if not 8 <= items <= catalogues.MAX_ITEMS:
        raise ConfigError(f"items: must be between 8 and {catalogues.MAX_ITEMS} (titles stay distinct), got "
                          f"{items}")
    rng = np.random.default_rng(seed)
    catalogue = catalogues.make_catalogue(items, DAYS, rng)
    population = make_users(users, rng)
    return World(catalogue, population, make_events(population, catalogue, DAYS, rng))


def user_examples(world: World, prompts: PromptSet, end_day: int) -> Iterator[Example]:
    """Prompt and profile of each user with a history before the end of day ``end_day - 1``."""
    events = world.events
    past = events.second < end_day * 86_400
    user, item, rating = events.user[past], events.item[past], events.rating[past]
    starts = np.searchsorted(user, np.arange(len(world.users.attributes) + 1))
    for row, attributes in enumerate(world.users.attributes):
        own = slice(starts[row], starts[row + 1])
        history = [HistoryItem(world.catalogue.titles[i], stars, world.catalogue.attributes[i])
                   for i, stars in zip(item[own], rating[own].tolist(), strict=True)]
        if not history:
            continue
        prompt = prompts.user(attributes, history)
        shown = tuple(entry.title for entry in history[: -prompts.max_history - 1 : -1])
        yield Example("user", row, prompt, grammar.profile(attributes, shown), shown)


def item_examples(world: World, prompts: PromptSet, end_day: int) -> Iterator[Example]:
    """Prompt and description of each item released before the end of day ``end_day - 1``."""
    items = zip(world.catalogue.titles, world.catalogue.attributes, strict=True)
    for row, (title, attributes) in enumerate(items):
        if world.catalogue.release_day[row] < end_day:
            text = grammar.description(title, attributes)
            yield Example("item", row, prompts.item(title, attributes), text, (title,))
