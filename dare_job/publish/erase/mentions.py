"""Where files that are no tables mention an entity: as bytes, as JSON values, inside archives.

An id is *distinctive* if it has at least eight characters, or five with a letter and a digit. A distinctive
id counts wherever it stands by itself. Any other id, such as ``12``, is also a number of rows or seconds, so
it counts where it is written as an id: ``user:12`` or ``"user_id": "12"``.
"""

import gzip
import html
import io
import json
import mmap
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from dare_job.publish.erase.subjects import Subjects
from dare_job.schemas import ENTITIES

ERASED = "erased"  # written in place of an id
SHORTEST_TEXT = 8  # characters; shorter texts are compared with whole values only
_WORD = rb"[\w-]"
_DISTINCTIVE = re.compile(r".{8,}|(?=.*\d)(?=.*[^\W\d]).{5,}", re.DOTALL)
_ID_LISTS = ("first", "ids")  # keys of JSON lists of ids


def is_distinctive(identifier: str) -> bool:
    """Whether an id is unlikely to stand for anything else."""
    return _DISTINCTIVE.fullmatch(identifier) is not None


class Mentions:
    """Finds mentions of entities in bytes."""

    def __init__(self, subjects: Subjects):
        self.subjects = subjects

    def find(self, content: bytes | mmap.mmap) -> str | None:
        """What is mentioned, in words that do not repeat it; None: nothing."""
        for needle, pattern in self._ids:
            if content.find(needle) >= 0 and pattern.search(content):
                return "an id"
        return "a text" if any(content.find(text) >= 0 for text in self._texts) else None

    def redact(self, text: str) -> str:
        """A text with ``erased`` in place of each id and text that it mentions."""
        content = text.encode()
        for needle, pattern in self._ids:
            if needle in content:
                content = pattern.sub(lambda match, needle=needle: match[0].replace(needle, ERASED.encode()),
                                      content)
        for words in self._texts:
            content = content.replace(words, ERASED.encode())
        return content.decode()

    @cached_property
    def _ids(self) -> list[tuple[bytes, re.Pattern[bytes]]]:
        """The bytes of each id, for a fast search, and the pattern that must match where they occur."""
        return [(spelling, re.compile(pattern)) for entity in ENTITIES
                for name in sorted(self.subjects.ids[entity]) for spelling in _spellings(name)
                for pattern in self._patterns(entity, name, re.escape(spelling))]

    def _patterns(self, entity: str, name: str, spelling: bytes) -> Iterator[bytes]:
        if is_distinctive(name):
            yield rb"(?<!%b)%b(?!%b)" % (_WORD, spelling, _WORD)
            return
        kind = entity.encode()
        yield rb"(?<!%b)%b:%b(?!%b)" % (_WORD, kind, spelling, _WORD)
        yield rb"(?<!%b)%b (['\"])%b\1" % (_WORD, kind, spelling)
        yield rb"(?<!%b)(?:%b|entity)_id['\"]?\s*[:=]\s*(['\"]?)%b\1(?!%b)" % (_WORD, kind, spelling, _WORD)

    @cached_property
    def _texts(self) -> list[bytes]:
        """The spellings of all texts. A short text is too common to be searched for."""
        texts = (text for text in sorted(self.subjects.texts) if len(text) >= SHORTEST_TEXT)
        return [spelling for text in texts for spelling in _spellings(text)]


def _spellings(text: str) -> list[bytes]:
    """A text as it is, and as JSON and HTML write it."""
    written = (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], html.escape(text),
               html.escape(text).replace("&#x27;", "&#39;").replace("&quot;", "&#34;"))
    return [spelling.encode(errors="surrogatepass") for spelling in dict.fromkeys(written)]


def json_without(value, mentions: Mentions, entity: str | None = None):
    """A JSON value without the ids of the entities: left out of lists of ids, replaced in other strings.

    Parameters
    ----------
    entity
        Entity type of the lists of ids; None: either.
    """
    if isinstance(value, dict):
        kind = value["entity"] if value.get("entity") in ENTITIES else entity
        return {key: _member(key, below, mentions, key if key in ENTITIES else kind)
                for key, below in value.items()}
    if isinstance(value, list):
        return [json_without(below, mentions, entity) for below in value]
    return mentions.redact(value) if isinstance(value, str) else value


def _member(key: str, value, mentions: Mentions, entity: str | None):
    if key in _ID_LISTS and isinstance(value, list):
        ids = mentions.subjects.ids[entity] if entity else mentions.subjects.every_id
        value = [below for below in value if not isinstance(below, str) or below not in ids]
    return json_without(value, mentions, entity)


def mentions_in_json(content: bytes, mentions: Mentions, entity: str | None) -> bool:
    """Whether a JSON file has an id that only its place in the file marks as one."""
    try:
        value = json.loads(content)
    except ValueError:
        return False
    return json_without(value, mentions, entity) != value


@contextmanager
def mapped(path: Path) -> Iterator[bytes | mmap.mmap]:
    """The content of a file, mapped into memory."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield content


def archived(content: bytes | mmap.mmap) -> Iterator[tuple[str, bytes]]:
    """(name, content) of what a gzip or zip file holds; nothing for other files.

    Raises
    ------
    OSError, EOFError, zipfile.BadZipFile
        The archive is damaged or encrypted.
    """
    if content[:2] == b"\x1f\x8b":
        yield "", gzip.decompress(content[:])
    elif content[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        with zipfile.ZipFile(io.BytesIO(content[:])) as archive:
            for member in archive.infolist():
                yield member.filename, archive.read(member)
