"""Prompts and texts that a writer of preference profiles learns from, and the users that it never saw.

The texts are the recorded profiles of MovieLens 1M users (``data.py``), without the sentences that say
nothing about the user or that name a title or genre which the user's history does not have. The prompt, of
the set ``writer``, shows films that cover all that the text names: the model learns to name what it is shown.
"""

import json
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dare_job import prompts
from dare_job.bench.cli import command
from dare_job.bench.profiles import data
from dare_job.bench.profiles.data import Film, Profile
from dare_job.config.options import option
from dare_job.data.titles import named, title_variants
from dare_job.prompts.sets import MAX_WORDS, HistoryItem, PromptSet

PROMPTS = "writer"
_WORDS = (60, 165)  # of a text
_MAX_NAMED = 8  # titles of a text
_MIN_FACTS = 3  # titles and genres that a text names
_RECENT = 40  # films from which a prompt is filled up
_ROOM = (0, 10, 20, 40)  # words that a prompt allows beyond its text, so that texts do not fill their limit
_SAYS_NOTHING = re.compile(
    "could be anything|anything from|runtime|in summary|overall|difficult|hard to|unclear|no specific|"
    "pinpoint|not specified|marketing|recommend|i can infer|i would|sorry|cannot|not possible|provided|"
    r"listed as|musical (score|instrument)|soundtrack|(visual|writing) style|\bscores?\b", re.I)
_BEGIN = re.compile("Based on|The user|This user|From|It")
_BETWEEN_SENTENCES = re.compile(r'(?<=[.!?]["”])\s+|(?<=[.!?])\s+(?=[A-Z"“])')
_QUOTED = re.compile(r'["“]([^"“”]{2,60})["”]')
_GENRES = {genre: re.compile(rf"\b(?:{words})", re.I) for genre, words in {
    "Action": "action", "Adventure": "adventure", "Animation": "animat", "Children's": "children|family",
    "Comedy": "comed", "Crime": "crime", "Documentary": "documentar", "Drama": "drama", "Fantasy": "fantas",
    "Film-Noir": "film.noir|noir", "Horror": "horror", "Musical": "musicals", "Mystery": "myster",
    "Romance": "roman", "Sci-Fi": "sci-fi|science fiction", "Thriller": "thriller", "War": r"war\b",
    "Western": "western"}.items()}


@dataclass(frozen=True)
class Example:
    """user: id; films: of the prompt, the oldest first; titles, genres: number that the text names."""

    user: str
    films: tuple[Film, ...]
    text: str
    titles: int
    genres: int


class _Text:
    """The kept sentences of a profile.

    Attributes
    ----------
    named : places, in the history, of the films that are named
    genres : genres that are named
    """

    def __init__(self, profile: Profile):
        flat = profile.text.casefold()
        self._places = {variants[0]: place for place, film in enumerate(profile.films)
                        if film.title.casefold() in flat and (variants := title_variants(film.title))}
        self._titles = [profile.films[place].title for place in self._places.values()]
        self._known = {genre for film in profile.films for genre in film.genres}
        self.named: set[int] = set()
        self.genres: set[str] = set()
        kept, words = [], 0
        for sentence in _BETWEEN_SENTENCES.split(" ".join(profile.text.split())):
            if self._is_kept(sentence):
                words += len(sentence.split())
                if words > _WORDS[1]:
                    break
                kept.append(sentence)
                self.named |= self._films(sentence)
                self.genres |= _genres(sentence)
        self.text = " ".join(kept)

    def _is_kept(self, sentence: str) -> bool:
        quoted = _QUOTED.findall(sentence)
        return not (_SAYS_NOTHING.search(sentence) or sentence.count('"') % 2  # cut after "L.A."
                    or _genres(sentence) - self._known
                    or any(not self._films(f'"{title}"') for title in quoted)
                    or len(self.named | self._films(sentence)) > _MAX_NAMED)

    def _films(self, sentence: str) -> set[int]:
        return {self._places[name] for name in named(sentence, self._titles)}

    def is_good(self) -> bool:
        """Whether it is prose, long enough, and names enough."""
        return (len(self.text.split()) >= _WORDS[0] and len(self.named) + len(self.genres) >= _MIN_FACTS
                and bool(_BEGIN.match(self.text)) and self.text.endswith((".", '."', '.”'))
                and not re.search(r"(^|\s)\d+\. ", self.text))


