"""Frozen index of permanent branches: a suffix array over a pool's texts, memory-mapped.

Files, for N tokens in T texts with V distinct tokens (11 bytes a token, 13 where V > 65,535):

tokens    uint16 or int32 (N + T,)  codes: place in ``vocab`` plus 1; 0 ends a text
suffixes  int32 (N,)                positions in ``tokens``, sorted by what follows
ranks     int32 (N + T,)            place of a position in ``suffixes``; -1 at the end of a text
shared    uint8 (N,)                codes that a suffix shares with the one before it, at most ``depth``
least     uint8 (ceil(N / 64),)     smallest ``shared`` of each block of 64
vocab     int32 (V,)                token ids, ascending
starts    int32 (V + 2,)            starts[c] : starts[c + 1] are the suffixes that begin with code c
weights   float64 (3, depth)        of the blend, by context order: see ``pools.learn``
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from pools import learn
from pools import manifest as manifests
from pools.errors import PoolError
from pools.intervals import BLOCK
from pools.suffix import common_prefixes, inverse, sort_suffixes
from pools.tree import SOURCE_GLOBAL, SOURCE_GROUP, SOURCE_OWN

DEPTH = 32  # tokens on which suffixes are sorted: contexts of up to 31 and the token after
KINDS = {"own": SOURCE_OWN, "collaborative": SOURCE_GROUP, "attribute": SOURCE_GROUP, "global": SOURCE_GLOBAL}
_ARRAYS = ("tokens", "suffixes", "ranks", "shared", "least", "vocab", "starts", "weights")
_MAX_TOKENS = 2**31 - 2**24
_MAX_ID = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Index:
    """Arrays as in the module's text; ``manifest`` is empty for an index that was never saved."""

    tokens: np.ndarray
    suffixes: np.ndarray
    ranks: np.ndarray
    shared: np.ndarray
    least: np.ndarray
    vocab: np.ndarray
    starts: np.ndarray
    weights: np.ndarray
    depth: int = DEPTH
    kind: str = "global"
    manifest: dict = field(default_factory=dict)

    @classmethod
    def build(cls, texts: Sequence[np.ndarray], *, kind: str = "global", depth: int = DEPTH) -> "Index":
        """Index ``texts``, each a sequence of token ids >= 0; empty ones are left out.

        An end-of-text token is an ordinary token here: include it where it should be drafted.
        kind is one of KINDS: how near the texts are to the rows that will read them.
        Raises PoolError for ids that are no integers from 0 to 2**31 - 1, naming the text's place; an unknown
        kind; an impossible depth; or more tokens than 32 bits address.
        """
        if problem := _problem(kind, depth):
            raise PoolError(problem)
        parts = [part for i, text in enumerate(texts) if (part := _ids(text, i)).size]
        flat = np.concatenate(parts) if parts else np.zeros(0, np.int32)
        if flat.size + len(parts) > _MAX_TOKENS:
            raise PoolError(f"{flat.size} tokens are too many for one pool: lower pools.max_texts")
        vocab, codes = _encode(flat)
        codes = _with_ends(codes, np.array([part.size for part in parts], np.int64))
        suffixes = sort_suffixes(codes, depth)
        starts = np.zeros(vocab.size + 2, np.int32)
        np.cumsum(np.bincount(codes, minlength=vocab.size + 1)[1:], out=starts[2:])
        shared = common_prefixes(codes, suffixes, depth)
        least = np.minimum.reduceat(shared, np.arange(0, shared.size, BLOCK)) if shared.size else shared
        index = cls(codes, suffixes, inverse(codes, suffixes), shared, least, vocab, starts,
                    learn.fixed(depth, kind), depth, kind)
        if kind != "own":
            learn.learn(index)
        return index

    def save(self, folder: str | Path, meta: dict | None = None) -> dict:
        """Write the pool atomically; return its manifest.

        meta  JSON values to keep, by custom ``tokenizer``, ``model`` and ``prompt`` (hashes), ``entity``,
              ``name``, ``dt``; keys of the format itself are refused.
        """
        own = {"kind": self.kind, "depth": self.depth, "texts": self.texts, "token_count": self.token_count,
               "array_bytes": self.array_bytes}
        clash = ({*own, "format", "version", "files", "manifest_sha256"} & set(meta or {})) - {"kind"}
        if clash:
            raise PoolError(f"meta may not set {', '.join(sorted(clash))}: the format does")
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        return manifests.write(folder, arrays, {**(meta or {}), **own})

    @classmethod
    def open(cls, folder: str | Path, expect_tokenizer: str | None = None, verify: bool = True) -> "Index":
        """Map a saved pool. ``verify`` reads every byte once to compare checksums; sizes always are.

        Raises PoolError when it is damaged, unfinished, of another version or of another tokenizer, or when
        its manifest holds an impossible kind or depth, or with ``verify`` another depth than its arrays.
        """
        manifest = manifests.read(folder, verify=verify)
        if problem := _problem(manifest.get("kind"), manifest.get("depth")):
            raise PoolError(f"{folder}: {problem}; remove the folder and run the pools stage again")
        if expect_tokenizer is not None and manifest.get("tokenizer") != expect_tokenizer:
            raise PoolError(f"{folder} was built with tokenizer {manifest.get('tokenizer')}, the model has "
                            f"{expect_tokenizer}: run the pools stage again with this model")
        arrays = {name: manifests.array(folder, name) for name in _ARRAYS}
        weights = arrays["weights"]
        if weights.shape != (3, manifest["depth"]) or not (np.isfinite(weights) & (weights >= 0)).all():
            raise PoolError(f"{folder}: its weights are not those of a pool of depth {manifest['depth']}: "
                            "remove the folder and run the pools stage again")
        if verify and not _sorted_to(manifest["depth"], **arrays):
            raise PoolError(f"{folder} is not sorted to depth {manifest['depth']}, which its manifest names: "
                            "remove the folder and run the pools stage again")
        return cls(**arrays, depth=manifest["depth"], kind=manifest["kind"], manifest=manifest)

    @property
    def source(self) -> int:
        """SOURCE_* that draft nodes from this pool carry."""
        return KINDS[self.kind]

    @property
    def token_count(self) -> int:
        return int(self.suffixes.size)

    @property
    def texts(self) -> int:
        """Texts with at least one token."""
        return int(self.tokens.size - self.suffixes.size)

    @property
    def array_bytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in _ARRAYS)

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64 (texts,): tokens of each text, ascending."""
        return np.sort(np.diff(np.flatnonzero(self.tokens == 0), prepend=-1) - 1)

    @cached_property
    def addresses(self) -> np.ndarray:
        """int64 (13,): where the arrays are and how long, as ``pools.lookup`` takes them, and SOURCE_*."""
        where = [getattr(self, name).ctypes.data for name in _ARRAYS]
        sizes = [self.vocab.size, self.depth, self.token_count]
        return np.array([where[0], self.tokens.itemsize, *where[1:], *sizes, self.source], np.int64)

    @cached_property
    def address(self) -> int:
        """Where ``addresses`` are, while the index is open."""
        return self.addresses.ctypes.data


def _problem(kind, depth) -> str | None:
    """What is wrong with a pool's kind or depth, if anything."""
    if not isinstance(kind, str) or kind not in KINDS:
        return f"pool kind {kind!r} is unknown: use one of {', '.join(KINDS)}"
    if not isinstance(depth, int | np.integer) or not 2 <= depth <= 127:
        return f"depth {depth!r} must be an integer from 2 to 127"
    return None


