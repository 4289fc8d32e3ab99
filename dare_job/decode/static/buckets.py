"""Shapes that forwards are rounded up to, so that few of them serve every step."""

from dataclasses import dataclass

import numpy as np

from dare_job.decode.tree import Tree

COLUMNS = 256  # a bucket's cache columns are a multiple of this many


@dataclass(frozen=True)
class Shape:
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
    def of(cls, tree: Tree, lengths: np.ndarray, slots: int) -> "Shape":
        """The bucket of a forward; lengths (R,): tokens before the roots; slots of the cache."""
        count, total = len(lengths), len(tree.tokens)
        rows, width = min(rung(count), slots), rung(tree.width)
        places = rows * width
        even = rung(total) >= places and (count == 1 or tree.even and tree.width == width)
        columns = round_up(int(lengths.max()) + tree.width)
        return cls(rows, places if even else rung(total), width, columns, even)


def rung(count: int) -> int:
    """The next of 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, ...: from 16 on a third is padding at most."""
    power = 1 << max(0, count - 1).bit_length()
    between = power * 3 // 4
    return between if power >= 32 and count <= between else power


def round_up(columns: int) -> int:
    """Multiples of COLUMNS, above 2,048 of four times as many."""
    step = COLUMNS if columns <= 8 * COLUMNS else 4 * COLUMNS
    return -(-columns // step) * step
