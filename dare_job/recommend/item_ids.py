"""Ids of items as short code words: one code a level, ``<a_12><b_7><c_3><d_0>``, and the file they are in.

Two forms are read: {item: ["<a_12>", "<b_7>", ...]}, as LC-Rec publishes it, and the one that ``save``
writes, {"format": 1, "sizes": [256, ...], "items": {the same}}, which knows codes that no item has, too.
"""

import gzip
import json
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from dare_job.errors import ConfigError, DataError
from dare_job.storage import paths

FORMAT = 1

LETTERS = "abcdefghijklmnopqrstuvwxyz"  # of the levels, the first one outermost

_MAX_CODES = 1 << 20  # of a level: beyond that a file is wrong, and would cost memory before it is found

_TOKEN = re.compile(r"<([a-z])_(0|[1-9][0-9]{0,8})>")


@dataclass(frozen=True)
class ItemIds:
    """items (N): names of the items, one a row. codes int32 (N, L): of each level, from 0. sizes (L): codes
    that a level has. Several items may share a row of codes: ``shared`` lists them.
    """

    items: tuple[str, ...]
    codes: np.ndarray
    sizes: tuple[int, ...]

    def __post_init__(self):
        if self.codes.shape != (len(self.items), len(self.sizes)) or not self.codes.size:
            raise ConfigError(f"ids of {len(self.items)} items with {len(self.sizes)} levels, but codes of "
                              f"shape {self.codes.shape}: give one row an item and one column a level")
        if len(self.sizes) > len(LETTERS):
            raise ConfigError(f"ids of {len(self.sizes)} levels: there are letters for {len(LETTERS)}")
        outside = (self.codes < 0) | (self.codes >= np.asarray(self.sizes))
        if outside.any():
            row, level = map(int, np.argwhere(outside)[0])
            raise ConfigError(f"item {self.items[row]!r} has code {self.codes[row, level]} in level {level}, "
                              f"which has {self.sizes[level]} codes")

    @property
    def length(self) -> int:
        """Tokens of an id, L."""
        return len(self.sizes)

    @cached_property
    def rows(self) -> dict[str, int]:
        """Row of each item."""
        return {item: row for row, item in enumerate(self.items)}

    @cached_property
    def shared(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        """Rows of the items of each id, ascending; every id is there, most with one row."""
        found: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for row, codes in enumerate(self.codes.tolist()):
            found[tuple(codes)].append(row)
        return {codes: tuple(rows) for codes, rows in found.items()}

    def tokens(self, row: int) -> list[str]:
        """The L token strings of a row."""
        return [token(level, code) for level, code in enumerate(self.codes[row].tolist())]

    def vocabulary(self) -> list[str]:
        """Token strings of all codes, level by level: ``sum(sizes)`` of them, also those that no item has."""
        return [token(level, code) for level, size in enumerate(self.sizes) for code in range(size)]

    @classmethod
    def load(cls, path: str | Path) -> "ItemIds":
        """From JSON, gzipped or not. Raises ConfigError where it is missing, DataError for what it holds."""
        path = Path(path)
        table, sizes = _sections(_read(path), path)
        return _from_table(table, sizes, path)

    def save(self, path: str | Path) -> None:
        """Write JSON, whole or not at all, with the items in their order."""
        path = Path(path)
        table = {item: self.tokens(row) for row, item in enumerate(self.items)}
        with paths.atomic_writer(path, f".{path.name}.partial") as file:
            file.write(json.dumps({"format": FORMAT, "sizes": list(self.sizes), "items": table}).encode())


def token(level: int, code: int) -> str:
    """The token of a code, ``<b_7>`` for level 1 and code 7."""
    return f"<{LETTERS[level]}_{code}>"


def _read(path: Path) -> dict:
    if not path.is_file():
        raise ConfigError(f"item ids {path}: no such file; write one with `dare-job item-ids`, or give JSON "
                          '{item: ["<a_12>", "<b_7>", ...]}')
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        found = json.loads(content, object_pairs_hook=_unique_keys)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"item ids {path} are no JSON ({error}): write the file again") from None
    if not isinstance(found, dict):
        raise DataError(f"item ids {path}: a JSON object by item is needed, not a {type(found).__name__}")
    return found


def _unique_keys(pairs: list[tuple[str, object]]) -> dict:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twin = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"{twin!r} is there twice")
    return found


def _sections(found: dict, path: Path) -> tuple[dict, list | None]:
    """The table of items, and the levels' sizes where the file names them."""
    if not isinstance(found.get("items"), dict):
        return found, None
    if found.get("format") != FORMAT or not isinstance(found.get("sizes"), list):
        raise DataError(f"item ids {path} are of format {found.get('format')!r} with sizes "
                        f"{found.get('sizes')!r}; this version reads format {FORMAT} with a list of sizes")
    return found["items"], found["sizes"]


def _from_table(table: dict, sizes: list | None, path: Path) -> ItemIds:
    if not table:
        raise DataError(f"item ids {path} hold no items: write them again from a table with items")
    first, expected = next(iter(table.items()))
    length = len(expected) if isinstance(expected, list) else 0
    if not 1 <= length <= len(LETTERS):
        raise DataError(f"item ids {path}: item {first!r} has {expected!r}; it needs a list of 1 to "
                        f"{len(LETTERS)} tokens")
    codes = np.array([_codes(item, tokens, length, first, path) for item, tokens in table.items()], np.int32)
    if sizes is None:
        sizes = (codes.max(axis=0) + 1).tolist()
    if len(sizes) != length or not all(type(size) is int and 0 < size <= _MAX_CODES for size in sizes):
        raise DataError(f"item ids {path}: sizes {sizes} do not fit ids of {length} tokens; each level needs "
                        f"one of 1 to {_MAX_CODES}")
    beyond = np.argwhere(codes >= np.asarray(sizes))
    if len(beyond):
        row, level = map(int, beyond[0])
        raise DataError(f"item ids {path}: item {list(table)[row]!r} has the unknown token "
                        f"{token(level, int(codes[row, level]))}: level {LETTERS[level]} has "
                        f"{sizes[level]} codes, from 0")
    return ItemIds(tuple(table), codes, tuple(sizes))


def _codes(item: str, tokens: object, length: int, first: str, path: Path) -> list[int]:
    if not isinstance(tokens, list) or len(tokens) != length:
        has = f"{len(tokens)} tokens" if isinstance(tokens, list) else repr(tokens)
        raise DataError(f"item ids {path}: item {item!r} has {has} and item {first!r} {length}; every id "
                        "needs as many tokens: quantise all items in one go")
    found = []
    for level, text in enumerate(tokens):
        match = _TOKEN.fullmatch(text) if isinstance(text, str) else None
        if not match or match[1] != LETTERS[level] or int(match[2]) >= _MAX_CODES:
            raise DataError(f"item ids {path}: item {item!r} has the unknown token {text!r} in place "
                            f"{level + 1}; write <{LETTERS[level]}_N> there, N from 0")
        found.append(int(match[2]))
    return found
