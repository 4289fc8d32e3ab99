"""Draft trees of sampled candidates, grown level by level: a node gets all of its candidates or none."""

import re
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import NamedTuple

import numba
import numpy as np

from dare_job.decode.draft.greedy_tree import draft_batch, select_level
from dare_job.decode.model.masks import Level
from dare_job.errors import ConfigError
from pools.tree import ROOT, DraftBatch

MAX_TREE_NODES = 512  # per row


@dataclass(frozen=True)
class TreeShape:
    """Shape of a draft tree: each node on level d has ``widths[d]`` children; the root is on level 0."""

    widths: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "TreeShape":
        """Parse a shape such as ``4x2x1``: four children of the root, two of each, one of each of those.

        Raises
        ------
        ConfigError
            The text is not a list of widths, or the tree has more than ``MAX_TREE_NODES`` nodes.
        """
        if not re.fullmatch(r"[1-9]\d{0,3}(x[1-9]\d{0,3})*", text):
            raise ConfigError(f"draft tree {text!r} is not a list of widths; use for example 4x2x1: four "
                              "children of the root, two of each of them, one of each of those")
        shape = cls(tuple(map(int, text.split("x"))))
        if shape.nodes > MAX_TREE_NODES:
            raise ConfigError(f"draft tree {text} has {shape.nodes} nodes per row, more than "
                              f"{MAX_TREE_NODES}; use fewer or narrower levels")
        return shape

    def __str__(self) -> str:
        return "x".join(map(str, self.widths))

    @property
    def depth(self) -> int:
        """Number of levels below the root."""
        return len(self.widths)

    @property
    def nodes(self) -> int:
        """Number of nodes of a complete tree, without the root."""
        return sum(accumulate(self.widths, mul))

    def require(self, budget: int, setting: str = "decode.nodes") -> None:
        """Check the size of a complete tree. ``budget`` is the value of ``setting``.

        Raises
        ------
        ConfigError
            The tree has more than ``budget`` nodes.
        """
        if self.nodes > budget:
            raise ConfigError(f"draft tree {self} has {self.nodes} nodes per row, more than {setting} = "
                              f"{budget}; increase {setting} or use a smaller tree")


class SampledTrees(NamedTuple):
    """Nodes of R rows in the order in which they were sampled.

    Attributes
    ----------
    sizes : int64 (R,)
        Number of nodes.
    tokens, depths : int64 (R, N)
    parents : int64 (R, N)
        Column of the parent; -1: the root.
    read_index : int64 (R, N)
        Number of the node among those that the draft model has read; -1: not read.
    scores : float64 (R, N)
        Probability of the path.
    columns, requested, q_rows
        As in ``SampledDrafts``.
    read_counts : int64 (R,)
        Number of nodes that were read.
    read_parents, read_depths : int64 (R, N)
        Of the nodes that were read; parents are numbers among them.
    """

    sizes: np.ndarray
    tokens: np.ndarray
    parents: np.ndarray
    depths: np.ndarray
    read_index: np.ndarray
    scores: np.ndarray
    columns: np.ndarray
    requested: np.ndarray
    q_rows: np.ndarray
    read_counts: np.ndarray
    read_parents: np.ndarray
    read_depths: np.ndarray

    @classmethod
    def empty(cls, rows: int, nodes: int, max_width: int) -> "SampledTrees":
        """Empty trees of R rows with capacity for N nodes and K = ``max_width`` candidates per node."""
        sizes, read_counts = np.zeros((2, rows), np.int64)
        tokens, parents, depths, read_index, read_parents, read_depths = np.full((6, rows, nodes), ROOT,
                                                                                 np.int64)
        return cls(sizes, tokens, parents, depths, read_index, np.zeros((rows, nodes)),
                   np.full((rows, nodes + 1, max_width), -1, np.int32), np.zeros((rows, nodes + 1), np.int32),
                   np.full((rows, nodes + 1), -1, np.int32), read_counts, read_parents, read_depths)

    def add(self, rows: np.ndarray, nodes: np.ndarray, tokens: np.ndarray, probabilities: np.ndarray,
            q_row: int) -> None:
        """Add the candidates of nodes.

        Parameters
        ----------
        rows, nodes : int64 (T,)
            Row and number of each node; the root is node 0.
        tokens : int64 (T, K)
            Candidates in sampling order; -1: none.
        probabilities : (T, K)
            Probability of each candidate given the node.
        q_row
            Row of q of the first node; the others follow.
        """
        _add(rows, nodes, tokens, probabilities, q_row, *self)

    def next_level(self, lengths: np.ndarray, depth: int, width: int, max_depths: np.ndarray,
                   budgets: np.ndarray) -> tuple[Level, np.ndarray] | None:
        """Select the nodes at ``depth`` that get ``width`` candidates each, as in ``select_level``.

        The most probable nodes come first, until the budget is spent. Their own candidates are not sampled
        yet and cannot influence the selection, which keeps the output distribution exact.

        Parameters
        ----------
        lengths, max_depths, budgets : int (R,)
            Tokens of each row's text, and the maximum depth and number of nodes of its tree.
        """
        return select_level(
            self, lengths, lambda *level: _select(depth, width, max_depths, budgets, *level, *self))

    def paths(self, rows: np.ndarray, nodes: np.ndarray, width: int) -> np.ndarray:
        """Tokens int64 (T, width) on the paths from the text to nodes (T,) of rows (T,); -1 after the last.
        """
        paths = np.full((len(rows), width), -1, np.int64)
        _fill_paths(rows, nodes, paths, self.tokens, self.parents, self.depths)
        return paths

    @property
    def max_size(self) -> int:
        """Number of nodes of the largest tree."""
        return int(self.sizes.max(initial=0))

    def drafts(self) -> DraftBatch:
        """The trees as a draft, padded to the largest."""
        return draft_batch(self, self.parents[:, : self.max_size])


