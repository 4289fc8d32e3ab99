"""Static shapes and inputs of a forward pass.

Shapes are rounded up to buckets, so that few graphs serve all steps. The inputs of a bucket share one buffer,
which is filled on the host and copied to the device at once.
"""

from dataclasses import dataclass

import numpy as np
import torch

from dare_job.decode.model.tree import Tree

COLUMN_MULTIPLE = 256  # of a bucket's cache columns


@dataclass(frozen=True)
class Bucket:
    """The static shape of a forward pass.

    Attributes
    ----------
    rows : int
        Slots that are read.
    queries : int
        Packed tokens, including padding.
    width : int
        Queries of the widest row.
    columns : int
        Cache columns that are read.
    uniform : bool
        Whether query t has place t of rows x width, so that padding needs no gather.
    """

    rows: int
    queries: int
    width: int
    columns: int
    uniform: bool

    @classmethod
    def of(cls, tree: Tree, lengths: np.ndarray, slots: int) -> "Bucket":
        """Return the bucket of a forward pass; ``lengths`` (R,) before the roots; ``slots`` of the cache."""
        count, total = len(lengths), len(tree.tokens)
        rows, width = min(round_up_count(count), slots), round_up_count(tree.width)
        places = rows * width
        uniform = round_up_count(total) >= places and (count == 1 or tree.uniform and tree.width == width)
        columns = round_up_columns(int(lengths.max()) + tree.width)
        return cls(rows, places if uniform else round_up_count(total), width, columns, uniform)


def round_up_count(count: int) -> int:
    """Round up to 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, ...; from 16 on, at most a third is padding."""
    power = 1 << max(0, count - 1).bit_length()
    between = power * 3 // 4
    return between if power >= 32 and count <= between else power


def round_up_columns(columns: int) -> int:
    """Round up to a multiple of COLUMN_MULTIPLE; above 2,048, of four times as many."""
    step = COLUMN_MULTIPLE if columns <= 8 * COLUMN_MULTIPLE else 4 * COLUMN_MULTIPLE
    return -(-columns // step) * step


_FIELDS = ("tokens", "rows", "depths", "offsets", "places")  # int64 (queries,)


class Inputs:
    """Static tensors of one bucket of T queries, R rows and width W, on the device.

    Padding queries repeat a root. In a row with real queries this is the row's own root: the same token in
    the same column, so it rewrites the same values. In a padding row (a ``uniform`` bucket with fewer rows)
    it writes to column 0 of a free slot.

    Attributes
    ----------
    tokens : int64 (T,)
    rows : int64 (T,)
        Row of each query.
    depths : int64 (T,)
        Depth in the tree.
    offsets : int64 (T,)
        Cache column relative to the end of the row's text, where the query's key and value are written.
    places : int64 (T,)
        Place of each query among R x W.
    lengths : int64 (R,)
        Tokens before the root.
    starts, counts : int64 (R,)
        Query of each root, and number of queries of each row.
    ancestors : bool (T, W)
        As in ``Tree``.
    """

    def __init__(self, bucket: Bucket, device: torch.device):
        self._bucket = bucket
        queries, rows = bucket.queries, bucket.rows
        integers = len(_FIELDS) * queries + 3 * rows
        self._host = np.zeros(8 * integers + queries * bucket.width, np.uint8)
        self._device = torch.zeros(len(self._host), dtype=torch.uint8, device=device)
        ends = [queries * (i + 1) for i in range(len(_FIELDS))] + [integers - 2 * rows, integers - rows]
        split = 8 * integers
        self._arrays = np.split(self._host[:split].view(np.int64), ends)
        self._ancestors_on_host = self._host[split:].view(np.bool_).reshape(queries, bucket.width)
        tensors = self._device[:split].view(torch.int64).tensor_split(ends)
        (self.tokens, self.rows, self.depths, self.offsets, self.places, self.lengths, self.starts,
         self.counts) = tensors
        self.ancestors = self._device[split:].view(torch.bool).view(queries, bucket.width)

    def fill(self, tree: Tree, lengths: np.ndarray) -> None:
        """Copy trees with tensors on the CPU, and lengths (R,), to the device, without waiting for it."""
        values, _, node_depths, roots = tree.host
        count, total = len(lengths), len(values)
        tokens, query_rows, depths, offsets, places, before, starts, counts = self._arrays
        rows = tree.rows.numpy()
        tokens[:total], tokens[total:] = values, values[0]
        query_rows[:total], depths[:total], depths[total:] = rows, node_depths, 0
        np.subtract(np.arange(total), roots[rows], out=offsets[:total])
        offsets[total:] = 0
        np.add(rows * self._bucket.width, offsets[:total], out=places[:total])
        if self._bucket.uniform:
            places[total:] = np.arange(total, len(places))
            query_rows[total:] = places[total:] // self._bucket.width
        else:
            places[total:] = query_rows[total:] = 0
        before[:count], before[count:] = lengths, 0
        starts[:count], starts[count:] = roots[:-1], 0
        np.subtract(roots[1:], roots[:-1], out=counts[:count])
        counts[count:] = 1
        self._ancestors_on_host[:] = False
        self._ancestors_on_host[:total, : tree.width] = tree.ancestors.numpy()
        self._ancestors_on_host[total:, 0] = True
        self._send()

    def _send(self) -> None:
        staged = torch.from_numpy(self._host)
        if self._device.device.type == "cuda":  # a pinned copy, so that the buffer can be refilled at once
            staged = staged.pin_memory()
        self._device.copy_(staged, non_blocking=True)
