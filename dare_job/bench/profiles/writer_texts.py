"""Prompts and texts that a writer of preference profiles learns from, and the users that it never saw.

The recorded profiles of MovieLens 1M users (``data.py``) consist of few sentences that say something about
one user and many that fit everybody. A text to learn from is therefore put together, for each user, from the
recorded sentences that are true of that user:

- a sentence on genres opens the text if its genres are the most frequent of the films that the prompt shows;
- a sentence that names films follows if the prompt shows all of them; each text has one sentence on plots,
  one on settings and so on;
- a sentence that says of its films only that they have a genre serves for every genre and all its films.

The prompt, of the set ``writer``, shows films that cover all that the text names: the model learns to name
what it is shown.
"""

import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
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
_WORDS = (55, 140)  # of a text
_SENTENCES = (3, 3)  # of a text: at least, after its opening; at most, on films
_WITHOUT_GENRE = 0.2  # share of texts without a sentence on one genre's films
_TITLES = (4, 8)  # of a text
_RECENT = 40  # films from which a prompt is filled up
_ROOM = (0, 10, 20, 40)  # words that a prompt allows beyond its text, so that texts do not fill their limit
_SAYS_NOTHING = re.compile(
    "could be anything|anything from|runtime|in summary|overall|difficult|hard to|unclear|no specific|"
    "pinpoint|not specified|marketing|recommend|i can infer|i would|sorry|cannot|not possible|provided|"
    "listed as|musical|soundtrack|visual|writing style|scores?\\b|a mix|mixture|combination|divers|"
    "wide range|variety|broad|range of|variou|different|eclectic|varied|strong plot|real and|or fiction|"
    "director|production|also have|prompt|united states|considering|one of these|elements of|"
    "multi-layered|well-crafted|sequel|franchise|animated film|three of|"
    "prefer(ence for)? movies with complex plots", re.I)
_BEGIN = re.compile("The user|They|Their|This user|Additionally|In terms|Based on")
_OPENS = re.compile("(Based on|The user's favorite genre).*genre")
_CUT = re.compile(r"(\b(Mr|Mrs|Ms|Dr|St|vs)|[A-Z])\.$|^[^()]*\([^()]*$")  # it ended at an abbreviation
_NUMBER = re.compile(r"\s+\d+\.$")  # of the next point of a list
_BETWEEN_SENTENCES = re.compile(r'(?<=[.!?]["”])\s+|(?<=[.!?])\s+(?=[A-Z"“])')
_QUOTED = re.compile(r'["“]([^"“”]{2,60}?)([,.]?["”])')
_ASPECTS = {name: re.compile(words, re.I) for name, words in {
    "plot": "plot|stor(y|ies)|narrative|twist", "setting": "setting|set in|takes? place|locations?",
    "theme": "theme|issue|topic", "mood": "tone|mood|emotion|atmospher|humou?r|light-?hearted",
    "age": "classic|older|vintage|modern|recent"}.items()}
_GENRES = {genre: re.compile(rf"\b(?:{words})", re.I) for genre, words in {
    "Action": "action", "Adventure": "adventure", "Animation": "animat", "Children's": "children|family",
    "Comedy": "comed", "Crime": "crime", "Documentary": "documentar", "Drama": "drama", "Fantasy": "fantas",
    "Film-Noir": "film.noir|noir", "Horror": "horror", "Musical": "musicals", "Mystery": "myster",
    "Romance": "roman", "Sci-Fi": "sci-fi|science fiction", "Thriller": "thriller", "War": r"war\b",
    "Western": "western"}.items()}
_NOUNS = {"Action": "action", "Adventure": "adventure", "Comedy": "comedy", "Crime": "crime",
          "Drama": "drama", "Fantasy": "fantasy", "Film-Noir": "film noir", "Horror": "horror",
          "Mystery": "mystery", "Romance": "romance", "Sci-Fi": "science fiction", "Thriller": "suspense",
          "War": "war"}
_NOUN = re.compile(rf"\b(?:{'|'.join(_NOUNS.values())})\b(?!/)")


@dataclass(frozen=True)
class Sentence:
    """A recorded sentence about one user that can be true of others.

    text : with ``{genre}``, and ``{}`` for each title, if it serves for every genre
    aspect : what it is about, a key of ``_ASPECTS``; None for others
    genres : that it names, in its order
    titles : names of the films that it needs; empty for openings and for sentences that serve for every genre
    """

    text: str
    aspect: str | None
    genres: tuple[str, ...]
    titles: frozenset[str]

    @property
    def places(self) -> int:
        """Number of titles that are to be filled in."""
        return self.text.count("{}")


