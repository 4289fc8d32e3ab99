"""Texts that state what a whole history says: a stand-in, by rules, for an LLM's profile of a user.

``grammar.profile`` names single titles. These texts name the facts that prevail in the history, with the
newest title, as an LLM does that is asked for interests.
"""

from collections.abc import Mapping, Sequence

from dare_job.data.sample_world import phrases
from dare_job.data.sample_world.catalogue import AGES, title_facts

_HALF = 6  # an interaction counts half as much as the one so many after it
_NAMED = 3  # moods, and themes
_LEADS = ("{r} mostly likes films that are {0}, then {1}, and sometimes {2}.",
          "What draws this viewer is above all {0}; after that come {1} and {2}.")
_THEMES = ("The favourite subjects are {0}, {1} and {2}.",
           "The stories are about {0}, often {1}, and also {2}.")


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
