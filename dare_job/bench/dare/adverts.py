"""What the models of the bench learn to write about an advertisement: a grammar of its own.

Of titles from outside the sample world it has nothing to say but what a description says.
"""

from collections.abc import Mapping

from dare_job.data.world import phrases
from dare_job.data.world.grammar import description
from dare_job.data.world.words import GENRES, facts

_AUDIENCE = "{a} People who look for {m} films are the first to address."
_ADVANTAGE = (
    "Other {g} titles rarely offer {h0}.",
    "Its advantage over other {g} titles is {h1}.",
)
_ENDING = "A good slogan would promise {h} and stay {m}."


def analysis(title: str, attributes: Mapping[str, str]) -> str:
    """Characteristics, audience and advantages of a sample-world item. Raises KeyError for others."""
    mood, theme = facts(title)
    genre = attributes["genre"]
    values = {"g": genre, "m": mood, "h": theme, "a": phrases.AUDIENCE[genre],
              "h0": phrases.THEME[theme][0], "h1": phrases.THEME[theme][1]}
    advantage = _ADVANTAGE[GENRES.index(genre) % len(_ADVANTAGE)]
    more = " ".join(form.format(**values) for form in (_AUDIENCE, advantage, _ENDING))
    return f"{_characteristics(title, attributes)} {more}"


def _characteristics(title: str, attributes: Mapping[str, str]) -> str:
    """What a description opens with."""
    return description(title, attributes).split(phrases.AUDIENCE[attributes["genre"]])[0].strip()
