"""Prompts from outside the synthetic data set and target texts for them, to train the embedded model.

Titles and attribute values are made-up words, so a model can only predict the text by copying them from the
prompt. A model trained on them also names the right titles of a real data set. The texts state that mood and
theme are unknown.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from dare_job.data.sample_world import phrases
from dare_job.data.sample_world.simulate import Example
from dare_job.prompts.sets import HistoryItem, PromptSet

_ONSETS = (
    "b", "bl", "br", "c", "ch", "cl", "cr", "d", "dr", "f", "fl", "fr", "g", "gr", "h", "j", "k", "l",
    "m", "n", "p", "pl", "pr", "qu", "r", "s", "sc", "sh", "sl", "sp", "st", "t", "th", "tr", "v", "w",
    "y", "z", "",
)
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "ee", "ie", "oo", "ou", "y")
_CODAS = (
    "b", "ck", "d", "ff", "g", "l", "ll", "m", "n", "nd", "ng", "nt", "p", "r", "rd", "rs", "s", "ss",
    "st", "t", "th", "x", "", "", "",
)
_SMALL = ("of", "the", "and", "in", "to", "for", "a", "on", "at", "&")
_MAX_WORDS = 6
_NAMED_NEWEST = len(phrases.FOREIGN_VOICE)


def foreign_examples(count: int, prompts: PromptSet, rng: np.random.Generator) -> Iterator[Example]:
    """``count`` profiles and half as many descriptions, with titles from outside the synthetic data set."""
    for row in range(count):
        titles = [_title(rng) for _ in range(int(rng.integers(1, prompts.max_history + 1)))]
        attributes = _some(rng, gender=("female", "male")[rng.integers(2)], occupation=_words(rng, 3),
                           age=f"{rng.integers(18, 60)}-{_word(rng)}")
        shown = tuple(titles[::-1])
        prompt = prompts.user(attributes, [_event(title, row) for title in titles])
        yield Example("user", row, prompt, foreign_profile(shown), shown)
    for row in range(count // 2):
        title, genre = _title(rng), _words(rng, 2) if rng.random() < 0.9 else None
        attributes = _some(rng, year=str(_year(rng)))
        if genre:
            attributes |= {"genre": genre} | _some(rng, genres=f"{genre}, {_words(rng, 2)}")
        text = foreign_description(title, genre)
        yield Example("item", row, prompts.item(title, attributes), text, (title,))


def foreign_profile(titles: Sequence[str]) -> str:
    """A profile that names the newest titles in order and the oldest one. ``titles``: newest first."""
    sentences = [form.format(t=title) for form, title in zip(phrases.FOREIGN_VOICE, titles, strict=False)]
    if len(titles) > _NAMED_NEWEST:
        sentences.append(phrases.FOREIGN_OLDEST.format(t=titles[-1]))
    return " ".join([*sentences, phrases.FOREIGN_USER_ENDING])


def foreign_description(title: str, genre: str | None) -> str:
    """A description that repeats the title and the genre, if any."""
    opening = phrases.FOREIGN_GENRE if genre else phrases.FOREIGN_PLAIN
    return f"{opening.format(t=title, g=genre)} {phrases.FOREIGN_ITEM_ENDING}"


def _event(title: str, row: int) -> HistoryItem:
    """An event, with rating and genre for every other user. Does not advance the random generator."""
    if row % 2:
        return HistoryItem(title)
    return HistoryItem(title, float(1 + len(title) % 5), {"genre": title.split()[0]})


def _title(rng: np.random.Generator) -> str:
    """One to six words, with numbers, trailing articles and years as in real catalogues."""
    title = _words(rng, _MAX_WORDS)
    if rng.random() < 0.15:
        title += f" {rng.integers(2, 200)}"
    if rng.random() < 0.15:
        title += f": {_words(rng, 3)}"
    if rng.random() < 0.2:
        title += ", " + ("The", "A", "An", "Les")[rng.choice(4, p=(0.7, 0.2, 0.05, 0.05))]
    return title + (f" ({_year(rng)})" if rng.random() < 0.8 else "")


def _words(rng: np.random.Generator, max_words: int) -> str:
    words = [_word(rng).capitalize()]
    for _ in range(int(rng.integers(max_words))):
        words.append(_SMALL[rng.integers(len(_SMALL))] if rng.random() < 0.25 else _word(rng).capitalize())
    return " ".join(words)


def _word(rng: np.random.Generator) -> str:
    parts = [_ONSETS[rng.integers(len(_ONSETS))] + _VOWELS[rng.integers(len(_VOWELS))]
             for _ in range(1 + int(rng.integers(3)))]
    word = "".join(parts) + _CODAS[rng.integers(len(_CODAS))]
    draw = rng.random()
    return f"{word}'s" if draw < 0.05 else f"{word}-{word[::-1]}" if draw < 0.08 else word


def _year(rng: np.random.Generator) -> int:
    return int(rng.integers(1920, 2026))


def _some(rng: np.random.Generator, **values: str) -> dict[str, str]:
    """All values or none, with probability 1/2."""
    return values if rng.random() < 0.5 else {}
