"""Words of texts and titles: which titles and attribute values a text names, and their natural order.

MovieLens moves a leading article to the end, in the title and in the titles in parentheses after it: "City of
Lost Children, The (Cité des enfants perdus, La) (1995)". A prompt needs the name that a model knows.

A text names a title if the title's words stand in it one after another, as whole words. Case, accents and
punctuation do not count, nor do years and other additions in parentheses; "Matrix, The" is The Matrix. A
title of one word has to be written as the title is. A name that is part of a longer name of the same row,
such as Toy Story in Toy Story 2, counts only where it stands alone.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_ARTICLES = ("The|A|An|La|Le|Les|Un|Une|Il|Lo|I|Gli|Una|Uno|El|Los|Las|O|Os|Der|Die|Das|Ein|Eine|Het|De|Den|"
             "Det|En|Ett|Da")
# Each title begins at the start or after a parenthesis and ends at a parenthesis, a colon or the end.
_INVERTED = r"(^|\()(a\.k\.a\. +|)([^()]+?), +({articles})(?= *([():]|$))"
_REWRITES = ((_INVERTED.format(articles=_ARTICLES), r"\1\2\4 \3"),
            (_INVERTED.format(articles="L'"), r"\1\2\4\3"))
_LAST_ARTICLE = re.compile(rf"(.+), ({_ARTICLES}|L')", re.IGNORECASE | re.DOTALL)
_LEADING = re.compile(r"(?:the|an?)\s+(?=\w)", re.IGNORECASE)
_PARENTHESES = re.compile(r"(?<=\S)\s*\(([^()]*)\)")  # not at the start: (500) Days of Summer
_ALSO = re.compile(r"a\.?k\.?a\.?\s+", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<!\s\d)[.!?:]+\s+|\s*\n\s*")  # not after the number of a list: "1. Heat"
_SEQUEL = r"(?! (?i:[2-9]|1\d|ii|iii|iv|vi{0,3}|ix|x)(?!\w))"  # Toy Story is not Toy Story 2
_MAX_WORDS = 20  # of a name; later words do not count
_SHORT_WORD = 4  # such titles (It, Her, Up) do not count as the first word of a sentence


def natural_order(title: str) -> str:
    """The title with each article before its noun. Titles without an inverted article stay as they are."""
    for pattern, replacement in _REWRITES:
        title = re.sub(pattern, replacement, title)
    return title


def named(text: str | None, titles: Iterable[str], values: Iterable[str] = ()) -> list[str]:
    """The titles and values that a text names, in the order of their first mention."""
    patterns = _patterns(tuple(titles), tuple(values))
    if not text or not patterns:
        return []
    keys = [key for key, _ in patterns]
    search = _compiled(tuple(pattern for _, pattern in patterns))
    mentions = (keys[match.lastindex - 1] for match in search.finditer(_plain(text)))
    return list(dict.fromkeys(mentions))


class Mentions:
    """Finds which of many titles and values texts may name, each in time that does not grow with the texts.

    It looks for their words alone. ``named`` decides which of them a text names.

    Attributes
    ----------
    titles, values
        By text, in the order in which they were added.
    """

    def __init__(self, texts: Sequence[str]):
        self._texts = [f" {_flat(text).casefold()} " for text in texts]
        self.titles: list[dict[str, None]] = [{} for _ in texts]
        self.values: list[dict[str, None]] = [{} for _ in texts]
        self._starts: dict[str, set[int]] = defaultdict(set)
        for number, text in enumerate(self._texts):
            for first, second in pairwise([*text.split(), ""]):
                self._starts[first].add(number)
                self._starts[f"{first} {second}"].add(number)

    def add_title(self, title: str) -> None:
        """Look for a title, in any way to write it."""
        for number in self._with(title_variants(title)):
            self.titles[number][title] = None

    def add_value(self, value: str) -> None:
        """Look for an attribute value; of "Comedy, Romance" for both parts."""
        for part in split_values([value]):
            for number in self._with([part]):
                self.values[number][part] = None

    def _with(self, ways: Iterable[str]) -> set[int]:
        ways = [way.casefold() for way in ways]
        return {number for way in ways for number in self._starts.get(" ".join(way.split()[:2]), ())
                if f" {way} " in self._texts[number]}


def _patterns(titles: tuple[str, ...], values: tuple[str, ...]) -> list[tuple[str, str]]:
    """Name and regular expression of each way to write a title or value, longest first."""
    patterns = {}
    for title in titles:
        ways = title_variants(title)
        for way in ways:
            patterns.setdefault(way.casefold(), (ways[0], _title_pattern(way)))
    for value in split_values(values):
        for way in (value, *_plurals(value)):
            patterns.setdefault(way, (value, _bounded(f"(?i:{_words(way)})")))
    return [patterns[way] for way in sorted(patterns, key=len, reverse=True)]


def title_variants(title: str) -> list[str]:
    """Ways to write a title, without punctuation; the first is its name.

    Empty for titles that cannot be told from other words: numbers ("300", "1984") and single Latin letters.
    """
    main = _PARENTHESES.sub(" ", title)
    others = [_ALSO.sub("", part) for part in _PARENTHESES.findall(title)]
    ways = [_upright(part) for part in (main, *others)]
    ways += [_LEADING.sub("", way, count=1) for way in ways if _LEADING.match(way)]
    return list(dict.fromkeys(way for way in ways if _is_name(way)))


def split_values(values: Iterable[str]) -> list[str]:
    """Attribute values without punctuation and numbers; "Comedy, Romance" and "Comedy|Romance" are two."""
    parts = (_flat(part).casefold() for value in values if value for part in re.split(r"[,|;/]", value))
    return list(dict.fromkeys(part for part in parts if len(part) > 2 and any(map(str.isalpha, part))))


def _is_name(way: str) -> bool:
    return any(map(str.isalpha, way)) and (len(way) > 1 or _is_wide(way))


def _upright(title: str) -> str:
    """Without punctuation; the article of an inverted title stands first."""
    inverted = _LAST_ARTICLE.fullmatch(title.strip())
    return _flat(f"{inverted[2]} {inverted[1]}" if inverted else title)


def _plurals(value: str) -> list[str]:
    return [f"{value}s", *([f"{value[:-1]}ies"] if value.endswith("y") else [])]


def _title_pattern(way: str) -> str:
    words = _words(way)
    if " " in way:
        return _bounded(f"(?i:{words})") + _SEQUEL
    first = "(?<= )" if len(way) <= _SHORT_WORD and not _is_wide(way[0]) else ""
    return first + _bounded(words) + _SEQUEL  # one word: as the title writes it


def _words(way: str) -> str:
    return r"\s+".join(map(re.escape, way.split()[:_MAX_WORDS]))


def _bounded(pattern: str) -> str:
    """Whole words only. Scripts without spaces between words have no such boundary."""
    return pattern if any(map(_is_wide, pattern)) else rf"(?<!\w){pattern}(?!\w)"


def _is_wide(letter: str) -> bool:
    return unicodedata.east_asian_width(letter) in "WF"


@lru_cache(maxsize=256)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern:
    return re.compile("|".join(f"({pattern})" for pattern in patterns))


def _plain(text: str) -> str:
    """Words separated by one space, or by a newline where a sentence begins with a bare word."""
    sentences = _SENTENCE_END.split(f" {text}")
    sentences[0] = sentences[0][1:]
    return "\n" + "\n".join(_letters(sentence) for sentence in sentences)


def _flat(text: str) -> str:
    return " ".join(_letters(text).split())


def _letters(text: str) -> str:
    """Without accents, apostrophes and punctuation; a leading quote leaves a space."""
    decomposed = unicodedata.normalize("NFKD", text)
    bare = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
    bare = unicodedata.normalize("NFC", bare).replace("&", " and ")
    return re.sub(r"[\W_]+", " ", re.sub(r"['’‘`´]", "", bare))


def words(texts: list[str]) -> tuple[pa.Array, np.ndarray]:
    """All words in lower case without punctuation, and the places where those of each text end, int64
    (N,)."""
    letters = pc.replace_substring_regex(pa.array(texts, pa.string()), r"\PL+", " ")
    split = pc.utf8_split_whitespace(pc.utf8_trim(pc.utf8_lower(letters), " "))
    return split.flatten(), np.cumsum(pc.list_value_length(split).to_numpy(), dtype=np.int64)
