"""Prompts and texts that a writer of preference profiles learns from, and the users that it never saw.

The recorded profiles of MovieLens 1M users (``data.py``) consist of few sentences that say something about
one user and many that fit any user or are not true. A text to learn from is therefore put together, for each
user, from recorded sentences that the prompt bears out, so that the model learns to say what it is shown:

- a sentence on genres opens the text if it names the genre that most of the prompt's films have, or both if
  two are equal, and if "several" or "many", where it says so, is right; if three are equal, a sentence of
  ours says that none stands out. Another one says how many films have the frequent genres and are of the
  frequent decades, as the prompt does;
- the prompt groups films by the most frequent genres that they share, the largest group first, and writes the
  genres before the films. A sentence that names genres and then films that show them ("The user seems to
  enjoy ..., as evidenced by the inclusion of ...") serves for any group: it names its genres and its newest
  films, more of them for a large group. The films that are in no group come last, in prompt and text, and no
  genre is said of them. Each group has one sentence, so that no sentence says what another one said. Recorded
  sentences and shorter ones of ours take turns; a group's first genre decides which. A model writes the
  likeliest sentence, which would be the same one each time otherwise.

Genres and films stand in the same order in prompt and sentence, because a small model repeats what follows in
the prompt. Where the genres followed the films, it gave a film at the end of a group the genres of the next
one (6 of 20 texts that were read); where the prompt listed films one by one, it did not find a second film of
the same genre: of such claims 60 % were true. Nor does it count: where the prompt did not, three favourite
genres in ten were wrong.
"""

import json
import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dare_job import prompts
from dare_job.bench.cli import command
from dare_job.bench.profiles import data
from dare_job.bench.profiles.data import Film, Profile
from dare_job.config.options import option
from dare_job.data.titles import named, title_variants
from dare_job.prompts.sets import MAX_WORDS, HistoryItem, PromptSet

PROMPTS = "writer"
_MIN_TITLES = 3  # of a text
_TITLES, _TITLES_OF_MANY = 2, 3  # of a sentence, at most; the second if it speaks of ``_MANY`` films or more
_MANY, _FEW_GROUPS = 4, 2  # films of a group; groups of a prompt whose sentences name three titles
_MAX_WORDS = 140  # of a text
_MIN_FILMS = 4  # of a prompt
_GENRES_OF_A_GROUP = 2  # at most
_COUNTED, _MAX_COUNTED = 3, 4  # genres, without those that equal the last one, and with them
_SPARE_WORDS = (0, 10, 20, 40)  # that a prompt allows beyond its text, so that texts end before the limit
_NONE_LEADS = "No genre stands out among the user's favorite movies."
_FRAMES = (("For ", ", the user chose ", ""), ("A taste for ", " shows in ", ""),
           ("An interest in ", " can be seen in ", ""), ("In ", ", the user liked ", ""),
           ("As for ", ", they picked ", ""))  # as Sentences.frames
_ALL_OTHERS, _SOME_OTHERS = "They also liked ", "Other films they liked include "  # films of no group
_QUANTITIES = {"several": (0.25, 0.75), "many": (0.4, 0.99)}  # shares of the films, at least and at most
_OPENS = re.compile("(Based on|The user's favorite genre).*genre")
_SAYS_MORE = re.compile(
    "could be|anything|classic|detective|runtime|in summary|overall|hard to|unclear|specific|prompt|"
    "considering|one of these|elements|combination|a mix|range|variety|broad|director|sequel|franchise|"
    "both|plot|stor(y|ies)|"
    "narrative|twist|setting|set in|place|location|theme|issue|tone|mood|emotion|humou?r|music|visual|score|"
    "writing|craft|technique|three of|(romantic|crime|action|war) (comed|drama|thrill)|related|also|"
    "touch of|provoking|hollywood|-(comedy|drama)|animated [a-z]", re.I)
_SHOWS = re.compile(
    "(?P<before>(?:(?:Additionally, t|T)he user|They) (?:(?:also|seems?|appears?|to|may|enjoys?|prefers?"
    "|likes?|ha[sv]e?|a|fondness|liking|preference|for) )+)"
    "(?:(?:movies|films) with a (?:mix|blend|touch) of )?(?P<claim>[a-z-]+(?: fiction)?(?: and [a-z-]+)?)"
    '(?P<between>, (?:such as|as (?:evidenced|seen|shown|demonstrated) [a-z ]+?)(?<!favorites) )'
    r'"\{\}(?:(?:," "\{\})*,?" and "\{\})?[.,]?"(?P<after>(?: (?:on|in|among) the(?:ir)? [a-z ]+)?)\.?')
_NUMBER = re.compile(r"\s+\d+\.$")  # of the next point of a list
_BETWEEN_SENTENCES = re.compile(r'(?<=[.!?]["”])\s+|(?<=[.!?])\s+(?=[A-Z"“])')
_QUOTED = re.compile(r'["“]([^"“”]{2,60}?)([,.]?["”])')
_GENRES = {genre: re.compile(rf"\b(?:{words})", re.I) for genre, words in {
    "Action": "action", "Adventure": "adventure", "Animation": "animat", "Children's": "children|family",
    "Comedy": "comed", "Crime": "crime", "Documentary": "documentar", "Drama": "drama", "Fantasy": "fantas",
    "Film-Noir": "film.noir|noir", "Horror": "horror", "Musical": "musicals", "Mystery": "myster",
    "Romance": "roman", "Sci-Fi": "sci-fi|science fiction", "Thriller": "thriller", "War": r"war\b",
    "Western": "western"}.items()}