@dataclass(frozen=True)
class Example:
    """user: id; films: of the prompt, the oldest first; titles: number that the text names."""

    user: str
    films: tuple[Film, ...]
    text: str
    titles: int


def sentences(profiles: Sequence[Profile]) -> tuple[list[Sentence], list[Sentence]]:
    """Sentences on genres alone, and sentences that name films; each once, in order."""
    openings, others = {}, {}
    for profile in profiles:
        for sentence in _recorded(profile):
            kind = others if sentence.titles or sentence.places else openings
            kind.setdefault(sentence.text, sentence)
    return list(openings.values()), list(others.values())


def _recorded(profile: Profile) -> Iterator[Sentence]:
    """The sentences of a profile that say something which its own user's history bears out."""
    flat = profile.text.casefold()
    films = {title_variants(film.title)[0]: film for film in profile.films
             if film.title.casefold() in flat and title_variants(film.title)}
    for text in _BETWEEN_SENTENCES.split(" ".join(profile.text.split())):
        text = _NUMBER.sub("", text).replace("avourite", "avorite")
        if (not _BEGIN.match(text) or not text.endswith((".", '."', '.”')) or _SAYS_NOTHING.search(text)
                or _CUT.search(text) or text.count('"') % 2 or "{" in text or len(text.split()) > 45):
            continue
        names = named(text, [film.title for film in films.values()])
        if not _names_others(text, names):
            yield from _as_sentence(text, names, _genres(text), films)


def _names_others(text: str, names: Sequence[str]) -> bool:
    """Whether something else than these films has a name or stands in quotation marks."""
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(r"\b" + r"\W+(?:the |an? )?".join(map(re.escape, name.split())), "§§", text, flags=re.I)
    quoted = any(re.search(r"\w", title) for title, _ in _QUOTED.findall(text))
    return quoted or bool(re.search(r"(?<!^)\b[A-Z][a-z]", text.replace("The ", "the ").replace("A ", "a ")))


def _as_sentence(text: str, names: Sequence[str], genres: tuple[str, ...],
                 films: dict[str, Film]) -> Iterator[Sentence]:
    aspects = [name for name, pattern in _ASPECTS.items() if pattern.search(text)]
    aspect = aspects[0] if aspects else None
    if not names:
        if _OPENS.match(text) and 1 <= len(genres) <= 3:
            yield Sentence(text, aspect, genres, frozenset())
        return
    known = {genre for name in names for genre in films[name].genres}
    if "favorite genre" in text or not set(genres) <= known:
        return
    if (len(genres) == 1 and not aspects and len(_NOUN.findall(text)) == 1
          and len(_QUOTED.findall(text)) == len(names)
          and all(genres[0] in films[name].genres for name in names)):
        yield Sentence(_NOUN.sub("{genre}", _QUOTED.sub(r'"{}\2', text)), None, genres, frozenset())
    else:
        yield Sentence(text, aspect, genres, frozenset(names))


def _genres(sentence: str) -> tuple[str, ...]:
    found = {genre: match.start() for genre, pattern in _GENRES.items()
             if (match := pattern.search(sentence))}
    return tuple(sorted(found, key=found.__getitem__))


