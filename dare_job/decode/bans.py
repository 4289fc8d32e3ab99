"""Tokens that ``no_repeat_ngram_size`` forbids behind the nodes of trees, in compiled code."""

import numba
import numpy as np

from dare_job.decode.tree import Tree


def bans(tree: Tree, context: np.ndarray, lengths: np.ndarray, size: int,
         vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and tokens int64 (B,): the token would end a run of ``size`` tokens that is in the node's prefix.

    context int32 (R, L) text padded on the right, lengths (R,) with the root. Source:
    ``NoRepeatNGramLogitsProcessor`` of transformers.
    """
    tokens, parents, depths, starts = tree.host
    room = np.empty((2, 4 * len(tree)), np.int64)
    while True:
        found = _bans(tokens, parents, depths, starts, context, lengths, size, vocabulary, room)
        if found <= room.shape[1]:
            return room[0, :found], room[1, :found]
        room = np.empty((2, found), np.int64)


@numba.njit(cache=True)
def _bans(tokens, parents, depths, starts, context, lengths, size, vocabulary, out):
    """Fill ``out`` as far as it reaches; how many there are."""
    found, widest = 0, lengths.max() + depths.max()
    text = np.empty(widest, np.int64)
    chain = np.empty(widest, np.int64)  # place before with the same token; -1: none
    last = np.full(max(context.max(), tokens.max()) + 1, -1)
    for r in range(len(starts) - 1):
        length = lengths[r]
        for i in range(length):
            text[i] = context[r, i]
            chain[i], last[text[i]] = last[text[i]], i
        for t in range(starts[r], starts[r + 1]):
            whole, node = length + depths[t], t
            for i in range(whole - 1, length - 1, -1):
                text[i], node = tokens[node], parents[node]
            at = last[text[whole - 1]] if size > 1 else length - 1  # in the row's text
            while at >= 0:
                if at < whole - 1 or size == 1:
                    found = _ban(text, whole, at, size, vocabulary, t, out, found)
                at = chain[at] if size > 1 else at - 1
            for at in range(length, whole if size == 1 else whole - 1):
                found = _ban(text, whole, at, size, vocabulary, t, out, found)
        for i in range(length):
            last[text[i]] = -1
    return found


@numba.njit
def _ban(text, whole, at, size, vocabulary, node, out, found):
    """Ban what stands behind place ``at`` where the run that ends there is the one that ends the prefix; of
    runs of one token the token itself.
    """
    if size == 1:
        token = text[at]
    else:
        for i in range(size - 1):
            if at - i < 0 or text[at - i] != text[whole - 1 - i]:
                return found
        token = text[at + 1]
    if token >= vocabulary:
        return found
    if found < out.shape[1]:
        out[0, found], out[1, found] = node, token
    return found + 1
