"""Texts of the synthetic data set: profiles and descriptions as a pure function of the prompt's content.

The functions are deterministic. Attributes determine the wording; titles and their mood and theme determine
the content. So a model can learn to predict every token.
"""

from collections.abc import Mapping, Sequence

from dare_job.data.sample_world import phrases
from dare_job.data.sample_world.catalogue import AGES, COUNTRIES, GENRES, OCCUPATIONS, title_facts

NAMED_NEWEST = 5


def profile(attributes: Mapping[str, str], titles: Sequence[str]) -> str:
    """A user's profile in 110 to 160 tokens of the embedded tokenizer (fewer below five titles).

    ``titles`` are those in the prompt, newest first, at least one. The profile names the newest five in order
    and the oldest.

    Raises
    ------
    KeyError, ValueError
        An attribute or title that the profile uses is not from the synthetic data set.
    """
    occupation = OCCUPATIONS.index(attributes["occupation"])
    subject, object_ = phrases.PRONOUNS[attributes["gender"]]
    opening, closing = phrases.AGE[attributes["age"]]
    newest_mood, newest_theme = title_facts(titles[0])
    viewer = {"r": f"This {attributes['occupation']}", "o": object_, "p": subject, "P": subject.capitalize()}
    variant = AGES.index(attributes["age"]) % 2
    sentences = [opening.format(m=newest_mood, **viewer)]
    for template, title in zip(phrases.VOICES[occupation % len(phrases.VOICES)], titles, strict=False):
        sentences.append(_about(template, title, variant, viewer))
    if len(titles) > NAMED_NEWEST:
        template = phrases.OLDEST[occupation // len(phrases.VOICES) % len(phrases.OLDEST)]
        sentences.append(_about(template, titles[-1], variant, viewer))
    second_mood = title_facts(titles[min(1, len(titles) - 1)])[0]
    sentences.append(closing.format(m=second_mood, h=newest_theme, **viewer))
    return " ".join(sentences)


def description(title: str, attributes: Mapping[str, str]) -> str:
    """An item's description, 50 to 70 tokens.

    Raises
    ------
    KeyError, ValueError
        An attribute or the title is not from the synthetic data set.
    """
    genre = attributes["genre"]
    values = {"c": attributes["country"], "d": attributes["decade"], "g": genre,
              "a": "an" if genre[0] in "aeiou" else "a"}
    theme = phrases.ITEM_THEME[COUNTRIES.index(attributes["country"]) % len(phrases.ITEM_THEME)]
    variant = GENRES.index(genre) % 2
    mood_name, theme_name = title_facts(title)
    return " ".join((
        _about(phrases.ITEM_OPENING[attributes["decade"]], title, variant, values),
        _about(theme, title, variant, values),
        phrases.AUDIENCE[genre],
        phrases.ITEM_CLOSING.format(m=mood_name, h=theme_name),
    ))


def _about(template: str, title: str, variant: int, values: Mapping[str, str]) -> str:
    """Fill ``template`` for ``title``. ``variant`` (0 or 1) selects the wording of mood and theme."""
    mood_name, theme_name = title_facts(title)
    mood, theme = phrases.MOOD[mood_name], phrases.THEME[theme_name]
    text = template.format(t=title, m0=mood[variant], m1=mood[2 + variant], h0=theme[variant],
                           h1=theme[2 + variant], **values)
    return text[0].upper() + text[1:]
