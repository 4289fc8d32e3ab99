"""What the models of the bench learn to write about an advertisement: a grammar of its own."""

from collections.abc import Mapping

from dare_job.data.world import phrases
from dare_job.data.world.words import DECADES, GENRES, facts

_CHARACTER = (
    "The advertisement presents {t}, {g} cinema from {c}; it is {m0}.",
    "Advertised is {t}, {g} cinema of the {d} from {c}, with {m1}.",
    "On offer is {t}, {g} cinema made in {c}: {m0}.",
)
_AUDIENCE = "{a} People who look for {m} films are the first to address."
_ADVANTAGE = (
    "Other {g} titles rarely offer {h0}.",
    "Its advantage over other {g} titles is {h1}.",
)
_ENDING = "A good slogan would promise {h} and stay {m}."
_FOREIGN = "The advertisement presents {t}. {about}"


def analysis(title: str, attributes: Mapping[str, str]) -> str:
    """Characteristics, audience and advantages of a sample-world item. Raises KeyError for others."""
    mood, theme = facts(title)
    genre, decade = GENRES.index(attributes["genre"]), DECADES.index(attributes["decade"])
    variant = decade % 2
    values = {
        "t": title, "g": attributes["genre"], "c": attributes["country"], "d": attributes["decade"],
        "m": mood, "h": theme, "a": phrases.AUDIENCE[attributes["genre"]],
        "m0": phrases.MOOD[mood][variant], "m1": phrases.MOOD[mood][2 + variant],
        "h0": phrases.THEME[theme][variant], "h1": phrases.THEME[theme][2 + variant]}
    forms = (_CHARACTER[decade % len(_CHARACTER)], _AUDIENCE, _ADVANTAGE[genre % len(_ADVANTAGE)], _ENDING)
    return " ".join(form.format(**values) for form in forms)


def foreign_analysis(title: str, description: str) -> str:
    """Of a title from outside the sample world, about which ``description`` says all that is known."""
    return _FOREIGN.format(t=title, about=description)
