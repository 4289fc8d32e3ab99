"""What a forward of fixed shape is told, in one buffer: filled on the host, copied in one go.

Shapes that forwards are rounded up to, so that few of them serve every step.
"""

from dataclasses import dataclass

import numpy as np
import torch

from dare_job.decode.model.tree import Tree

COLUMN_MULTIPLE = 256  # a bucket's cache columns are a multiple of this many


@dataclass(frozen=True)
class Bucket:
    """One bucket.

    rows     slots that are read
    queries  tokens in line, padding included
    width    queries of the widest row
    columns  cache columns that are read
    even     whether query t stands in place t of rows x width, so that nothing has to be gathered
    """

    rows: int
    queries: int
    width: int
    columns: int
    even: bool

    @classmethod
    def of(cls, tree: Tree, lengths: np.ndarray, slots: int) -> "Bucket":
        """The bucket of a forward; lengths (R,): tokens before the roots; slots of the cache."""
        count, total = len(lengths), len(tree.tokens)
        rows, width = min(round_up_count(count), slots), round_up_count(tree.width)
        places = rows * width
        even = round_up_count(total) >= places and (count == 1 or tree.uniform and tree.width == width)
        columns = round_up_columns(int(lengths.max()) + tree.width)
        return cls(rows, places if even else round_up_count(total), width, columns, even)


def round_up_count(count: int) -> int:
    """The next of 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, ...: from 16 on a third is padding at most."""
    power = 1 << max(0, count - 1).bit_length()
    between = power * 3 // 4
    return between if power >= 32 and count <= between else power


def round_up_columns(columns: int) -> int:
    """Multiples of COLUMNS, above 2,048 of four times as many."""
    step = COLUMN_MULTIPLE if columns <= 8 * COLUMN_MULTIPLE else 4 * COLUMN_MULTIPLE
    return -(-columns // step) * step

_FIELDS = ("tokens", "numbers", "depths", "offsets", "places")  # int64 (queries,)


class Inputs:
    """Static tensors of one bucket of T queries, R rows and width W, on the device.

    tokens     int64 (T,)
    numbers    int64 (T,)   row of each query
    depths     int64 (T,)   in its tree
    offsets    int64 (T,)   cache columns behind the row's own text where its key and value are written
    places     int64 (T,)   place among R x W
    lengths    int64 (R,)   tokens before the root
    starts     int64 (R,)   query of each root
    counts     int64 (R,)   queries of each row
    ancestors  bool (T, W)  as in ``Tree``

    A padding query repeats a root. In the row of a real one it is that row's root once more: the same token
    in the same place, so that what it writes is what stands there. In a row of its own (an ``even`` bucket
    with fewer rows) it writes to column 0 of a slot that holds no text.
    """

    def __init__(self, shape: Bucket, device: torch.device):
        self._shape = shape
        queries, rows = shape.queries, shape.rows
        integers = len(_FIELDS) * queries + 3 * rows
        self._host = np.zeros(8 * integers + queries * shape.width, np.uint8)
        self._device = torch.zeros(len(self._host), dtype=torch.uint8, device=device)
        ends = [queries * (i + 1) for i in range(len(_FIELDS))] + [integers - 2 * rows, integers - rows]
        split = 8 * integers
        self._arrays = np.split(self._host[:split].view(np.int64), ends)
        self._sight = self._host[split:].view(np.bool_).reshape(queries, shape.width)
        tensors = self._device[:split].view(torch.int64).tensor_split(ends)
        (self.tokens, self.numbers, self.depths, self.offsets, self.places, self.lengths, self.starts,
         self.counts) = tensors
        self.ancestors = self._device[split:].view(torch.bool).view(queries, shape.width)

    def fill(self, tree: Tree, lengths: np.ndarray) -> None:
        """Copy a forward's trees, whose tensors are on the CPU, to the device; nothing waits for it."""
        values, _, node_depths, roots = tree.host
        count, total = len(lengths), len(values)
        tokens, numbers, depths, offsets, places, before, starts, counts = self._arrays
        own = tree.rows.numpy()
        tokens[:total], tokens[total:] = values, values[0]
        numbers[:total], depths[:total], depths[total:] = own, node_depths, 0
        np.subtract(np.arange(total), roots[own], out=offsets[:total])
        offsets[total:] = 0
        np.add(own * self._shape.width, offsets[:total], out=places[:total])
        if self._shape.even:
            places[total:] = np.arange(total, len(places))
            numbers[total:] = places[total:] // self._shape.width
        else:
            places[total:] = numbers[total:] = 0
        before[:count], before[count:] = lengths, 0
        starts[:count], starts[count:] = roots[:-1], 0
        np.subtract(roots[1:], roots[:-1], out=counts[:count])
        counts[count:] = 1
        self._sight[:] = False
        self._sight[:total, : tree.width] = tree.ancestors.numpy()
        self._sight[total:, 0] = True
        self._send()

    def _send(self) -> None:
        staged = torch.from_numpy(self._host)
        if self._device.device.type == "cuda":  # a pinned copy, which is not used again before it was read
            staged = staged.pin_memory()
        self._device.copy_(staged, non_blocking=True)
