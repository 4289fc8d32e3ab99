"""The beams of a row as a forest: what all beams share is text and read once; the rest are nodes after it.

A beam is a path of nodes, so beams with a common prefix share its keys and values, and one forward pass reads
all beams and all drafts after them. Node i of a row is in cache column ``length + i``, and parents precede
their children, in the caches of target and draft model alike. The draft model may have read fewer nodes
(``read``).
"""

from typing import NamedTuple

import numba
import numpy as np

from dare_job.decode.model.masks import Level

TEXT = -1  # parent of a node directly after the text


class Forest:
    """The forests of all slots.

    Attributes
    ----------
    tokens, parents, depths : int64 (S, C)
        Depth 1 is directly after the text.
    counts : int64 (S,)
        Number of nodes.
    read : int64 (S,)
        Number of nodes in the draft model's cache.
    """

    def __init__(self, slots: int):
        self.tokens, self.parents, self.depths = np.zeros((3, slots, 0), np.int64)
        self.counts, self.read = np.zeros((2, slots), np.int64)

    def clear(self, slot: int) -> None:
        """Remove all nodes of a slot."""
        self.counts[slot] = self.read[slot] = 0

    def move(self, source: int, target: int) -> None:
        """Copy the forest of one slot to another."""
        for array in (self.tokens, self.parents, self.depths, self.counts, self.read):
            array[target] = array[source]

    def reserve(self, nodes: int) -> None:
        """Ensure capacity for this many nodes per row."""
        missing = nodes - self.tokens.shape[1]
        if missing > 0:
            more = ((0, 0), (0, missing + 32))
            self.tokens, self.parents, self.depths = (
                np.pad(array, more) for array in (self.tokens, self.parents, self.depths))

    def add(self, parents: np.ndarray, tokens: np.ndarray, present: np.ndarray) -> np.ndarray:
        """Add nodes for the beams (R, B) that are ``present``; equal beams share a node. Returns node ids (R,
        B).
        """
        self.reserve(int(self.counts[: len(parents)].max(initial=0)) + parents.shape[1])
        ids = np.zeros(parents.shape, np.int64)
        _add(parents, tokens, present, self.tokens, self.parents, self.depths, self.counts, ids)
        return ids

    def level(self, lengths: np.ndarray, first: np.ndarray, max_token: int) -> Level | None:
        """Return the nodes from ``first`` (R,) on for one forward pass, or None if there are none; token ids
        are clamped.
        """
        counts = self.counts[: len(lengths)] - first
        starts = np.concatenate(([0], np.cumsum(counts)))
        if not starts[-1]:
            return None
        rows = np.repeat(np.arange(len(lengths)), counts)
        places = np.arange(starts[-1]) - np.repeat(starts[:-1] - first, counts)
        tokens = np.minimum(self.tokens[rows, places], max_token)
        return Level(tokens, starts, lengths.astype(np.int64), first.copy(), self.parents[: len(lengths)],
                     self.depths[: len(lengths)])

    def path(self, slot: int, node: int) -> np.ndarray:
        """Return the tokens int64 (depth,) from the end of the text to a node, empty for ``TEXT``."""
        tokens = []
        while node >= 0:
            tokens.append(self.tokens[slot, node])
            node = self.parents[slot, node]
        return np.array(tokens[::-1], np.int64)

    def prune(self, beam_parents: np.ndarray, present: np.ndarray, drafted: np.ndarray) -> "Pruned":
        """Drop nodes that are no ancestors of the beams (R, W); nodes that all beams share become text.

        Parameters
        ----------
        beam_parents : (R, W)
            Parent nodes of the beams; renumbered in place.
        present : bool (R, W)
            Which beams exist.
        drafted : bool (R,)
            Rows whose text must also have been read by the draft model.
        """
        rows, columns = beam_parents.shape[0], self.tokens.shape[1]
        paths = np.zeros((rows, columns + 1), np.int64)
        counts, of_draft, shared = np.zeros((3, rows), np.int64)
        text = np.zeros((rows, columns), np.int64)
        _prune(beam_parents, present, drafted, self.tokens, self.parents, self.depths, self.counts, self.read,
               paths, counts, of_draft, shared, text)
        used = int(counts.max(initial=0))
        return Pruned(np.ascontiguousarray(paths[:, : used + 1]), counts, of_draft, text, shared)


class Pruned(NamedTuple):
    """Result of ``Forest.prune``.

    Attributes
    ----------
    paths, counts : int64 (R, 1 + K) and (R,)
        Arguments of ``Target.commit``.
    of_draft : int64 (R,)
        How many of the kept nodes the draft model's cache holds.
    text, shared : int64 (R, C) and (R,)
        Tokens that became text and their number.
    """

    paths: np.ndarray
    counts: np.ndarray
    of_draft: np.ndarray
    text: np.ndarray
    shared: np.ndarray


@numba.njit(cache=True)
def _add(new_parents, new_tokens, present, tokens, parents, depths, counts, ids):
    for r in range(len(new_parents)):
        first = counts[r]
        for b in range(new_parents.shape[1]):
            if not present[r, b]:
                continue
            parent, token, at = new_parents[r, b], new_tokens[r, b], first
            while at < counts[r] and (parents[r, at] != parent or tokens[r, at] != token):
                at += 1
            if at == counts[r]:
                tokens[r, at], parents[r, at] = token, parent
                depths[r, at] = 1 + (depths[r, parent] if parent >= 0 else 0)
                counts[r] += 1
            ids[r, b] = at


@numba.njit(cache=True)
def _prune(beam_parents, present, drafted, tokens, parents, depths, counts, read, paths, kept_counts,
           of_draft, shared, text):
    uses, places = np.zeros(tokens.shape[1], np.int64), np.zeros(tokens.shape[1], np.int64)
    for r in range(len(beam_parents)):
        uses[: counts[r]] = 0
        beams = 0
        for b in range(beam_parents.shape[1]):
            if present[r, b]:
                beams += 1
                node = beam_parents[r, b]
                while node >= 0:
                    uses[node] += 1
                    node = parents[r, node]
        count, shared_count = 0, 0
        for node in range(counts[r]):
            if uses[node] == 0:
                continue
            is_shared = count == shared_count and uses[node] == beams and (node < read[r] or not drafted[r])
            if is_shared:
                text[r, shared_count] = tokens[r, node]
                shared_count += 1
            of_draft[r] += node < read[r]
            count += 1
            paths[r, count] = node + 1
            places[node] = count - 1
        for k in range(shared_count, count):  # ascending, so that no node is overwritten before it is read
            node = paths[r, k + 1] - 1
            tokens[r, k - shared_count] = tokens[r, node]
            depths[r, k - shared_count] = depths[r, node] - shared_count
            parent = parents[r, node]
            parents[r, k - shared_count] = places[parent] - shared_count if parent >= 0 else parent
        for b in range(beam_parents.shape[1]):
            if present[r, b] and beam_parents[r, b] >= 0:
                beam_parents[r, b] = places[beam_parents[r, b]] - shared_count
        kept_counts[r], shared[r] = count, shared_count
        counts[r], read[r] = count - shared_count, max(0, of_draft[r] - shared_count)
