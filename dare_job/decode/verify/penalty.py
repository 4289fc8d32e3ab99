"""Repetition penalty in compiled code for CPUs, applied only to nodes that verification visits."""

from typing import NamedTuple

import numba
import numpy as np


class PenaltyContext(NamedTuple):
    """Text and repetition penalty of R rows.

    Attributes
    ----------
    context : int32 (R, L)
        Text so far, padded on the right.
    lengths : int64 (R,)
        Tokens of the text, including the tree's root.
    stamps : int64 (V + 1,)
        Memory kept between calls: the time at which each token was last marked, then the current time.
    penalty : float
        1: no penalty.
    """

    context: np.ndarray
    lengths: np.ndarray
    stamps: np.ndarray
    penalty: float


NO_PENALTY = PenaltyContext(np.zeros((0, 0), np.int32), np.zeros(0, np.int64), np.zeros(1, np.int64), 1.0)


@numba.njit
def distinct_tokens(row, vocabulary, context):
    """Mark and return the distinct tokens int32 (n,) of a row's text.

    Tokens without a logit are left out: the embedding may be larger than the output head.
    """
    if context.penalty == 1.0:
        return np.empty(0, np.int32)
    text, stamps, count = context.context[row, : context.lengths[row]], context.stamps, 0
    distinct = np.empty(len(text), np.int32)
    stamps[-1] += 1
    now = stamps[-1]
    for token in text:
        if token < vocabulary and stamps[token] != now:
            stamps[token] = now
            distinct[count] = token
            count += 1
    return distinct[:count]


@numba.njit
def penalize_scores(line, text_tokens, root, node, tokens, parents, context):
    """Penalize the scores float32 (V,) of a node in place: each token of its prefix once, as ``generate``.

    Parameters
    ----------
    text_tokens
        ``distinct_tokens`` of the node's row, which must be the latest such call.
    """
    if context.penalty == 1.0:
        return
    penalty, now = np.float32(context.penalty), context.stamps[-1]
    for token in text_tokens:
        line[token] = penalized_score(line[token], penalty)
    ancestor = node
    while ancestor != root:
        token, below, new = tokens[ancestor], node, True
        while below != ancestor:
            new &= tokens[below] != token
            below = parents[below]
        if new and token < len(line) and context.stamps[token] != now:
            line[token] = penalized_score(line[token], penalty)
        ancestor = parents[ancestor]


@numba.njit
def on_path(wanted, root, node, tokens, parents):
    """Return whether a token is on the path from below the root to a node."""
    while node != root:
        if tokens[node] == wanted:
            return True
        node = parents[node]
    return False


@numba.njit
def penalized_score(score, penalty):
    """Return the score of a token that has occurred: divided by the penalty if positive, else multiplied."""
    return score * penalty if score < 0 else score / penalty
