"""The repetition penalty in compiled code, for a CPU: of the nodes that a branch reaches, of no others."""

from typing import NamedTuple

import numba
import numpy as np


class PenaltyContext(NamedTuple):
    """What the penalty needs to know of R rows.

    context  int32 (R, L)    text so far, padded on the right
    lengths  int64 (R,)      tokens of it, the tree's root included
    stamps   int64 (V + 1,)  kept between calls: when a token was last seen, and the last time of all
    penalty  float           1: none
    """

    context: np.ndarray
    lengths: np.ndarray
    stamps: np.ndarray
    penalty: float


NO_PENALTY = PenaltyContext(np.zeros((0, 0), np.int32), np.zeros(0, np.int64), np.zeros(1, np.int64), 1.0)


@numba.njit
def distinct_tokens(row, vocabulary, seen):
    """Tokens int32 (n,) of a row's text, each once; those that cannot be written (the embedding may hold
    more) are left out.
    """
    if seen.penalty == 1.0:
        return np.empty(0, np.int32)
    text, stamps, count = seen.context[row, : seen.lengths[row]], seen.stamps, 0
    found = np.empty(len(text), np.int32)
    stamps[-1] += 1
    now = stamps[-1]
    for token in text:
        if token < vocabulary and stamps[token] != now:
            stamps[token] = now
            found[count] = token
            count += 1
    return found[:count]


@numba.njit
def penalise_scores(line, known, root, node, tokens, parents, seen):
    """Scores float32 (V,) of a node in place: every token of its prefix once, as ``generate`` has it.

    known: ``distinct`` tokens of its row, the last that were asked for.
    """
    if seen.penalty == 1.0:
        return
    penalty, now = np.float32(seen.penalty), seen.stamps[-1]
    for token in known:
        line[token] = penalised_score(line[token], penalty)
    here = node
    while here != root:
        token, below, new = tokens[here], node, True
        while below != here:
            new &= tokens[below] != token
            below = parents[below]
        if new and token < len(line) and seen.stamps[token] != now:
            line[token] = penalised_score(line[token], penalty)
        here = parents[here]


@numba.njit
def on_path(wanted, root, node, tokens, parents):
    """Whether a token stands on the way from a node up to the root, which is left out."""
    while node != root:
        if tokens[node] == wanted:
            return True
        node = parents[node]
    return False


@numba.njit
def penalised_score(score, penalty):
    return score * penalty if score < 0 else score / penalty
