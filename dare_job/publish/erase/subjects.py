"""Whose data is erased, and what of it is remembered until the erasure is complete.

    OUT/_work/erasing.json    ids and texts of an erasure that has begun; removed at its end

The texts are needed to search for copies of them after the tables that held them have been rewritten, also if
the command was killed in between.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from dare_job.data.input import values
from dare_job.errors import ConfigError
from dare_job.schemas import ENTITIES
from dare_job.workspace import write_json

STATE = "erasing.json"


@dataclass(frozen=True)
class Subjects:
    """Entities to erase.

    Attributes
    ----------
    ids
        Their ids by entity type.
    texts
        Their texts that no other entity has. A text that others have too remains as theirs.
    """

    ids: dict[str, frozenset[str]]
    texts: frozenset[str] = frozenset()

    def names(self) -> list[str]:
        """``user:ID`` and ``item:ID`` of all entities."""
        return [f"{entity}:{name}" for entity in ENTITIES for name in sorted(self.ids[entity])]

    @cached_property
    def every_id(self) -> frozenset[str]:
        return frozenset().union(*self.ids.values())

    @cached_property
    def contents(self) -> pa.Array:
        """The texts and their SHA-256: values of columns that may occur only in rows of these entities."""
        hashes = (hashlib.sha256(text.encode()).hexdigest() for text in self.texts)
        return pa.array([*self.texts, *hashes], pa.string())

    def with_texts(self, texts: Iterable[str]) -> "Subjects":
        return Subjects(self.ids, self.texts | frozenset(texts))

    def __or__(self, other: "Subjects") -> "Subjects":
        return Subjects({entity: self.ids[entity] | other.ids[entity] for entity in ENTITIES},
                        self.texts | other.texts)


def parse(names: Sequence[str], file: Path | None = None) -> Subjects:
    """The entities that a command line names, and those in a file with one name on each line.

    Raises
    ------
    ConfigError
        A name is not ``user:ID`` or ``item:ID``, no name is given, or the file cannot be read.
    """
    ids = {entity: set() for entity in ENTITIES}
    for source, name in [*(("", name) for name in names), *_lines(file)]:
        entity, _, identifier = name.strip().partition(":")
        identifier = _as_read(identifier)
        if entity not in ENTITIES or not identifier:
            raise ConfigError(f"{source}{name!r} is not the name of a user or an item; write user:ID or "
                              "item:ID")
        ids[entity].add(identifier)
    if not any(ids.values()):
        raise ConfigError("nothing to erase: name at least one user:ID or item:ID, or a file with --ids FILE")
    return Subjects({entity: frozenset(identifiers) for entity, identifiers in ids.items()})


def _as_read(identifier: str) -> str:
    """An id as the tables have it: without blanks at its ends, and 7 for 7.0."""
    return values.ids(pa.array([identifier]), "id")[0][0].as_py() or identifier.strip()


def _lines(file: Path | None) -> Iterator[tuple[str, str]]:
    if file is None:
        return
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--ids {file} cannot be read ({error}); name a text file with user:ID or item:ID "
                          "on each line") from None
    yield from ((f"--ids {file}, line {number}: ", line.strip())
                for number, line in enumerate(lines, 1) if line.strip())


def read_state(out: Path) -> Subjects | None:
    """What an interrupted erasure had begun to erase; None if there is none."""
    try:
        record = json.loads((out / "_work" / STATE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return Subjects({entity: frozenset(record[entity]) for entity in ENTITIES}, frozenset(record["texts"]))


def write_state(out: Path, subjects: Subjects) -> None:
    """Remember what is being erased. Write this before anything is removed."""
    write_json(out / "_work" / STATE, {
        **{entity: sorted(ids) for entity, ids in subjects.ids.items()}, "texts": sorted(subjects.texts)})


def remove_state(out: Path) -> None:
    (out / "_work" / STATE).unlink(missing_ok=True)
