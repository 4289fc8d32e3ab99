"""Verification in compiled code: from the scores on a CPU, or from a ``NodeVerification``.

On a CPU, the argmax of a node is computed only when the accepted path reaches the node.
"""

import numba
import numpy as np

from dare_job.decode.verify.penalty import distinct_tokens, on_path, penalize_scores, penalized_score
from pools.jit import array_at, cached

_BLOCK_SCORES = 256
_MIN_KEY, _INFINITY_BITS, _MAGNITUDE_MASK = np.int32(-(2**31)), np.int32(0x7F800000), np.int32(2**31 - 1)
_SIGN_SHIFT = np.int32(31)


@numba.njit
def _peak(bits):
    """Return the maximum as a sortable int32 key, and the largest magnitude, of float32 bits int32 (N,).

    Written so that the loop compiles to vector instructions.
    """
    peak, magnitude = _MIN_KEY, np.int32(0)
    for i in range(len(bits)):
        key = bits[i] ^ ((bits[i] >> _SIGN_SHIFT) & _MAGNITUDE_MASK)
        if key > peak:
            peak = key
        size = bits[i] & _MAGNITUDE_MASK
        if size > magnitude:
            magnitude = size
    return peak, magnitude


@numba.njit
def argmax(line):
    """Return the argmax of scores float32 (V,), the first of equals, and whether its score is finite.

    Nearly as fast as ``np.argmax``, which does not report the latter.
    """
    bits = line.view(np.int32)
    peak, magnitude, start_of_peak = _MIN_KEY, np.int32(0), 0
    for start in range(0, len(bits), _BLOCK_SCORES):
        block_peak, block_magnitude = _peak(bits[start : start + _BLOCK_SCORES])
        if block_peak > peak:
            peak, start_of_peak = block_peak, start
        if block_magnitude > magnitude:
            magnitude = block_magnitude
    if magnitude > _INFINITY_BITS:
        for i in range(len(line)):
            if np.isnan(line[i]):
                return i, False
    return _first_index(line, bits, peak, start_of_peak)


@numba.njit
def _first_index(line, bits, peak, start):
    """Return the first index at or after ``start`` with the score ``peak``, and whether it is finite."""
    if peak == 0:  # -0 equals it and may be in an earlier block
        start = 0
    for i in range(start, len(line)):
        if bits[i] == peak ^ ((peak >> _SIGN_SHIFT) & _MAGNITUDE_MASK) or (peak == 0 and line[i] == 0):
            return i, -_INFINITY_BITS <= peak < _INFINITY_BITS
    return 0, False


