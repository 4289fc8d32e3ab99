"""The retrieval rule published for DARE, on the same index: the baseline of the blend.

The longest context of at most ``LONGEST`` tokens that occurs is the anchor. The tree holds the most frequent
nodes that follow it, at any depth. If an anchor gives fewer than ``SUBSTANTIAL`` of the requested nodes, the
next shorter one is used instead. Context orders and sources are not mixed. (Xi et al., "A Decoding
Acceleration Framework for Industrial Deployable LLM-based Recommender Systems", section 3.3.)
"""

import numpy as np

from pools import frontier
from pools.index import Index
from pools.intervals import locate
from pools.jit import compiled, helper
from pools.lookup import DEPTH, code_at, code_of, narrow, run, token_of
from pools.tree import ROOT

LONGEST = 2
SUBSTANTIAL = 1.0
_i32, _i64, _f64, _u8 = np.int32, np.int64, np.float64, np.uint8


class FrequencyDrafter:
    """Draft trees of at most ``nodes`` nodes and ``depth`` levels from one index."""

    def __init__(self, index: Index, nodes: int, depth: int = 12, longest: int = LONGEST):
        self._index, self._depth, self._longest, self.nodes = index, depth, longest, nodes
        n = nodes + 1
        self._scratch = [np.zeros(n, kind) for kind in (_i32, _f64, _i32, _i32, _u8, _i32, _i32)]
        self._addresses = np.array([array.ctypes.data for array in self._scratch], _i64)
        self._low, self._count, self._level = np.zeros(n, _i64), np.zeros(n, _i64), np.zeros(n, _i64)
        self._tokens, self._parents = np.zeros(nodes, _i32), np.zeros(nodes, _i32)

    def __call__(self, text: np.ndarray, known: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and parents, int32 (n,) each, of the tree after ``text[:known]``; valid until the next call.
        """
        size = _grow(self._index.addresses, np.ascontiguousarray(text[max(0, known - self._longest):known]),
                     self._addresses, self.nodes, self._depth, int(self.nodes * SUBSTANTIAL), self._low,
                     self._count, self._level, self._tokens, self._parents)
        return self._tokens[:size], self._parents[:size]


@compiled
def _grow(a, history, addresses, nodes, depth, min_nodes, lows, counts, levels, tokens, parents):
    codes = np.zeros(history.size, np.int64)
    known = 0
    while known < history.size:
        codes[known] = code_of(a, history[history.size - 1 - known])
        if codes[known] == 0:
            break
        known += 1
    size = 0
    for n in range(known, 0, -1):
        low, count = locate(a, codes, n)
        if count > 0:
            size = _tree(a, low, count, n, addresses, nodes, min(depth, a[DEPTH] - n), lows, counts, levels,
                         tokens, parents)
            if size >= min_nodes:
                break
    return size


@helper
def _tree(a, low, count, anchor, addresses, nodes, depth, lows, counts, levels, tokens, parents):
    """Fill the most frequent continuations of an interval. The interval of node i is stored at i + 1."""
    f = frontier.frontier(addresses, nodes, 1)
    head = tail = free = size = 0
    node = ROOT
    lows[0], counts[0], levels[0] = low, count, 0
    while True:
        level = levels[node + 1]
        if level < depth:
            i = lows[node + 1]
            end = i + counts[node + 1]
            while i < end:
                code = code_at(a, i, anchor + level)
                times = run(a, i, end, anchor + level, code)
                if code != 0:
                    tail, free, _ = frontier.offer(f, head, tail, free, nodes - size, float(times), node,
                                                token_of(a, code), 0)
                i += times
        if head == tail or size == nodes:
            return size
        best = f.queue[head]
        head += 1
        tokens[size], parents[size] = f.tokens[best], f.parents[best]
        parent = f.parents[best]
        at = levels[parent + 1]
        code = code_of(a, f.tokens[best])
        low, count = narrow(a, lows[parent + 1], counts[parent + 1], anchor + at, code)
        lows[size + 1], counts[size + 1], levels[size + 1] = low, count, at + 1
        node = size
        size += 1
