"""Which codes may follow which prefix of an id, as tables that a batch of beams is looked up in."""

from dataclasses import dataclass

import numpy as np
import torch

from dare_job.recommend.ids.item_ids import ItemIds


@dataclass(frozen=True)
class CodeTable:
    """children, one a level: int64 (prefixes of the level, codes): the prefix that a code leads to, -1: none.

    The empty prefix is number 0 of level 0; those behind the last level are numbers of whole ids: ``owners``
    gives the item rows of each, the most popular first.
    """

    children: tuple[torch.Tensor, ...]
    owners: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, ids: ItemIds, popularity: np.ndarray | None = None) -> "CodeTable":
        """popularity  int (N): items that share an id come in this order, ties and None by row."""
        times = np.zeros(len(ids.items), np.int64) if popularity is None else popularity
        numbers, children = np.zeros(len(ids.items), np.int64), []
        for level, size in enumerate(ids.sizes):
            found, numbers = np.unique(numbers * size + ids.codes[:, level], return_inverse=True)
            table = np.full((int(found[-1] // size) + 1, size), -1, np.int64)
            table[found // size, found % size] = np.arange(len(found))
            children.append(torch.from_numpy(table))
        owners: list[list[int]] = [[] for _ in range(int(numbers.max()) + 1)]
        for row in np.lexsort((np.arange(len(times)), -times)):
            owners[numbers[row]].append(int(row))
        return cls(tuple(children), tuple(map(tuple, owners)))

    def to(self, device) -> "CodeTable":
        return CodeTable(tuple(table.to(device) for table in self.children), self.owners)