@numba.njit
def _penalized_argmax(line, peaks, text_tokens, root, node, tokens, parents, context, lowered):
    """Return ``argmax`` of a node's scores after ``penalize_scores``.

    A penalty above 1 only lowers scores, so it is applied only to tokens that would win without it.

    Parameters
    ----------
    peaks : int32 (blocks,)
        Work memory for the maximum of each block.
    text_tokens
        ``distinct_tokens`` of the node's row, which must be the latest such call.
    lowered : int64 (L,)
        Work memory for as many tokens as a prefix has.
    """
    if context.penalty < 1.0:
        penalize_scores(line, text_tokens, root, node, tokens, parents, context)
        return argmax(line)
    bits, magnitude = line.view(np.int32), np.int32(0)
    for block in range(len(peaks)):
        peaks[block], largest = _peak(bits[block * _BLOCK_SCORES : (block + 1) * _BLOCK_SCORES])
        magnitude = max(magnitude, largest)
    if magnitude > _INFINITY_BITS:
        return argmax(line)
    stamps, now, penalty, count = context.stamps, context.stamps[-1], np.float32(context.penalty), 0
    while True:
        best = peaks.argmax()
        top, is_finite = _first_index(line, bits, peaks[best], best * _BLOCK_SCORES)
        if not is_finite or stamps[top] == -now:  # already penalized
            break
        in_text = stamps[top] == now
        if not in_text and not on_path(top, root, node, tokens, parents):
            break
        lowered[count] = top if in_text else ~top
        count += 1
        stamps[top] = -now
        line[top] = penalized_score(line[top], penalty)
        start = top // _BLOCK_SCORES * _BLOCK_SCORES
        peaks[top // _BLOCK_SCORES], _ = _peak(bits[start : start + _BLOCK_SCORES])
    for token in lowered[:count]:
        if token < 0:
            stamps[~token] = 0
        else:
            stamps[token] = now
    return top, is_finite


@cached
def strict_argmax(line, tokens, parents, root, node, row, context):
    """Return the argmax of one node by the strict rule, and whether its score is finite.

    The repetition penalty applies to a copy of the scores.

    Parameters
    ----------
    line : float32 (V,)
        The node's scores.
    root, node, row
        The root of its tree, the node, and the tree's number.
    """
    if context.penalty == 1.0:
        return argmax(line)
    text_tokens = distinct_tokens(row, len(line), context)
    peaks = np.empty((len(line) + _BLOCK_SCORES - 1) // _BLOCK_SCORES, np.int32)
    lowered = np.empty(context.context.shape[1] + len(tokens), np.int64)
    return _penalized_argmax(line.copy(), peaks, text_tokens, root, node, tokens, parents, context, lowered)


@cached
def accept_strict(address, vocabulary, tokens, parents, starts, context, counts, paths, out, relaxed, finite,
                  tree_finite):
    """Fill in a ``VerificationResult`` by the strict rule; return ``all_finite``.

    At most one path passes, because siblings have distinct tokens.

    Parameters
    ----------
    address
        Of the scores float32 (T, V): cheaper to pass than an array of them.
    context
        ``PenaltyContext``, repetition penalty that the scores do not include yet.
    """
    scores = array_at(address, (len(tokens), vocabulary), np.float32)
    paths[:], out[:], relaxed[:], all_finite = 0, 0, False, True
    no_penalty = context.penalty == 1.0
    peaks = np.empty((vocabulary + _BLOCK_SCORES - 1) // _BLOCK_SCORES, np.int32)
    lowered = np.empty(context.context.shape[1] + len(tokens), np.int64)
    for r in range(len(starts) - 1):
        root, end = starts[r], starts[r + 1]
        node, depth = root, 0
        text_tokens = distinct_tokens(r, vocabulary, context)
        top, is_finite = argmax(scores[node]) if no_penalty else _penalized_argmax(
            scores[node], peaks, text_tokens, root, node, tokens, parents, context, lowered)
        tree_finite[r] = is_finite
        for t in range(root + 1, end):  # children come after their parent
            if parents[t] == node and tokens[t] == top:
                out[r, depth] = top
                node = t
                depth += 1
                paths[r, depth] = node - root
                top, is_finite = argmax(scores[node]) if no_penalty else _penalized_argmax(
                    scores[node], peaks, text_tokens, root, node, tokens, parents, context, lowered)
                tree_finite[r] &= is_finite
        out[r, depth] = top
        counts[r], finite[r] = depth, is_finite
        all_finite &= tree_finite[r]
    return all_finite


@numba.njit(cache=True)
def longest_branch(tokens, parents, depths, starts, top_tokens, passed, finite, logp, counts, paths, out,
                   relaxed, out_finite, tree_finite):
    """Fill in a ``VerificationResult`` with each row's longest path of nodes that passed.

    Ties: the more probable path, then the first. Returns ``all_finite``.
    """
    paths[:], out[:], relaxed[:], all_finite = 0, 0, False, True
    accepted = np.empty(len(tokens), np.bool_)
    path_logp = np.zeros(len(tokens), np.float32)  # log probability of the path from the root to the node
    for r in range(len(starts) - 1):
        root = starts[r]
        best = root
        accepted[root] = True
        tree_finite[r] = finite[root]
        for t in range(root + 1, starts[r + 1]):
            parent = parents[t]
            tree_finite[r] &= finite[t]
            accepted[t] = passed[t] and accepted[parent]
            if not accepted[t]:
                continue
            if logp.size:
                path_logp[t] = path_logp[parent] + logp[t]
            longer = depths[t] - depths[best]
            if longer > 0 or (longer == 0 and path_logp[t] > path_logp[best]):
                best = t
        depth = depths[best]
        counts[r], out_finite[r] = depth, finite[best]
        out[r, depth] = top_tokens[best]
        node = best
        for level in range(depth, 0, -1):
            parent = parents[node]
            paths[r, level] = node - root
            out[r, level - 1] = tokens[node]
            relaxed[r, level - 1] = top_tokens[parent] != tokens[node]
            node = parent
        all_finite &= tree_finite[r]
    return all_finite