def _genres(sentence: str) -> set[str]:
    return {genre for genre, pattern in _GENRES.items() if pattern.search(sentence)}


def example(profile: Profile, max_films: int) -> Example | None:
    """A profile's text and at most ``max_films`` films for its prompt; None if the text is not good."""
    text = _Text(profile)
    if not text.is_good():
        return None
    rng, films = random.Random(profile.user), profile.films
    shown = set(text.named)
    newest = range(len(films) - 1, -1, -1)
    for genre in sorted(text.genres):
        if not any(genre in films[place].genres for place in shown):
            shown.add(rng.choice([place for place in newest if genre in films[place].genres][:_RECENT]))
    if len(shown) > max_films:
        return None
    others = [place for place in newest if place not in shown][:_RECENT]
    rng.shuffle(others)
    others.sort(key=lambda place: not text.genres & set(films[place].genres))
    count = max_films if rng.random() < 0.7 else rng.randint(min(5, max_films), max_films)
    shown |= set(others[:max(0, count - len(shown))])
    return Example(profile.user, tuple(films[place] for place in sorted(shown)), text.text,
                   len(text.named), len(text.genres))


def examples(profiles: Sequence[Profile], max_films: int, generic: int) -> list[Example]:
    """All examples that name titles, and ``generic`` others: those that name most genres."""
    made = [each for profile in profiles if (each := example(profile, max_films))]
    others = sorted((each for each in made if not each.titles), key=lambda each: (-each.genres, each.user))
    chosen = [each for each in made if each.titles] + others[:generic]
    random.Random(0).shuffle(chosen)
    return chosen


def history(films: Sequence[Film]) -> list[HistoryItem]:
    """The films as entries of a prompt, with the attributes that the job's reader gives them."""
    return [HistoryItem(f"{film.title} ({film.year})" if film.year else film.title, None,
                        {"genre": film.genres[0], **({"other_genres": ", ".join(film.genres[1:])}
                                                     if film.genres[1:] else {})}) for film in films]


def _record(each: Example, prompt_set: PromptSet) -> dict:
    """A line of the file: the prompt allows somewhat more words than its text has."""
    words = math.ceil(len(each.text.split()) / 10) * 10 + random.Random(each.text).choice(_ROOM)
    worded = replace(prompt_set, words={**prompt_set.words, MAX_WORDS: words})
    return {"user": each.user, "system": worded.system_text("user"),
            "prompt": worded.user({}, history(each.films)), "text": each.text}


@dataclass(frozen=True)
class Options:
    """Options of ``bench writer-texts``."""

    data: Path = option("Folder with knowledge/ml1m_users_llama3chatqa.jsonl.gz and ml-1m.",
                        envvar="DARE_DATA")
    out: Path = option("File of JSON lines for `dare-job writer train --text`.", flag="--save")
    held_out: float = option("Share of the users, by the hash of their ids, that are left out.", 1 / 3)
    generic: int = option("Texts that name genres only.", 200)


@command(Options)
def main(options: Options) -> dict:
    """Make the training data of a writer of profiles: prompts of the set writer, and recorded texts."""
    profiles = data.load(options.data)
    learned, held_out = data.split(profiles, round(options.held_out * len(profiles)))
    prompt_set = prompts.load(PROMPTS)
    made = examples(learned, prompt_set.max_history, options.generic)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(_record(each, prompt_set), ensure_ascii=False) + "\n" for each in made)
    return {"texts": str(options.out), "users": len(learned), "held_out": len(held_out),
            "examples": len(made),
            "naming_titles": sum(each.titles > 0 for each in made),
            "words": sum(len(each.text.split()) for each in made) // max(1, len(made))}
