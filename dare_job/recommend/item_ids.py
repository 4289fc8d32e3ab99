"""Item ids as short code words, one code per level (``<a_12><b_7><c_3><d_0>``), and their JSON file.

Two formats are read: {item: ["<a_12>", "<b_7>", ...]}, as LC-Rec publishes it, and the one that ``save``
writes, {"format": 1, "sizes": [256, ...], "items": {the same}}, which also counts codes that no item uses.
"""

import gzip
import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from dare_job.errors import ConfigError, DataError
from dare_job.storage import paths

FORMAT = 1
LETTERS = "abcdefghijklmnopqrstuvwxyz"  # of the levels, the first one outermost
_MAX_CODES = 1 << 20  # per level; rejects damaged files before they allocate much memory
_TOKEN = re.compile(r"<([a-z])_(0|[1-9][0-9]{0,8})>")


@dataclass(frozen=True)
class ItemIds:
    """Code words of N items; several items may share one.

    Attributes
    ----------
    items
        Names of the items, length N.
    codes : int32 (N, L)
        Code of each level, from 0.
    sizes
        Number of codes of each level, length L.
    """

    items: tuple[str, ...]
    codes: np.ndarray
    sizes: tuple[int, ...]

    @property
    def length(self) -> int:
        """Tokens per id, L."""
        return len(self.sizes)

    @cached_property
    def rows(self) -> dict[str, int]:
        """Row of each item."""
        return {item: row for row, item in enumerate(self.items)}

    def same_codes(self, other: "ItemIds") -> bool:
        """Whether both have the same items in the same order, with the same codes."""
        return self.items == other.items and np.array_equal(self.codes, other.codes)

    def tokens(self, row: int) -> list[str]:
        """Return the L token strings of a row."""
        return [token(level, code) for level, code in enumerate(self.codes[row].tolist())]

    def vocabulary(self) -> list[str]:
        """Return the token strings of all codes level by level, including codes that no item uses."""
        return [token(level, code) for level, size in enumerate(self.sizes) for code in range(size)]

    @classmethod
    def load(cls, path: str | Path) -> "ItemIds":
        """Read JSON, gzipped or not.

        Raises
        ------
        ConfigError
            The file does not exist.
        DataError
            It cannot be read, or its content is invalid.
        """
        path = Path(path)
        return _from_table(*_sections(_read(path), path), path)

    def save(self, path: str | Path) -> None:
        """Write JSON atomically, with the items in order."""
        path = Path(path)
        table = {item: self.tokens(row) for row, item in enumerate(self.items)}
        with paths.atomic_writer(path, f".{path.name}.partial") as file:
            file.write(json.dumps({"format": FORMAT, "sizes": list(self.sizes), "items": table}).encode())


def token(level: int, code: int) -> str:
    """Return the token string of a code, such as ``<b_7>`` for level 1 and code 7."""
    return f"<{LETTERS[level]}_{code}>"


def _read(path: Path) -> dict:
    if not path.is_file():
        raise ConfigError(f"item ids {path}: no such file; make it with `dare-job recommender item-ids`, or "
                          'give JSON {item: ["<a_12>", "<b_7>", ...]}')
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        table = json.loads(content, object_pairs_hook=_unique_keys)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"item ids {path} is not valid JSON ({error}): write the file again") from None
    if not isinstance(table, dict):
        raise DataError(f"item ids {path}: expected a JSON object with items as keys, not "
                        f"{type(table).__name__}")
    return table


def _unique_keys(pairs: list[tuple[str, object]]) -> dict:
    table = dict(pairs)
    if len(table) < len(pairs):
        duplicate, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"key {duplicate!r} occurs twice")
    return table


def _sections(content: dict, path: Path) -> tuple[dict, list | None]:
    """Return the table of items, and the sizes of the levels if the file names them."""
    if not isinstance(content.get("items"), dict):
        return content, None
    if content.get("format") != FORMAT or not isinstance(content.get("sizes"), list):
        raise DataError(f"item ids {path} has format {content.get('format')!r} and sizes "
                        f"{content.get('sizes')!r}; this version reads format {FORMAT} with a list of sizes")
    return content["items"], content["sizes"]


def _from_table(table: dict, sizes: list | None, path: Path) -> ItemIds:
    if not table:
        raise DataError(f"item ids {path} has no items: write it again from a table with items")
    first = next(iter(table.values()))
    length = len(first) if isinstance(first, list) else 0
    codes = np.array([_codes(item, tokens, length, path) for item, tokens in table.items()], np.int32)
    if sizes is None:
        sizes = (codes.max(axis=0) + 1).tolist()
    if len(sizes) != length or not all(type(size) is int and 0 < size <= _MAX_CODES for size in sizes):
        raise DataError(f"item ids {path}: sizes {sizes} do not fit ids of {length} tokens; each level needs "
                        f"one of 1 to {_MAX_CODES}")
    if len(unknown := np.argwhere(codes >= np.asarray(sizes))):
        row, level = unknown[0].tolist()
        raise DataError(f"item ids {path}: item {list(table)[row]!r} has the unknown token "
                        f"{token(level, int(codes[row, level]))}: level {LETTERS[level]} has "
                        f"{sizes[level]} codes, from 0")
    return ItemIds(tuple(table), codes, tuple(sizes))


def _codes(item: str, tokens: object, length: int, path: Path) -> list[int]:
    if not isinstance(tokens, list) or len(tokens) != length or not 1 <= length <= len(LETTERS):
        raise DataError(f"item ids {path}: item {item!r} has {tokens!r}; every id needs a list of the same "
                        f"number of tokens, 1 to {len(LETTERS)}: quantise all items in one run")
    codes = []
    for level, text in enumerate(tokens):
        match = _TOKEN.fullmatch(text) if isinstance(text, str) else None
        if not match or match[1] != LETTERS[level] or int(match[2]) >= _MAX_CODES:
            raise DataError(f"item ids {path}: item {item!r} has the unknown token {text!r} at position "
                            f"{level + 1}; expected <{LETTERS[level]}_N> with N from 0")
        codes.append(int(match[2]))
    return codes
