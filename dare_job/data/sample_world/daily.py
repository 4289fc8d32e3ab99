"""Simulates a service that people open daily or weekly, to compare policies of which texts to write again.

Unlike the sample data set, users have many active days, and their interests stay, drift or jump. How often a
user comes and how the user's interest moves are independent, so the users with the most new interactions are
not those whose texts are wrong.

``profile_of_interests`` writes their texts by rules, a stand-in for an LLM: ``grammar.profile`` names single
titles, and these name the facts that prevail in the history, with the newest title.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dare_job.data.sample_world import catalogue as catalogues
from dare_job.data.sample_world import phrases
from dare_job.data.sample_world.catalogue import AGES, MOODS, THEMES, Catalogue, title_facts
from dare_job.data.sample_world.simulate import attributes_of

_HALF = 6  # an interaction counts half as much as the one so many after it
_NAMED = 3  # moods, and themes
_LEADS = ("{r} mostly likes films that are {0}, then {1}, and sometimes {2}.",
          "What draws this viewer is above all {0}; after that come {1} and {2}.")
_THEMES = ("The favourite subjects are {0}, {1} and {2}.",
           "The stories are about {0}, often {1}, and also {2}.")
DAY_S = 86_400
VISITS = {"daily": 0.85, "weekly": 1 / 7, "rarely": 1 / 21}  # probability of a visit on a day
MOVES = ("stays", "drifts", "jumps")
_SHARE_OF_VISITS = (0.40, 0.45, 0.15)
_SHARE_OF_MOVES = (0.30, 0.30, 0.40)
_SHOWN = (5, 9, 9)  # items shown on a visit, mean, by kind of visits
_FAVOURITES = 3  # moods, and as many themes
_DRIFT_DAYS = 20  # until a drifting interest has reached the next one
_JUMP = 1 / 30  # probability per day
_SHOW, _CLICK = 1.2, 6.0  # log-odds per matching taste of showing, and of clicking, an item
_CLICK_BIAS = -3.5


@dataclass(frozen=True)
class Visitors:
    """U users, their attributes, how often they come (index into VISITS) and how interests move (MOVES)."""

    attributes: tuple[dict[str, str], ...]
    visits: np.ndarray  # (U,) int
    moves: np.ndarray  # (U,) int


@dataclass(frozen=True)
class Shown:
    """N items shown, in order of time. ``second`` counts from the first midnight."""

    user: np.ndarray  # (N,) int64
    item: np.ndarray  # (N,) int64
    second: np.ndarray  # (N,) int64
    click: np.ndarray  # (N,) bool
    chance: np.ndarray  # (N,) float64: of the click

    @property
    def day(self) -> np.ndarray:
        """(N,) day, from 0."""
        return self.second // DAY_S


@dataclass(frozen=True)
class DailyWorld:
    """Items, users and what they were shown on ``days`` days."""

    catalogue: Catalogue
    users: Visitors
    shown: Shown
    days: int


def simulate_daily(users: int, items: int, days: int, seed: int) -> DailyWorld:
    """Simulate ``days`` days reproducibly.

    Items are shown by popularity and, weakly, by interest; a click depends on interest and quality. An
    interest is a preference for three moods and three themes, which are in titles and in no attribute.
    """
    rng = np.random.default_rng(seed)
    catalogue = catalogues.make_catalogue(items, 2, rng)
    visitors = Visitors(attributes_of(rng.integers(len(catalogues.OCCUPATIONS), size=users), rng),
                      rng.choice(len(VISITS), users, p=_SHARE_OF_VISITS),
                      rng.choice(len(MOVES), users, p=_SHARE_OF_MOVES))
    mood, theme = (_Interest(visitors.moves, size, rng) for size in (len(MOODS), len(THEMES)))
    visit_probability = np.array(list(VISITS.values()))[visitors.visits]
    parts = []
    for day in range(days):
        here = np.flatnonzero(rng.random(users) < visit_probability)
        # (H, I): how far each item matches each visitor's interests
        liking = (mood.today()[here][:, catalogue.mood] + theme.today()[here][:, catalogue.theme]) / 2
        parts.append(_visits(day, here, liking, catalogue, np.array(_SHOWN)[visitors.visits[here]], rng))
        for interest in (mood, theme):
            interest.end_day(rng)
    shown = Shown(*(np.concatenate(part) for part in zip(*parts, strict=True)))
    return DailyWorld(catalogue, visitors, shown, days)


class _Interest:
    """Preferences (0 to 1) of each user for the values of one property, which move from day to day."""

    def __init__(self, moves: np.ndarray, size: int, rng: np.random.Generator):
        self._moves, self._size = moves, size
        self._now = self._favourites(len(moves), rng)
        self._next = self._favourites(len(moves), rng)
        self._phase = rng.integers(_DRIFT_DAYS, size=len(moves)) * (moves == 1)  # days on the way

    def today(self) -> np.ndarray:
        """(U, size): those who drift are on the way to their next favourites."""
        share = (self._phase / _DRIFT_DAYS)[:, None]
        return (1 - share) * self._now + share * self._next

    def end_day(self, rng: np.random.Generator) -> None:
        """Move on: some interests jump, and those that have drifted to their next favourites get others."""
        jumped = (self._moves == 2) & (rng.random(len(self._moves)) < _JUMP)
        self._phase = (self._phase + (self._moves == 1)) % _DRIFT_DAYS
        arrived = (self._moves == 1) & (self._phase == 0)
        self._now[arrived] = self._next[arrived]
        for rows, favourites in ((arrived, self._next), (jumped, self._now)):
            favourites[rows] = self._favourites(int(rows.sum()), rng)

    def _favourites(self, users: int, rng: np.random.Generator) -> np.ndarray:
        chosen = np.argsort(rng.random((users, self._size)), axis=1)[:, :_FAVOURITES]
        taste = np.zeros((users, self._size))
        np.put_along_axis(taste, chosen, 1.0, axis=1)
        return taste


def _visits(day: int, here: np.ndarray, liking: np.ndarray, catalogue: Catalogue, mean_shown: np.ndarray,
            rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """(user, item, second, click, chance) of a day's H visitors; no item twice in a visit."""
    count = np.minimum(1 + rng.poisson(mean_shown - 1), len(catalogue.titles))
    score = np.log(catalogue.popularity) + _SHOW * liking + rng.gumbel(size=liking.shape)
    order = np.argsort(-score, axis=1)
    row = np.repeat(np.arange(len(here)), count)
    item = order[row, np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)]
    odds = _CLICK_BIAS + _CLICK * liking[row, item] + catalogue.quality[item]
    chance = 1 / (1 + np.exp(-odds))
    click = rng.random(len(row)) < chance
    second = day * DAY_S + np.sort(rng.integers(DAY_S, size=len(row)))
    mixed = rng.permutation(len(row))  # visits of a day overlap
    return here[row][mixed], item[mixed], second, click[mixed], chance[mixed]