_NOUNS = {"Action": "action", "Adventure": "adventure", "Animation": "animation",
          "Children's": "children's films", "Comedy": "comedy", "Crime": "crime films",
          "Documentary": "documentaries", "Drama": "drama", "Fantasy": "fantasy", "Film-Noir": "film noir",
          "Horror": "horror", "Musical": "musicals", "Mystery": "mystery", "Romance": "romance",
          "Sci-Fi": "science fiction", "Thriller": "thrillers", "War": "war films", "Western": "westerns"}


@dataclass(frozen=True)
class Example:
    """A text about one user.

    Attributes
    ----------
    user
        Id.
    films
        The films of the prompt, oldest first.
    titles
        Number of films that the text names.
    """

    user: str
    films: tuple[Film, ...]
    text: str
    titles: int


@dataclass
class Sentences:
    """Recorded sentences, each once, in order; ``{}`` stands for a title.

    Attributes
    ----------
    openings
        Genres that it names, in its order, by sentence.
    frames
        What stands before the genres, between genres and titles, and after the titles, of sentences that name
        both.
    """

    openings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    frames: dict[tuple[str, str, str], None] = field(default_factory=dict)

    def add(self, profile: Profile) -> None:
        """Add the sentences of a profile that its own user's history bears out."""
        flat = profile.text.casefold()
        films = {title_variants(film.title)[0]: film for film in profile.films
                 if film.title.casefold() in flat and title_variants(film.title)}
        for text in sentences(profile.text):
            text = _NUMBER.sub("", text).replace("avourite", "avorite")
            if text.endswith((".", '."', '.”')) and not text.count('"') % 2 and "{" not in text:
                self._add(text, films)

    def _add(self, text: str, films: dict[str, Film]) -> None:
        genres, quoted = _genres(text), _QUOTED.findall(text)
        if quoted:
            shows = _SHOWS.fullmatch(_QUOTED.sub(r'"{}\2', text))
            if shows and len(_genres(shows["claim"])) == len(shows["claim"].split(" and ")):
                before = shows["before"].replace("Additionally, the", "The").replace(" also", "")
                self.frames[before, shows["between"], shows["after"]] = None
        elif (_OPENS.match(text) and 1 <= len(genres) <= 3 and not named(text, films)
              and not _SAYS_MORE.search(text)):
            self.openings[text] = genres


def _genres(sentence: str) -> tuple[str, ...]:
    starts = {genre: match.start() for genre, pattern in _GENRES.items()
              if (match := pattern.search(sentence))}
    return tuple(sorted(starts, key=starts.__getitem__))


class _Composer:
    """Puts texts together. Openings that were used least come first.

    Parameters
    ----------
    max_films
        Films of a prompt.
    """

    def __init__(self, profiles: Sequence[Profile], max_films: int):
        self._sentences, self._max_films = Sentences(), max_films
        for profile in profiles:
            self._sentences.add(profile)
        self._used: Counter[str] = Counter()

    def example(self, profile: Profile) -> Example | None:
        """A prompt of films that followed one another, and its text; None if too little can be said."""
        rng = random.Random(profile.user)
        count = self._max_films if rng.random() < 0.7 else rng.randint(_MIN_FILMS, self._max_films)
        if len(profile.films) < count:
            return None
        end = rng.randint(count, len(profile.films))
        films = profile.films[end - count:end]
        every = Counter(genre for film in reversed(films) for genre in film.genres)  # as in the prompt
        shared = groups(films, every)
        counts = Counter({genre: every[genre] for genre in every
                          if any(genre in genres for _, genres in shared)})
        opening = self._opening(counts, count, rng)
        if opening is None:
            return None
        text = " ".join([opening,
                         *_counted(most_frequent(counts), most_frequent(_decades(films)), len(films))])
        sentences, titles = self._evidence(shared)
        if titles < _MIN_TITLES or len(" ".join([text, *sentences]).split()) > _MAX_WORDS:
            return None
        self._used[opening] += 1
        return Example(profile.user, films, " ".join([text, *sentences]), titles)

    def _opening(self, counts: Counter[str], films: int, rng: random.Random) -> str | None:
        """A sentence that names the genre that most films have, or both if two are equal.

        If more are equal, it says that no genre stands out. None if no recorded sentence names the genres.
        """
        max_count = max(counts.values(), default=0)
        leading = {genre for genre, count in counts.items() if count == max_count}

        def is_true(text: str, genres: tuple[str, ...]) -> bool:
            return max_count > 1 and leading == {*genres} and all(
                low <= max_count / films <= high
                for word, (low, high) in _QUANTITIES.items() if f" {word} " in text)

        if len(leading) > 2:
            return _NONE_LEADS
        true = [text for text, genres in self._sentences.openings.items() if is_true(text, genres)]
        return min(true, key=lambda text: (self._used[text], rng.random()), default=None)

    def _evidence(self, shared: Sequence[tuple[list[Film], list[str]]]) -> tuple[list[str], int]:
        """Sentences on groups, one each, and the number of titles in them."""
        recorded, texts, titles, used = tuple(self._sentences.frames), [], 0, set()
        for number, (films, genres) in enumerate(shared if recorded else ()):
            many = len(films) >= _MANY or len(shared) <= _FEW_GROUPS or not genres
            cited = [re.sub(r"(?<=\S) *\(.*\)", "", film.title)
                     for film in films[:_TITLES_OF_MANY if many else _TITLES]]
            if genres:
                frames = _FRAMES if number % 2 else recorded
                at = list(_NOUNS).index(genres[0]) % len(frames)
                turned = (*frames[at:], *frames[:at])
                frame = next((each for each in turned if each not in used), turned[0])
                used.add(frame)
                before, between, after = frame
                before += _joined([_NOUNS[genre] for genre in genres]) + between
            else:
                before, after = _ALL_OTHERS if len(cited) == len(films) else _SOME_OTHERS, ""
            named = _joined(cited, '"')
            texts.append(f'{before}"{named}"{after}.')
            titles += len(cited)
        return texts, titles


