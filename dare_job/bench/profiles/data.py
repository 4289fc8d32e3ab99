"""Profiles of MovieLens 1M users and the titles that they rated: prompts of an earlier and a later date.

Files below the data's folder:

    knowledge/ml1m_users_llama3chatqa.jsonl.gz  ``user`` (MovieLens id - 1) and ``plain``, the profile
    ml-1m/sequences_full.txt.gz                 ``user item item ...`` in time order, both renumbered
    ml-1m/user_list.txt, item_list.txt          ``org_id remap_id ...``: from these numbers to MovieLens' ids
    ml-1m/movies.dat                            ``id::title (year)::genres``, Latin-1
"""

import gzip
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dare_job.data.recorded_texts import held_out, read
from dare_job.data.titles import natural_order
from dare_job.errors import ConfigError, DataError

PROFILES = "knowledge/ml1m_users_llama3chatqa.jsonl.gz"
TITLES = 12  # of a prompt
LATER = 3  # interactions between the earlier date's prompt and the later one's


@dataclass(frozen=True)
class Film:
    """A film of MovieLens.

    Attributes
    ----------
    id
        MovieLens id.
    title
        In natural order, without the year in parentheses.
    year
        Empty if unknown.
    """

    id: str
    title: str
    year: str
    genres: tuple[str, ...]


@dataclass(frozen=True)
class Profile:
    """A recorded profile.

    Attributes
    ----------
    user
        Id in the profile file.
    films
        The user's history, oldest first.
    """

    user: str
    text: str
    films: tuple[Film, ...]

    @property
    def titles(self) -> tuple[str, ...]:
        """Titles of the history, without years."""
        return tuple(film.title for film in self.films)


def load(folder: Path) -> list[Profile]:
    """Users with a profile and more than ``LATER`` titles, in the profile file's order.

    Raises
    ------
    DataError
        A file is missing or damaged, or there is no such user. The message names the file.
    """
    table = read(folder / PROFILES, "plain", "user")
    histories = _histories(folder / "ml-1m")
    profiles = [Profile(user, text.strip(), histories[user]) for user, text in
                zip(table.ids, table.texts, strict=True) if len(histories.get(user, ())) > LATER]
    if not profiles:
        raise DataError(f"{folder}: no profile in {PROFILES} belongs to a user of "
                        "ml-1m/sequences_full.txt.gz; its ids must be those of user_list.txt less 1")
    return profiles


def split(profiles: Sequence[Profile], test: int) -> tuple[list[Profile], list[Profile]]:
    """Training users, and the ``test`` users whose ids have the smallest SHA-256.

    Raises
    ------
    ConfigError
        ``test`` is below 1, or no user would be left to train on.
    """
    if not 0 < test < len(profiles):
        raise ConfigError(f"{test} test users must be above 0 and below {len(profiles)}, the users with a "
                          "profile")
    left_out = held_out([profile.user for profile in profiles], test)
    return ([profile for profile, out in zip(profiles, left_out, strict=True) if not out],
            [profile for profile, out in zip(profiles, left_out, strict=True) if out])


def prompt(titles: Sequence[str]) -> str:
    """The prompt for a profile: the last ``TITLES`` of these titles, the oldest first."""
    return "Movies: " + "; ".join(titles[-TITLES:]) + "\nProfile:\n"


def later(profile: Profile) -> str:
    """The later date's prompt: the end of the user's history."""
    return prompt(profile.titles)


def earlier(profile: Profile) -> str:
    """The prompt ``LATER`` interactions before."""
    return prompt(profile.titles[:-LATER])


def _histories(folder: Path) -> dict[str, tuple[Film, ...]]:
    """Films by the profile file's user id."""
    films = _films(folder / "movies.dat")
    users, items = (_numbers(folder / f"{kind}_list.txt") for kind in ("user", "item"))
    histories = {}
    for number, line in enumerate(_lines(folder / "sequences_full.txt.gz", "utf-8"), 1):
        try:
            user, *history = line.split()
            histories[str(int(users[user]) - 1)] = tuple(films[items[item]] for item in history)
        except (KeyError, ValueError) as error:
            raise DataError(f"{folder}/sequences_full.txt.gz, line {number}: {error} is not in the lists "
                            "beside it or in movies.dat") from None
    return histories


def _films(path: Path) -> dict[str, Film]:
    """Films by MovieLens id."""
    films = {}
    for number, line in enumerate(_lines(path, "latin-1"), 1):
        parts = line.rstrip("\n").split("::")
        if len(parts) != 3:
            raise DataError(f"{path}, line {number}: {line.strip()!r} is not id::title::genres")
        title, year = re.fullmatch(r"(.*?)(?: \((\d{4})\))?", natural_order(parts[1])).groups("")
        films[parts[0]] = Film(parts[0], title, year, tuple(parts[2].split("|")))
    return films


def _numbers(path: Path) -> dict[str, str]:
    """MovieLens ids by renumbered ones."""
    rows = [line.split(maxsplit=2) for line in _lines(path, "utf-8")][1:]
    if any(len(row) < 2 for row in rows):
        raise DataError(f"{path}: every line must begin with org_id and remap_id")
    return {row[1]: row[0] for row in rows}


def _lines(path: Path, encoding: str) -> list[str]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding=encoding) as file:
            return [line for line in file if line.strip()]
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
