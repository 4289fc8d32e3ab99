"""Compares a text with the previous text of its row word by word, and a prompt with the previous prompt.

The time of all functions is bounded: long texts are cut, and texts that would take too long are not compared.
"""

import difflib
import re
from collections import Counter
from collections.abc import Iterator

MAX_CHARACTERS = 4000  # of a text or a prompt; the rest is not shown
_MAX_PAIRS = 100_000  # pairs of equal words in both texts, which bound the time of difflib
_ENTRY_END = re.compile(r"(\n|; |, )")  # separates the entries of a prompt
_NUMBER = re.compile(r"^\s*(?:\d+[.)]|[-*])\s+")  # of a list
_WORDS = re.compile(r"\S+\s*|\s+")

Piece = tuple[str, str]  # same | added | removed, and the text


def shorten(text: str) -> str:
    """The first MAX_CHARACTERS of a text; the rest is counted."""
    rest = len(text) - MAX_CHARACTERS
    return text if rest <= 0 else f"{text[:MAX_CHARACTERS]} … ({rest:,} more characters)"


def words(before: str, after: str) -> list[Piece] | None:
    """``after``, with the words of ``before`` that it lacks; None if comparing the texts takes too long."""
    old, new = (_WORDS.findall(shorten(text)) for text in (before, after))
    keys = [[word.strip() for word in side] for side in (old, new)]
    counts = [Counter(side) for side in keys]
    if sum(counts[0][word] * counts[1][word] for word in counts[0]) > _MAX_PAIRS:
        return None
    pieces: list[Piece] = []
    for kind, i, j, k, n in difflib.SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        if kind == "equal":
            pieces.append(("same", "".join(new[k:n])))
        else:
            pieces += [(name, "".join(part)) for name, part in (("removed", old[i:j]), ("added", new[k:n]))
                       if part]
    return pieces


def changed_share(pieces: list[Piece]) -> float:
    """Share of the words of the new text that the previous text lacks at their place."""
    counts = Counter()
    for kind, text in pieces:
        counts[kind] += len(text.split())
    return counts["added"] / ((counts["added"] + counts["same"]) or 1)


def entries(before: str, after: str) -> list[Piece]:
    """``after``, with the entries (lines, or parts of a line between commas) that ``before`` lacks as added.

    The numbers of a list do not count, so that a title that moved is not new.
    """
    known = {_key(entry) for entry in _ENTRY_END.split(before)}
    pieces: list[Piece] = []
    for entry in _ENTRY_END.split(shorten(after)):
        separator = _ENTRY_END.fullmatch(entry)
        kind = "added" if not separator and _key(entry) not in known else "same"
        if separator and pieces and entry != "\n":
            kind = pieces[-1][0]
        if pieces and pieces[-1][0] == kind:
            pieces[-1] = kind, pieces[-1][1] + entry
        else:
            pieces.append((kind, entry))
    return pieces


def added_entries(pieces: list[Piece]) -> Iterator[str]:
    """The added entries as one line each, without the numbers of a list."""
    for kind, text in pieces:
        if kind == "added":
            yield _key(text).rstrip(",; ")


def _key(entry: str) -> str:
    return _NUMBER.sub("", entry).strip()