def _joined(parts: Sequence[str], mark: str = "") -> str:
    """Parts with commas between them and "and" before the last; ``mark`` ends and begins each part inside."""
    *others, last = parts
    return f"{mark} and {mark}".join([*([f"{mark}, {mark}".join(others)] if others else []), last])


def groups(films: Sequence[Film], counts: Counter[str]) -> list[tuple[list[Film], list[str]]]:
    """The groups of the prompt, newest film first, with the genres that they share, in its order.

    A film is in the group of its two most frequent genres, or, if no other film has the same ones, in that of
    the first. The films that are left come last, without genres, if there is a group at all.
    """
    newest_first = films[::-1]
    pairs = [tuple(sorted((genre for genre in film.genres if counts[genre] > 1),
                          key=lambda genre: -counts[genre])[:_GENRES_OF_A_GROUP]) for film in newest_first]
    keys = [pair if pairs.count(pair) > 1 else pair[:1] for pair in pairs]
    films_by_genres: dict[tuple[str, ...], list[Film]] = {}
    for film, key in zip(newest_first, keys, strict=True):
        films_by_genres.setdefault(key if keys.count(key) > 1 else (), []).append(film)
    others = films_by_genres.pop((), [])
    ranked = sorted(films_by_genres.items(), key=lambda group: (
        -len(group[1]), -sum(counts[genre] for genre in group[0]), ", ".join(group[0]).lower()))
    return [(films, list(genres)) for genres, films in ranked] + ([(others, [])] if ranked and others else [])


def most_frequent(counts: Counter[str]) -> list[tuple[str, int]]:
    """What more than one film has, the most frequent first, and how many films have it, as the prompt says.

    What equals the last one is named too, or, if there are too many, none of it.
    """
    frequent = [each for each in counts.most_common() if each[1] > 1]
    last = frequent[:_COUNTED][-1:]
    named = [each for each in frequent if each[1] >= last[0][1]]
    return named if len(named) <= _MAX_COUNTED else [each for each in frequent if each[1] > last[0][1]]


def _decades(films: Sequence[Film]) -> Counter[str]:
    return Counter(f"{film.year[:3]}0s" for film in reversed(films) if film.year)


def _counted(genres: Sequence[tuple[str, int]], decades: Sequence[tuple[str, int]], films: int) -> list[str]:
    """A sentence on the most frequent genres and decades; empty if there are none."""
    parts = []
    if genres:
        (first, first_count), *others = genres
        parts.append(_joined([f"{first_count} have the genre {first.lower()}",
                              *(f"{count} {genre.lower()}" for genre, count in others)]))
    if decades:
        (first, first_count), *others = decades
        parts.append(_joined([f"{'all' if first_count == films else first_count} are from the {first}",
                              *(f"{count} from the {decade}" for decade, count in others)]))
    text = f"Of the {films} films, {'; '.join(parts)}."
    return [re.sub(rf"^Of the {films} films, ({films}|all) ", f"All {films} films ", text)] if parts else []


def sentences(text: str) -> list[str]:
    """Return the sentences of a text."""
    return _BETWEEN_SENTENCES.split(" ".join(text.split()))


def claims_of(sentence: str) -> set[str]:
    """Return the genres, as nouns, that a sentence without its titles speaks of."""
    return {_NOUNS[genre] for genre in _genres(sentence) if genre in _NOUNS}


def claims(film: Film) -> list[str]:
    """Return what a sentence can say that a film shows: its genres, as nouns."""
    return [_NOUNS[genre] for genre in film.genres if genre in _NOUNS]


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
    words = math.ceil(len(each.text.split()) / 10) * 10 + random.Random(each.text).choice(_SPARE_WORDS)
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