def _sorted_to(depth: int, tokens: np.ndarray, suffixes: np.ndarray, shared: np.ndarray, **_) -> bool:
    """Whether ``shared`` was counted to ``depth``: no further, and where it stops before, to the end."""
    most = int(shared.max(initial=0))
    if most >= depth:
        return most == depth
    pairs = np.flatnonzero(shared[1:] == most) + 1
    after = tokens[suffixes[pairs] + most]
    return not ((after == tokens[suffixes[pairs - 1] + most]) & (after != 0)).any()


def _ids(text, place: int) -> np.ndarray:
    """Token ids int32 (tokens,) of the text in ``place``. Raises PoolError naming it."""
    try:
        ids = np.asarray(text)
    except ValueError:  # rows of different lengths
        ids = np.empty(1, object)
    if not ids.size:
        return np.zeros(0, np.int32)
    if ids.dtype.kind not in "iu":
        raise PoolError(f"text {place} (the first is 0) must hold integer token ids, not {ids.dtype}")
    if (least := ids.min()) < 0:
        raise PoolError(f"text {place} (the first is 0) has token id {least}, which is negative")
    if (most := ids.max()) > _MAX_ID:
        raise PoolError(f"text {place} (the first is 0) has token id {most}: more than {_MAX_ID}")
    return ids.astype(np.int32, copy=False).ravel()


def _encode(flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ascending distinct ids, and codes (place + 1) in the smallest type."""
    present = np.zeros(int(flat.max(initial=0)) + 1, bool)
    present[flat] = True
    vocab = np.flatnonzero(present).astype(np.int32) if flat.size else np.zeros(0, np.int32)
    table = np.zeros(present.size, np.uint16 if vocab.size <= 0xFFFF else np.int32)
    table[vocab] = np.arange(1, vocab.size + 1)
    return vocab, table[flat]


def _with_ends(codes: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    ended = np.zeros(codes.size + lengths.size, codes.dtype)
    starts = np.arange(codes.size) + np.repeat(np.arange(lengths.size), lengths)
    ended[starts] = codes
    return ended
