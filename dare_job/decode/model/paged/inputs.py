"""Static shapes and inputs of a forward pass over trees.

Shapes are rounded up to buckets, so that few graphs serve all steps. All inputs of a bucket share one buffer,
which is filled on the host and copied to the device at once.
"""

from dataclasses import dataclass
from math import isqrt

import numba
import numpy as np
import torch

from dare_job.decode.model import masks
from dare_job.decode.model.masks import Level
from dare_job.decode.model.paged.attention import SplitAttention
from dare_job.decode.model.paged.pool import PAGE, PagedCache
from dare_job.decode.model.support import FULL, Traits
from dare_job.decode.model.tree import PaddedLayout

# Queries are rounded up to a multiple of the second number, up to the first one.
_STEPS = ((8, 1), (64, 8), (256, 16), (512, 32), (2048, 64), (2**62, 128))
_MIN_WIDTH = 16  # queries of the widest row, except of steps without drafts
_MAX_WASTE = 1.125  # queries of a recorded shape over those needed, for which no other shape is recorded
_TREE_SCORES = 2**15  # of a head, in all slots: 4 MB a layer with 32 heads in float32


def round_up_queries(count: int) -> int:
    """Round up the queries of a forward pass; from 64 on, at most a fifth is padding, mostly 2 to 6 %."""
    step = next(step for end, step in _STEPS if count <= end)
    return -(-count // step) * step


def round_up_tree(count: int) -> int:
    """Round up the queries, or tree columns, of the widest row: to 1, or a power of two of at least 16."""
    return 1 if count <= 1 else max(_MIN_WIDTH, 1 << (count - 1).bit_length())


def max_width(slots: int) -> int:
    """Return the most queries of a row, its root included, at which tree attention costs little.

    A graph pads the trees of all slots to the widest one: the scores of a head are (slots, width, width).
    """
    return 1 << max(3, min(7, (isqrt(_TREE_SCORES // slots)).bit_length() - 1))


@dataclass(frozen=True)
class Bucket:
    """The static shape of a forward pass.

    Attributes
    ----------
    queries : int
        Packed tokens, including padding.
    width : int
        Queries of the widest row.
    columns : int
        Tree columns of a row: its queries, and nodes that earlier passes left in the cache.
    pages : int
        Columns of the table of pages.
    limited : bool
        Whether a window hides part of a text or a tree.
    """

    queries: int
    width: int
    columns: int
    pages: int
    limited: bool

    @classmethod
    def of(cls, level: Level, traits: Traits, pages: int) -> "Bucket":
        """Return the bucket of a forward pass with so many pages of a row."""
        counts = np.diff(level.starts)
        longest = int((level.lengths + level.depths.max(1)).max())
        limited = traits.window is not None and longest > traits.window
        return cls(round_up_queries(len(level.tokens)), round_up_tree(int(counts.max())),
                   round_up_tree(int((level.first + counts).max())), pages, limited)

    def holds(self, other: "Bucket") -> bool:
        """Return whether this shape can run what has the shape ``other``."""
        return (self.queries >= other.queries and self.width >= other.width and self.columns >= other.columns
                and self.pages >= other.pages and self.limited >= other.limited)

    def serves(self, other: "Bucket") -> bool:
        """Return whether this shape holds ``other`` with little waste of queries and of tree attention."""
        return (self.holds(other) and self.queries <= max(_STEPS[0][0], _MAX_WASTE * other.queries)
                and self.scores <= max(_MIN_WIDTH**2, 4 * other.scores))

    @property
    def scores(self) -> int:
        """Scores of a slot's tree attention, for each head."""
        return self.width * self.columns


class Inputs:
    """Static tensors of one bucket of T queries and S slots, on the device.

    Padding has no row: it is written to the spare page, reads no text, and its output is unused.

    Attributes
    ----------
    tokens, positions, lines : int64 (T,)
        Token and position of each query, and where its key and value are written.
    parents : int64 (T,)
        Index of each query's parent, for verification.
    strict : bool (T,)
        Queries that are accepted only as the argmax.
    """

    def __init__(self, bucket: Bucket, traits: Traits, slots: int, device: torch.device):
        self.bucket, self._traits, self._slots = bucket, traits, slots
        queries, kinds = bucket.queries, len(traits.kinds) if bucket.limited else 1
        places = slots * bucket.width
        shapes = {"tokens": (np.int64, (queries,)), "positions": (np.int64, (queries,)),
                  "lines": (np.int64, (queries,)), "places": (np.int64, (queries,)),
                  "parents": (np.int64, (queries,)), "low": (np.int64, (kinds, queries)),
                  "padded": (np.int64, (places,)), "nodes": (np.int64, (slots * bucket.columns,)),
                  "starts": (np.int32, (slots + 2,)), "lengths": (np.int32, (slots + 1,)),
                  "table": (np.int32, (slots + 1, bucket.pages)),
                  "visible": (np.bool_, (kinds, queries, bucket.columns)), "reads": (np.bool_, (queries,)),
                  "strict": (np.bool_, (queries,))}
        sizes = {name: int(np.prod(shape)) * np.dtype(kind).itemsize
                 for name, (kind, shape) in shapes.items()}
        self._host = np.zeros(sum(sizes.values()), np.uint8)
        self._device = torch.zeros(len(self._host), dtype=torch.uint8, device=device)
        self._arrays: dict[str, np.ndarray] = {}
        self._tensors: dict[str, torch.Tensor] = {}
        start = 0
        for name, (kind, shape) in shapes.items():
            end = start + sizes[name]
            self._arrays[name] = self._host[start:end].view(kind).reshape(shape)
            dtype = torch.from_numpy(self._arrays[name]).dtype
            self._tensors[name] = self._device[start:end].view(dtype).view(shape)
            start = end

    def __getattr__(self, name: str) -> torch.Tensor:
        try:
            return self.__dict__["_tensors"][name]
        except KeyError:
            raise AttributeError(name) from None

    def fill(self, level: Level, cache: PagedCache, parents: np.ndarray | None = None,
             strict: np.ndarray | None = None) -> None:
        """Copy nodes that continue the texts in a cache to the device, without waiting for it."""
        arrays, total = self._arrays, len(level.tokens)
        kinds = self._traits.kinds if self.bucket.limited else self._traits.kinds[:1]
        windows = np.array([masks.window(self._traits, kind) if self.bucket.limited else (masks.NO_WINDOW, 0)
                            for kind in kinds])
        _fill(*level, cache.table, windows, self.bucket.width, *(arrays[name] for name in (
            "tokens", "positions", "lines", "places", "low", "padded", "nodes", "starts", "lengths", "table",
            "visible", "reads")))
        arrays["parents"][:total] = 0 if parents is None else parents
        arrays["strict"][:total] = False if strict is None else strict
        send(self._host, self._device)

    def split(self, dtype: torch.dtype) -> SplitAttention:
        """Return the attention of the pass; no shape depends on values."""
        bucket, kinds = self.bucket, self._traits.kinds
        shape = self._slots, 1, bucket.width, bucket.columns
        own = []
        for visible in self.visible:
            shown = visible.index_select(0, self.padded).view(shape)
            zeros = torch.zeros(shape, dtype=dtype, device=shown.device)
            own.append(zeros.masked_fill_(~shown, masks.LOW[dtype]))
        by_kind = own if bucket.limited else own * len(kinds)
        hidden = [kind for kind in kinds if kind != FULL] if bucket.limited else []
        return SplitAttention(
            self.starts, self.lengths, self.table, dict(zip(kinds, by_kind, strict=True)),
            {kind: self.low[kinds.index(kind)] for kind in hidden},
            dict.fromkeys(hidden, self._traits.window or 0), bucket.width,
            PaddedLayout(self._slots, bucket.width, self.padded, self.places), self.nodes,
            self.reads[:, None])


def send(host: np.ndarray, device: torch.Tensor) -> None:
    """Copy bytes to the device without waiting for it."""
    staged = torch.from_numpy(host)
    if device.device.type == "cuda":  # a pinned copy, so that the buffer can be refilled at once
        staged = staged.pin_memory()
    device.copy_(staged, non_blocking=True)


def receive(result: torch.Tensor) -> np.ndarray:
    """Copy a result of the device to the host, and wait for it."""
    if not result.is_cuda:
        return result.cpu().numpy()
    staged = result.to("cpu", non_blocking=True)  # pinned: torch would copy in two steps otherwise
    torch.cuda.current_stream(result.device).synchronize()
    return staged.numpy()


@numba.njit(cache=True)
def _line(table, slot, column):
    """Return the place of a column in the pool; the spare page for a column without a page."""
    page = column // PAGE
    return (table[slot, page] * PAGE if page < table.shape[1] else 0) + column % PAGE


@numba.njit(cache=True)
def _fill(tokens, level_starts, texts, first, parents, depths, cache_table, windows, width, out_tokens,
          positions, lines, places, low, padded, nodes, starts, lengths, table, visible, reads):
    slots, columns, rows, total = len(lengths) - 1, visible.shape[2], len(texts), len(tokens)
    padded[:], nodes[:], lengths[:], table[:] = 0, 0, 0, 0
    visible[:], low[:] = False, 0
    for r in range(rows):
        start, own, text = level_starts[r], level_starts[r + 1] - level_starts[r], texts[r]
        starts[r], lengths[r] = start, text if own else 0
        table[r, : cache_table.shape[1]] = cache_table[r]
        if not own:
            continue
        last = first[r] + own - 1
        for j in range(columns):
            nodes[r * columns + j] = _line(cache_table, r, text + min(j, last))
        for w in range(width):
            padded[r * width + w] = start + (w if w < own else 0)
        for i in range(own):
            t, node = start + i, first[r] + i
            position = text - 1 + depths[r, node]
            out_tokens[t], positions[t], places[t] = tokens[t], position, r * width + i
            lines[t], reads[t] = _line(cache_table, r, text + node), text > 0
            for k in range(len(windows)):
                reach = position % windows[k, 1] + 1 if windows[k, 1] else windows[k, 0]
                low[k, t] = max(0, position - reach + 1)
                up = node
                while up >= 0 and depths[r, node] - depths[r, up] < reach:
                    visible[k, t, up] = True
                    up = parents[r, up]
    starts[rows:] = total
    starts[slots + 1] = len(out_tokens)
    for t in range(total, len(out_tokens)):
        out_tokens[t], positions[t], places[t], lines[t], reads[t] = tokens[0], 0, 0, 0, False
        visible[:, t] = visible[:, 0]
