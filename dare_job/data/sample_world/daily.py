"""Simulates a service that people open daily or weekly, to compare policies of which texts to write again.

Unlike the sample data set, users have many active days, and their interests stay, drift or jump. How often a
user comes and how the user's interest moves are independent, so the users with the most new interactions are
not those whose texts are wrong.
"""

from dataclasses import dataclass

import numpy as np

from dare_job.data.sample_world import catalogue as catalogues
from dare_job.data.sample_world.catalogue import MOODS, THEMES, Catalogue
from dare_job.data.sample_world.simulate import attributes_of

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
    people = Visitors(attributes_of(rng.integers(len(catalogues.OCCUPATIONS), size=users), rng),
                      rng.choice(len(VISITS), users, p=_SHARE_OF_VISITS),
                      rng.choice(len(MOVES), users, p=_SHARE_OF_MOVES))
    mood, theme = (_Interest(people.moves, size, rng) for size in (len(MOODS), len(THEMES)))
    chance = np.array(list(VISITS.values()))[people.visits]
    parts = []
    for day in range(days):
        here = np.flatnonzero(rng.random(users) < chance)
        # (H, I): how far each item matches each visitor's interests
        liking = (mood.today()[here][:, catalogue.mood] + theme.today()[here][:, catalogue.theme]) / 2
        parts.append(_visits(day, here, liking, catalogue, np.array(_SHOWN)[people.visits[here]], rng))
        for interest in (mood, theme):
            interest.end_day(rng)
    return DailyWorld(catalogue, people, Shown(*(np.concatenate(part) for part in zip(*parts, strict=True))),
                      days)


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
    """(user, item, second, click) of a day's H visitors; no item twice in a visit."""
    count = np.minimum(1 + rng.poisson(mean_shown - 1), len(catalogue.titles))
    score = np.log(catalogue.popularity) + _SHOW * liking + rng.gumbel(size=liking.shape)
    order = np.argsort(-score, axis=1)
    row = np.repeat(np.arange(len(here)), count)
    item = order[row, np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)]
    odds = _CLICK_BIAS + _CLICK * liking[row, item] + catalogue.quality[item]
    click = rng.random(len(row)) < 1 / (1 + np.exp(-odds))
    second = day * DAY_S + np.sort(rng.integers(DAY_S, size=len(row)))
    mixed = rng.permutation(len(row))  # visits of a day overlap
    return here[row][mixed], item[mixed], second, click[mixed]
