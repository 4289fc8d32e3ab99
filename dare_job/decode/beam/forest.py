"""Rows' beams as one forest a row: what all beams share is text, read once, and the rest nodes behind it.

A beam is a path of nodes, so that beams with a common beginning share its keys and values, and one forward
reads all beams and all drafts behind them. Node i of a row stands in cache column ``length + i`` and parents
stand before their children, in the caches of the target and of the draft model alike: the draft model may
have read fewer of them, ``read``.
"""

import numba
import numpy as np

from dare_job.decode.model.masks import Level

TEXT = -1  # parent of a node directly behind the text


class Forest:
    """tokens, parents, depths  int64 (S, C) by slot; a depth of 1 is directly behind the text
    counts  int64 (S,): nodes; read: those that the draft model's cache holds
    """

    def __init__(self, slots: int):
        self.tokens, self.parents, self.depths = np.zeros((3, slots, 0), np.int64)
        self.counts, self.read = np.zeros((2, slots), np.int64)

    def clear(self, slot: int) -> None:
        self.counts[slot] = self.read[slot] = 0

    def move(self, source: int, target: int) -> None:
        for one in (self.tokens, self.parents, self.depths, self.counts, self.read):
            one[target] = one[source]

    def reserve(self, nodes: int) -> None:
        """Make room for so many nodes of each row."""
        lacking = nodes - self.tokens.shape[1]
        if lacking > 0:
            more = ((0, 0), (0, lacking + 32))
            self.tokens, self.parents, self.depths = (
                np.pad(one, more) for one in (self.tokens, self.parents, self.depths))

    def add(self, parents: np.ndarray, tokens: np.ndarray, there: np.ndarray) -> np.ndarray:
        """Nodes of beams (R, B) where they are ``there``; beams of one text share one. Returns ids (R, B)."""
        self.reserve(int(self.counts[: len(parents)].max(initial=0)) + parents.shape[1])
        ids = np.zeros(parents.shape, np.int64)
        _add(parents, tokens, there, self.tokens, self.parents, self.depths, self.counts, ids)
        return ids

    def level(self, lengths: np.ndarray, first: np.ndarray, last: int) -> Level | None:
        """Nodes from ``first`` (R,) on, to be read; None: there are none. Token ids are at most ``last``."""
        counts = self.counts[: len(lengths)] - first
        starts = np.concatenate(([0], np.cumsum(counts)))
        if not starts[-1]:
            return None
        rows = np.repeat(np.arange(len(lengths)), counts)
        places = np.arange(starts[-1]) - np.repeat(starts[:-1] - first, counts)
        tokens = np.minimum(self.tokens[rows, places], last)
        return Level(tokens, starts, lengths.astype(np.int64), first.copy(), self.parents[: len(lengths)],
                     self.depths[: len(lengths)])

    def path(self, slot: int, node: int) -> np.ndarray:
        """Tokens int64 from behind the text up to a node; ``TEXT``: none."""
        found = []
        while node >= 0:
            found.append(self.tokens[slot, node])
            node = self.parents[slot, node]
        return np.array(found[::-1], np.int64)

    def prune(self, above: np.ndarray, there: np.ndarray, drafted: np.ndarray) -> "Pruned":
        """Drop what is no ancestor of beams (R, W), given by their parents; what all share becomes text.

        drafted bool (R,): text must have been read by the draft model, too. ``above`` is renumbered in place.
        """
        rows, columns = above.shape[0], self.tokens.shape[1]
        paths = np.zeros((rows, columns + 1), np.int64)
        counts, of_draft, shared = np.zeros((3, rows), np.int64)
        text = np.zeros((rows, columns), np.int64)
        _prune(above, there, drafted, self.tokens, self.parents, self.depths, self.counts, self.read, paths,
               counts, of_draft, shared, text)
        used = int(counts.max(initial=0))
        return Pruned(np.ascontiguousarray(paths[:, : used + 1]), counts, of_draft, text, shared)


class Pruned:
    """paths int64 (R, 1 + K) and counts (R,) for ``Target.commit``, of which the draft model's cache has
    of_draft (R,); text int64 (R, C) and shared (R,): tokens that are text now.
    """

    def __init__(self, paths, counts, of_draft, text, shared):
        self.paths, self.counts, self.of_draft, self.text, self.shared = paths, counts, of_draft, text, shared


@numba.njit(cache=True)
def _add(new_parents, new_tokens, there, tokens, parents, depths, counts, ids):
    for r in range(len(new_parents)):
        first = counts[r]
        for b in range(new_parents.shape[1]):
            if not there[r, b]:
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
def _prune(above, there, drafted, tokens, parents, depths, counts, read, paths, kept, of_draft, shared, text):
    uses, places = np.zeros(tokens.shape[1], np.int64), np.zeros(tokens.shape[1], np.int64)
    for r in range(len(above)):
        uses[: counts[r]] = 0
        beams = 0
        for b in range(above.shape[1]):
            if there[r, b]:
                beams += 1
                node = above[r, b]
                while node >= 0:
                    uses[node] += 1
                    node = parents[r, node]
        count, common = 0, 0
        for node in range(counts[r]):
            if uses[node] == 0:
                continue
            whole = count == common and uses[node] == beams and (node < read[r] or not drafted[r])
            if whole:
                text[r, common] = tokens[r, node]
                common += 1
            of_draft[r] += node < read[r]
            count += 1
            paths[r, count] = node + 1
            places[node] = count - 1
        for k in range(common, count):  # ascending: no node is written over before it was read
            node = paths[r, k + 1] - 1
            tokens[r, k - common], depths[r, k - common] = tokens[r, node], depths[r, node] - common
            up = parents[r, node]
            parents[r, k - common] = places[up] - common if up >= 0 else up
        for b in range(above.shape[1]):
            if there[r, b] and above[r, b] >= 0:
                above[r, b] = places[above[r, b]] - common
        kept[r], shared[r] = count, common
        counts[r], read[r] = count - common, max(0, of_draft[r] - common)
