"""Items of the sample world: distinct titles, attributes, quality, popularity, release day."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dare_job.data.world.words import (
    COUNTRIES,
    DECADES,
    GENRES,
    MOOD_OF,
    MOODS,
    PLACES,
    THEME_OF,
    THEMES,
)

_SHARE_WITH_PLACE = 0.25
_ZIPF_EXPONENT = 0.8
_SHARE_OBSCURE = 0.06
_SHARE_RELEASED_LATE = 0.25  # the rest is there from the first day
MAX_ITEMS = len(MOOD_OF) * len(THEME_OF) * (1 + len(PLACES)) // 2


@dataclass(frozen=True)
class Catalogue:
    """All arrays have one entry for each of the I items.

    ``mood`` and ``theme`` (indices into MOODS, THEMES) follow from the title and are in no attribute.
    ``release_day`` counts days from the world's first day; on the last day a few items are new.
    """

    titles: tuple[str, ...]
    attributes: tuple[dict[str, str], ...]
    genre: np.ndarray  # (I,) int, index into GENRES
    mood: np.ndarray  # (I,) int
    theme: np.ndarray  # (I,) int
    quality: np.ndarray  # (I,) float, in rating points around 0
    popularity: np.ndarray  # (I,) float, sums to 1, Zipf-like
    release_day: np.ndarray  # (I,) int


def make_titles(count: int, rng: np.random.Generator) -> tuple[str, ...]:
    """``count`` distinct titles: adjective, noun and for every fourth a place."""
    adjectives, nouns = tuple(MOOD_OF), tuple(THEME_OF)
    plain_share = min(1.0 - _SHARE_WITH_PLACE, 0.5 * len(adjectives) * len(nouns) / count)
    titles: dict[str, None] = {}
    while len(titles) < count:
        title = f"{adjectives[rng.integers(len(adjectives))]} {nouns[rng.integers(len(nouns))]}"
        if rng.random() >= plain_share:
            title += f" in {PLACES[rng.integers(len(PLACES))]}"
        titles[title] = None
    return tuple(titles)


def make_catalogue(count: int, days: int, rng: np.random.Generator) -> Catalogue:
    """``count`` items of a world that lasts ``days`` days."""
    titles = make_titles(count, rng)
    genre = rng.integers(len(GENRES), size=count)
    popularity = 1.0 / (1.0 + rng.permutation(count)) ** _ZIPF_EXPONENT
    popularity[rng.random(count) < _SHARE_OBSCURE] *= 0.02
    release_day = np.where(rng.random(count) < _SHARE_RELEASED_LATE, rng.integers(1, days, size=count), 0)
    release_day[: max(1, count // 50)] = days - 1
    attributes = tuple(
        {
            "genre": GENRES[genre[i]],
            "decade": DECADES[rng.integers(len(DECADES))],
            "country": COUNTRIES[rng.integers(len(COUNTRIES))],
        }
        for i in range(count)
    )
    words = [title.split()[:2] for title in titles]
    return Catalogue(
        titles=titles,
        attributes=attributes,
        genre=genre,
        mood=np.array([MOODS.index(MOOD_OF[adjective]) for adjective, _ in words]),
        theme=np.array([THEMES.index(THEME_OF[noun]) for _, noun in words]),
        quality=rng.normal(0.0, 0.35, size=count),
        popularity=popularity / popularity.sum(),
        release_day=release_day,
    )