def profile_of_interests(attributes: Mapping[str, str], titles: Sequence[str]) -> str:
    """A profile by the prevailing moods and themes of ``titles`` (newest first, at least one).

    Raises
    ------
    KeyError, ValueError
        An attribute or title is not from the synthetic data set.
    """
    facts = [title_facts(title) for title in titles]
    moods = prevailing([mood for mood, _ in facts])
    themes = prevailing([theme for _, theme in facts])
    variant = AGES.index(attributes["age"]) % 2
    viewer = f"This {attributes['occupation']}"
    lead = _LEADS[variant].format(*_three([phrases.MOOD[mood][2 * variant] for mood in moods]), r=viewer)
    subjects = _THEMES[variant].format(*_three([phrases.THEME[theme][2 * variant] for theme in themes]))
    closing = phrases.AGE[attributes["age"]][1].format(
        m=moods[0], h=themes[0], r=viewer, o=phrases.PRONOUNS[attributes["gender"]][1])
    return f"{lead} {subjects} The newest choice is {titles[0]}. {closing}"


def prevailing(values: Sequence[str], count: int = _NAMED) -> list[str]:
    """Up to ``count`` most frequent of ``values``, newest first; newer ones count more."""
    weight: dict[str, float] = {}
    for place, value in enumerate(values):
        weight[value] = weight.get(value, 0.0) + 0.5 ** (place / _HALF)
    return sorted(weight, key=weight.__getitem__, reverse=True)[:count]


def _three(words: Sequence[str]) -> list[str]:
    return [words[min(place, len(words) - 1)] for place in range(_NAMED)]


def profile_of_values(titles: Sequence[str], values: Sequence[str], named: int = _NAMED) -> str:
    """A profile of a user of any data set, as a function of titles and one value of each, such as its genre.

    ``titles`` and ``values`` are of the history, newest first; empty values do not count.
    """
    favourites = prevailing([value for value in values if value])
    liked = f"This person mostly chooses {', then '.join(favourites)}. " if favourites else ""
    return f"{liked}The newest choices are {'; '.join(titles[:named])}."
