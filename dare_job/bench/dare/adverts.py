"""What the models of the bench learn to write of advertisements and whom they suit: a grammar of its own.

Of titles from outside the sample world it has nothing to say but what a description or a profile says.
"""

from collections.abc import Mapping, Sequence

from dare_job.data.world import phrases
from dare_job.data.world.grammar import description
from dare_job.data.world.words import GENRES, facts

_AUDIENCE = "{a} People who look for {m} films are the first to address."
_ADVANTAGE = (
    "Other {g} titles rarely offer {h0}.",
    "Its advantage over other {g} titles is {h1}.",
)
_ENDING = "A good slogan would promise {h} and stay {m}."
_VIEWER = "Advertisements for this {r} aged {a} should begin with {h}."
_SEEN = (
    "After {t} a slogan that is {m0} would be read to its end.",
    "{t} speaks for a picture of {h0}.",
    "Behind {t} stands a wish for {h1}.",
    "Like {t}, it may have {m1}.",
)
_OLDEST = "As early as {t} it was {h0}, so that much is safe to promise."
_FAREWELL = "What is {m} suits {o}; what is loud does not."


def analysis(title: str, attributes: Mapping[str, str]) -> str:
    """Characteristics, audience and advantages of a sample-world item. Raises KeyError for others."""
    mood, theme = facts(title)
    genre = attributes["genre"]
    values = {"g": genre, "m": mood, "h": theme, "a": phrases.AUDIENCE[genre],
              "h0": phrases.THEME[theme][0], "h1": phrases.THEME[theme][1]}
    advantage = _ADVANTAGE[GENRES.index(genre) % len(_ADVANTAGE)]
    more = " ".join(form.format(**values) for form in (_AUDIENCE, advantage, _ENDING))
    return f"{_characteristics(title, attributes)} {more}"


def advice(attributes: Mapping[str, str], titles: Sequence[str]) -> str:
    """What suits a sample-world viewer by the titles seen, newest first. Raises KeyError for others."""
    mood, theme = facts(titles[0])
    viewer = {"r": attributes["occupation"], "a": attributes["age"],
              "o": phrases.PRONOUNS[attributes["gender"]][1]}
    told = [*zip(_SEEN, titles, strict=False), *((_OLDEST, title) for title in titles[len(_SEEN):][-1:])]
    return " ".join((_VIEWER.format(h=theme, **viewer), *(_about(*one) for one in told),
                     _FAREWELL.format(m=mood, **viewer)))


def _about(form: str, title: str) -> str:
    mood_name, theme_name = facts(title)
    mood, theme = phrases.MOOD[mood_name], phrases.THEME[theme_name]
    return form.format(t=title, m0=mood[0], m1=mood[2], h0=theme[0], h1=theme[1])


def _characteristics(title: str, attributes: Mapping[str, str]) -> str:
    """What a description opens with."""
    return description(title, attributes).split(phrases.AUDIENCE[attributes["genre"]])[0].strip()
