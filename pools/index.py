"""Read-only index of a pool's texts (the permanent branches of DARE): a memory-mapped suffix array.

Files, for N tokens in T texts with V distinct tokens (11 bytes per token, 13 if V > 65,535):

tokens    uint16 or int32 (N + T,)  codes: position in ``vocab`` plus 1; 0 ends a text
suffixes  int32 (N,)                suffix array: positions in ``tokens``, sorted by the codes that follow
ranks     int32 (N + T,)            inverse suffix array: rank of a position; -1 at the end of a text
shared    uint8 (N,)                LCP array: codes shared with the previous suffix, up to ``depth``
least     uint8 (ceil(N / 64),)     minimum of ``shared`` in each block of 64
vocab     int32 (V,)                token ids, ascending
starts    int32 (V + 2,)            suffixes starts[c] : starts[c + 1] begin with code c
weights   float64 (3, depth)        blend weights by context order, see ``pools.learn``
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from pools import PoolError, learn
from pools import manifest as manifests
from pools.intervals import BLOCK
from pools.suffix import common_prefixes, inverse, sort_suffixes
from pools.tree import SOURCE_GLOBAL, SOURCE_GROUP, SOURCE_OWN

DEPTH = 32  # tokens compared when sorting: contexts of up to 31 tokens and the next token
KINDS = {"own": SOURCE_OWN, "collaborative": SOURCE_GROUP, "attribute": SOURCE_GROUP, "global": SOURCE_GLOBAL}
_ARRAYS = ("tokens", "suffixes", "ranks", "shared", "least", "vocab", "starts", "weights")
_MAX_TOKENS = 2**31 - 2**24
_MAX_ID = 2**31 - 1
_MIN_TEXTS = 20  # for a quantile of their lengths


@dataclass(frozen=True, eq=False)
class Index:
    """Suffix-array index of one pool.

    The arrays are those of the module docstring. ``depth`` is the number of tokens compared when sorting,
    ``kind`` one of KINDS, and ``manifest`` is empty for an index that was not opened from a folder.
    """

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
        """Build an index in memory and learn its blend weights.

        Parameters
        ----------
        texts
            Integer (tokens,) arrays of token ids. Empty texts are skipped. The end-of-text token is an
            ordinary token: include it if it should be drafted.
        kind
            Own (the row's previous text), collaborative, attribute or global.
        depth
            Tokens compared when sorting, 2 to 127; contexts have up to depth - 1 tokens.

        Raises
        ------
        PoolError
            A text has ids that are not integers from 0 to 2**31 - 1 (the message names its position), the
            kind or depth is invalid, or there are more tokens than 32 bits address.
        """
        if kind not in KINDS:
            raise PoolError(f"pool kind {kind!r} is unknown: use one of {', '.join(KINDS)}")
        if not 2 <= depth <= 127:
            raise PoolError(f"depth {depth} must be from 2 to 127")
        parts = [part for i, text in enumerate(texts) if (part := _ids(text, i)).size]
        flat = np.concatenate(parts) if parts else np.zeros(0, np.int32)
        if flat.size + len(parts) > _MAX_TOKENS:
            raise PoolError(f"{flat.size} tokens are too many for one pool: reduce pools.max_texts")
        vocab, codes = _encode(flat)
        codes = _with_ends(codes, np.array([part.size for part in parts], np.int64))
        suffixes = sort_suffixes(codes, depth)
        starts = np.zeros(vocab.size + 2, np.int32)
        np.cumsum(np.bincount(codes, minlength=vocab.size + 1)[1:], out=starts[2:])
        shared = common_prefixes(codes, suffixes, depth)
        block_min = np.minimum.reduceat(shared, np.arange(0, shared.size, BLOCK)) if shared.size else shared
        index = cls(codes, suffixes, inverse(codes, suffixes), shared, block_min, vocab, starts,
                    learn.initial_weights(depth, kind), depth, kind)
        if kind != "own":
            learn.fit_weights(index)
        return index

    def save(self, folder: str | Path, meta: dict | None = None) -> dict:
        """Write the pool atomically.

        Parameters
        ----------
        folder
            Path of the pool; an existing pool is replaced.
        meta
            Further JSON values for the manifest, usually ``tokenizer``, ``model`` and ``prompt`` (hashes),
            ``entity``, ``name`` and ``dt``.

        Returns
        -------
        dict
            The manifest.
        """
        entries = {"kind": self.kind, "depth": self.depth, "texts": self.texts,
                   "token_count": self.token_count, "array_bytes": self.array_bytes}
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        return manifests.write(folder, arrays, {**(meta or {}), **entries})

    @classmethod
    def open(cls, folder: str | Path, tokenizer: str | None = None, verify: bool = True) -> "Index":
        """Memory-map a saved pool.

        Parameters
        ----------
        folder
            Path of the pool.
        tokenizer
            Hash of the tokenizer that the pool must have been built with; None: not compared.
        verify
            Whether to read every byte to compare checksums; sizes are always compared.

        Raises
        ------
        PoolError
            The pool is incomplete, damaged, or of another format version or tokenizer.
        """
        manifest = manifests.read(folder, verify=verify)
        if tokenizer is not None and manifest.get("tokenizer") != tokenizer:
            raise PoolError(f"{folder} has tokenizer {manifest.get('tokenizer')}, but the model has "
                            f"{tokenizer}: run the pools stage again with this model")
        arrays = {name: manifests.array(folder, name) for name in _ARRAYS}
        return cls(**arrays, depth=manifest["depth"], kind=manifest["kind"], manifest=manifest)

    @property
    def source(self) -> int:
        """SOURCE_* of draft nodes from this pool."""
        return KINDS[self.kind]

    @property
    def token_count(self) -> int:
        """Number of tokens of all texts."""
        return int(self.suffixes.size)

    @property
    def texts(self) -> int:
        """Number of non-empty texts."""
        return int(self.tokens.size - self.suffixes.size)

    @property
    def array_bytes(self) -> int:
        """Size of all arrays in memory or in the mapped files."""
        return sum(getattr(self, name).nbytes for name in _ARRAYS)

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64 (texts,): length in tokens of each text, ascending."""
        return np.sort(np.diff(np.flatnonzero(self.tokens == 0), prepend=-1) - 1)

    @cached_property
    def addresses(self) -> np.ndarray:
        """int64 (13,): addresses and sizes of the arrays in the layout of ``pools.lookup``, and SOURCE_*."""
        data = [getattr(self, name).ctypes.data for name in _ARRAYS]
        sizes = [self.vocab.size, self.depth, self.token_count]
        return np.array([data[0], self.tokens.itemsize, *data[1:], *sizes, self.source], np.int64)

    @cached_property
    def address(self) -> int:
        """Address of ``addresses``, valid while the index is referenced."""
        return self.addresses.ctypes.data


def _ids(text, position: int) -> np.ndarray:
    """Token ids of a text, int32 (tokens,). Raises PoolError with the text's position."""
    try:
        ids = np.asarray(text)
    except ValueError:  # rows of different lengths
        ids = np.empty(1, object)
    if not ids.size:
        return np.zeros(0, np.int32)
    if ids.dtype.kind not in "iu":
        raise PoolError(f"text {position} (counting from 0) must hold integer token ids, not {ids.dtype}")
    for token in (ids.min(), ids.max()):
        if not 0 <= token <= _MAX_ID:
            raise PoolError(f"text {position} (counting from 0) has token id {token}, which is not from 0 to "
                            f"{_MAX_ID}")
    return ids.astype(np.int32, copy=False).ravel()


def _encode(flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct ids, ascending, and the codes of all tokens (position in these ids plus 1)."""
    present = np.zeros(int(flat.max(initial=0)) + 1, bool)
    present[flat] = True
    vocab = np.flatnonzero(present).astype(np.int32) if flat.size else np.zeros(0, np.int32)
    table = np.zeros(present.size, np.uint16 if vocab.size <= 0xFFFF else np.int32)
    table[vocab] = np.arange(1, vocab.size + 1)
    return vocab, table[flat]


def _with_ends(codes: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Append code 0 to each text."""
    ended = np.zeros(codes.size + lengths.size, codes.dtype)
    starts = np.arange(codes.size) + np.repeat(np.arange(lengths.size), lengths)
    ended[starts] = codes
    return ended


def length_quantile(pools: Iterable[Index], quantile: float) -> int | None:
    """Quantile of the text lengths of the nearest pool that has enough texts.

    A pool has enough texts if there are at least 20, and at least one ranks above the quantile.

    Parameters
    ----------
    pools
        Pools of a row, nearest first.
    quantile
        Share of texts that are not longer, in (0, 1).

    Returns
    -------
    int or None
        Length in tokens; None if no pool has enough texts.
    """
    min_texts = max(_MIN_TEXTS, math.ceil(round(1 / (1 - quantile), 6)))
    for pool in pools:
        if pool.texts >= min_texts:
            return int(pool.lengths[math.ceil(round(quantile * pool.texts, 6)) - 1])
    return None
