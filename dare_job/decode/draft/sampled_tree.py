"""Trees of drawn candidates, grown level by level: a node has all of its candidates, or none."""

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

MAX_TREE_NODES = 512  # nodes of a row's tree


@dataclass(frozen=True)
class TreeShape:
    """Each node on level d has ``widths[d]`` children; the root is on level 0."""

    widths: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "TreeShape":
        """``4x2x1``: four children of the root, two of each, one of each of these. Raises ConfigError."""
        if not re.fullmatch(r"[1-9]\d{0,3}(x[1-9]\d{0,3})*", text):
            raise ConfigError(f"draft tree {text!r} is no list of widths; write for example 4x2x1: four "
                              "candidates, two behind each, one behind each of those")
        shape = cls(tuple(map(int, text.split("x"))))
        if shape.nodes > MAX_TREE_NODES:
            raise ConfigError(f"draft tree {text} has {shape.nodes} nodes per row, more than "
                              f"{MAX_TREE_NODES}; use fewer or narrower levels")
        return shape

    def __str__(self) -> str:
        return "x".join(map(str, self.widths))

    @property
    def depth(self) -> int:
        return len(self.widths)

    @property
    def nodes(self) -> int:
        """Of a whole tree, its root left out."""
        return sum(accumulate(self.widths, mul))

    def require(self, budget: int, setting: str = "decode.nodes") -> None:
        """Raises ConfigError where a whole tree has more nodes than a row may have."""
        if self.nodes > budget:
            raise ConfigError(f"draft tree {self} has {self.nodes} nodes a row, more than {setting} = "
                              f"{budget}; raise that, or take a smaller tree")


class SampledTrees(NamedTuple):
    """Nodes of R rows in the order in which they were drawn.

    sizes     int64 (R,)
    tokens, parents, depths, places  int64 (R, N): parents are columns, -1 the root; places say which of the
              nodes that were read it is, -1: none
    scores    float64 (R, N): probability of the path
    columns   int32 (R, N + 1, K), asked int32 (R, N + 1), lines int32 (R, N + 1): as in ``SampledDrafts``
    counts    int64 (R,): nodes that were read
    above, below  int64 (R, M): their parents, among themselves, and depths
    """

    sizes: np.ndarray
    tokens: np.ndarray
    parents: np.ndarray
    depths: np.ndarray
    places: np.ndarray
    scores: np.ndarray
    columns: np.ndarray
    asked: np.ndarray
    lines: np.ndarray
    counts: np.ndarray
    above: np.ndarray
    below: np.ndarray

    @classmethod
    def empty(cls, rows: int, nodes: int, most: int) -> "SampledTrees":
        """most: K."""
        sizes, counts = np.zeros((2, rows), np.int64)
        tokens, parents, depths, places, above, below = np.full((6, rows, nodes), ROOT, np.int64)
        return cls(sizes, tokens, parents, depths, places, np.zeros((rows, nodes)),
                   np.full((rows, nodes + 1, most), -1, np.int32), np.zeros((rows, nodes + 1), np.int32),
                   np.full((rows, nodes + 1), -1, np.int32), counts, above, below)

    def add(self, rows: np.ndarray, nodes: np.ndarray, tokens: np.ndarray, shares: np.ndarray,
            line: int) -> None:
        """Candidates of nodes (T,), the root being 0, of rows (T,), whose q stands from this line on.

        tokens int64 (T, K) in the order drawn, -1 for none; shares (T, K): their probabilities there
        """
        _add(rows, nodes, tokens, shares, line, *self)

    def next_level(self, lengths: np.ndarray, depth: int, width: int, deepest: np.ndarray,
                   budgets: np.ndarray) -> tuple[Level, np.ndarray] | None:
        """The nodes at ``depth`` that get ``width`` candidates each, while the budget lasts, the likeliest
        first; None: there are none. Their candidates have no part in the choice, so no law changes.

        Returns what is to be read, and row and node of each: int64 (2, T).
        """
        return select_level(
            self, lengths, lambda *level: _choose(depth, width, deepest, budgets, *level, *self))

    def paths(self, rows: np.ndarray, nodes: np.ndarray, width: int) -> np.ndarray:
        """Tokens int64 (T, width) from behind the text to each of nodes (T,) of rows (T,); -1 behind it."""
        found = np.full((len(rows), width), -1, np.int64)
        _walk(rows, nodes, found, self.tokens, self.parents, self.depths)
        return found

    @property
    def used(self) -> int:
        """Nodes of the row that has most."""
        return int(self.sizes.max(initial=0))

    def drafts(self) -> DraftBatch:
        return draft_batch(self, self.parents[:, : self.used])


@numba.njit(cache=True)
def _add(rows, nodes, new_tokens, shares, line, sizes, tokens, parents, depths, places, scores, columns,
         asked, lines, counts, above, below):
    for t in range(len(rows)):
        r, node = rows[t], nodes[t]
        first = sizes[r]
        reach, depth = (scores[r, node - 1], depths[r, node - 1] + 1) if node > 0 else (1.0, 1)
        asked[r, node], lines[r, node] = new_tokens.shape[1], line + t
        for k in range(new_tokens.shape[1]):
            token = new_tokens[t, k]
            if token < 0:
                continue
            at = first  # drawn before, or a new one
            while at < sizes[r] and tokens[r, at] != token:
                at += 1
            columns[r, node, k] = at
            if at == sizes[r]:
                tokens[r, at], parents[r, at], depths[r, at] = token, node - 1, depth
                scores[r, at] = reach * shares[t, k]
                sizes[r] += 1


@numba.njit(cache=True)
def _choose(depth, width, deepest, budgets, level_tokens, starts, whose, sizes, tokens, parents, depths,
            places, scores, columns, asked, lines, counts, above, below):
    total = 0
    for r in range(len(sizes)):
        starts[r] = total
        room = (budgets[r] - sizes[r]) // width if depth < deepest[r] else 0
        at = np.flatnonzero(depths[r, : sizes[r]] == depth)
        if room < len(at):
            at = np.sort(at[np.argsort(-scores[r, at], kind="mergesort")[: max(0, room)]])
        for i in at:
            place = counts[r]
            counts[r] += 1
            places[r, i], below[r, place] = place, depth
            above[r, place] = places[r, parents[r, i]] if parents[r, i] >= 0 else -1
            level_tokens[total], whose[0, total], whose[1, total] = tokens[r, i], r, i + 1
            total += 1
    starts[len(sizes)] = total


@numba.njit(cache=True)
def _walk(rows, nodes, found, tokens, parents, depths):
    for t in range(len(rows)):
        r, i = rows[t], nodes[t] - 1
        while i >= 0:
            found[t, depths[r, i] - 1] = tokens[r, i]
            i = parents[r, i]