class _Composer:
    """Puts texts together; sentences that were used least come first.

    Parameters
    ----------
    max_films : films of a prompt
    """

    def __init__(self, profiles: Sequence[Profile], max_films: int):
        self._openings, others = sentences(profiles)
        self._by_genre = [each for each in others if each.places]
        self._by_films = [each for each in others if not each.places]
        self._max_films = max_films
        self._used: Counter[str] = Counter()

    def example(self, profile: Profile) -> Example | None:
        """A user's prompt and text; None if too few sentences are true of the user."""
        rng = random.Random(profile.user)
        genre, shown, texts = self._on_genre(profile, rng)
        used = self._on_films(profile, shown, rng)
        texts += [sentence.text for sentence in used]
        if not _SENTENCES[0] <= len(texts) or not _TITLES[0] <= len(shown) <= _TITLES[1]:
            return None
        films = self._films(profile, shown, rng)
        opening = self._opening(films, genre, rng)
        text = " ".join([opening.text, *texts]) if opening else ""
        if not _WORDS[0] <= len(text.split()) <= _WORDS[1]:
            return None
        self._used.update(sentence.text for sentence in (opening, *used))
        return Example(profile.user, films, text, len(shown))

    def _on_genre(self, profile: Profile, rng: random.Random) -> tuple[str, set[int], list[str]]:
        """A genre of recent films, places of some of these films, and a sentence that names them."""
        films = dict(list(enumerate(profile.films))[-_RECENT:])
        sentence = rng.choice(self._by_genre) if self._by_genre else None
        counts = Counter(genre for film in films.values() for genre in film.genres if genre in _NOUNS)
        genres = [genre for genre in counts.elements() if sentence and counts[genre] >= sentence.places]
        if not genres or rng.random() < _WITHOUT_GENRE:
            return "", set(), []
        genre = rng.choice(genres)
        places = rng.sample([place for place, film in films.items() if genre in film.genres], sentence.places)
        titles = [_name(films[place]) for place in places]
        return genre, set(places), [sentence.text.format(*titles, genre=_NOUNS[genre])]

    def _on_films(self, profile: Profile, shown: set[int], rng: random.Random) -> list[Sentence]:
        """Sentences, each of another aspect and other films, whose films' places are added to ``shown``."""
        places = {names[0]: place for place, film in enumerate(profile.films)
                  if (names := title_variants(film.title))}
        true = [sentence for sentence in self._by_films if sentence.titles <= places.keys()]
        chosen: list[Sentence] = []
        for sentence in sorted(true, key=lambda each: (self._used[each.text], rng.random())):
            films = {places[name] for name in sentence.titles}
            if (len(chosen) < _SENTENCES[1] and not shown & films and len(shown | films) <= _TITLES[1]
                    and sentence.aspect not in {other.aspect for other in chosen}):
                chosen.append(sentence)
                shown |= films
        return chosen

    def _films(self, profile: Profile, shown: set[int], rng: random.Random) -> tuple[Film, ...]:
        """These films and recent ones."""
        others = [place for place in range(len(profile.films)) if place not in shown][-_RECENT:]
        count = self._max_films if rng.random() < 0.7 else rng.randint(5, self._max_films)
        others = rng.sample(others, min(len(others), max(0, count - len(shown))))
        return tuple(profile.films[place] for place in sorted({*shown, *others}))

    def _opening(self, films: Sequence[Film], genre: str, rng: random.Random) -> Sentence | None:
        """An opening that names the most frequent genres of these films, the most frequent first."""
        counts = Counter(genre for film in films for genre in film.genres)

        def is_true(sentence: Sentence) -> bool:
            shares = [counts[each] for each in sentence.genres]
            others = [count for each, count in counts.items() if each not in sentence.genres]
            return (genre not in sentence.genres and shares == sorted(shares, reverse=True)
                    and shares[-1] >= max(2, *others, 2))

        true = [sentence for sentence in self._openings if is_true(sentence)]
        return min(true, key=lambda each: (self._used[each.text], rng.random()), default=None)


def _name(film: Film) -> str:
    return re.sub(r"(?<=\S) *\(.*\)", "", film.title)


def examples(profiles: Sequence[Profile], max_films: int, count: int) -> list[Example]:
    """At most ``count`` examples, of users in random order."""
    composer, made = _Composer(profiles, max_films), []
    for profile in random.Random(0).sample(list(profiles), len(profiles)):
        if len(made) < count and (each := composer.example(profile)):
            made.append(each)
    return made


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
    examples: int = option("Texts to make, each of another user.", 800)


@command(Options)
def main(options: Options) -> dict:
    """Make the training data of a writer of profiles: prompts of the set writer, and recorded texts."""
    profiles = data.load(options.data)
    learned, held_out = data.split(profiles, round(options.held_out * len(profiles)))
    prompt_set = prompts.load(PROMPTS)
    made = examples(learned, prompt_set.max_history, options.examples)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(_record(each, prompt_set), ensure_ascii=False) + "\n" for each in made)
    return {"texts": str(options.out), "users": len(learned), "held_out": len(held_out),
            "examples": len(made),
            "titles": round(sum(each.titles for each in made) / max(1, len(made)), 1),
            "words": sum(len(each.text.split()) for each in made) // max(1, len(made))}
