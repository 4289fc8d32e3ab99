"""What the caches of a way of writing hold, as its own forwards find and leave them."""

from dataclasses import dataclass

import numpy as np
import torch

from dare_job.decode import Target
from dare_job.decode.cache import TreeCache
from dare_job.decode.levels import Level
from dare_job.decode.tree import Tree


@dataclass(frozen=True)
class Memory:
    """Most of any row of a run, in cache columns (a token each), and bytes.

    columns, draft_columns  text, nodes and what a forward adds, of the target's cache and the draft model's
    nodes         behind the text in the target's cache during a forward
    kept          of these, between forwards: what is held beside one text
    bytes         of ``columns`` and ``draft_columns``: keys and values of all layers
    """

    columns: int = 0
    draft_columns: int = 0
    nodes: int = 0
    kept: int = 0
    bytes: int = 0


class Watched(Target):
    """A model, shared with the one given, that notes what a row's cache holds in each forward over trees.

    columns, nodes, kept  as in ``Memory``, so far; bytes: of a column
    """

    def __init__(self, target: Target):
        self.__dict__.update(vars(target))
        self.columns = self.nodes = self.kept = self.bytes = 0

    def extend(self, cache: TreeCache, level: Level, wanted: np.ndarray | None = None) -> torch.Tensor:
        self._note(cache, level.lengths, level.first, level.starts)
        return super().extend(cache, level, wanted)

    def forward(self, cache: TreeCache, tree: Tree, lengths: np.ndarray) -> torch.Tensor:
        self._note(cache, lengths, np.zeros_like(lengths), tree.starts)
        return super().forward(cache, tree, lengths)

    def _note(self, cache: TreeCache, texts: np.ndarray, kept: np.ndarray, starts: np.ndarray) -> None:
        nodes = kept + np.diff(starts)
        self.columns = max(self.columns, int((texts + nodes).max()))
        self.nodes = max(self.nodes, int(nodes.max()))
        self.kept = max(self.kept, int(kept.max()))
        self.bytes = cache.column_bytes


def memory(target: Watched, draft: Watched | None) -> Memory:
    """Of a run by these models, which were new to it."""
    drafted = (draft.columns, draft.columns * draft.bytes) if draft else (0, 0)
    return Memory(target.columns, drafted[0], target.nodes, target.kept,
                  target.columns * target.bytes + drafted[1])