@numba.njit(cache=True)
def _add(rows, nodes, new_tokens, probabilities, q_row, sizes, tokens, parents, depths, read_index, scores,
         columns, requested, q_rows, read_counts, read_parents, read_depths):
    for t in range(len(rows)):
        r, node = rows[t], nodes[t]
        first = sizes[r]
        path_score, depth = (scores[r, node - 1], depths[r, node - 1] + 1) if node > 0 else (1.0, 1)
        requested[r, node], q_rows[r, node] = new_tokens.shape[1], q_row + t
        for k in range(new_tokens.shape[1]):
            token = new_tokens[t, k]
            if token < 0:
                continue
            at = first  # the column of an equal sibling, or a new one
            while at < sizes[r] and tokens[r, at] != token:
                at += 1
            columns[r, node, k] = at
            if at == sizes[r]:
                tokens[r, at], parents[r, at], depths[r, at] = token, node - 1, depth
                scores[r, at] = path_score * probabilities[t, k]
                sizes[r] += 1


@numba.njit(cache=True)
def _select(depth, width, max_depths, budgets, level_tokens, starts, owners, sizes, tokens, parents, depths,
            read_index, scores, columns, requested, q_rows, read_counts, read_parents, read_depths):
    total = 0
    for r in range(len(sizes)):
        starts[r] = total
        capacity = (budgets[r] - sizes[r]) // width if depth < max_depths[r] else 0
        at = np.flatnonzero(depths[r, : sizes[r]] == depth)
        if capacity < len(at):
            at = np.sort(at[np.argsort(-scores[r, at], kind="mergesort")[: max(0, capacity)]])
        for i in at:
            node = read_counts[r]
            read_counts[r] += 1
            read_index[r, i], read_depths[r, node] = node, depth
            read_parents[r, node] = read_index[r, parents[r, i]] if parents[r, i] >= 0 else -1
            level_tokens[total], owners[0, total], owners[1, total] = tokens[r, i], r, i + 1
            total += 1
    starts[len(sizes)] = total


@numba.njit(cache=True)
def _fill_paths(rows, nodes, paths, tokens, parents, depths):
    for t in range(len(rows)):
        r, i = rows[t], nodes[t] - 1
        while i >= 0:
            paths[t, depths[r, i] - 1] = tokens[r, i]
            i = parents[r, i]
