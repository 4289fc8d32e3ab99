"""Verdicts in compiled code: of a judgement, and on a CPU of the scores themselves.

On a CPU a node's first choice is looked up when a branch reaches the node, and never of the others.
"""

import numba
import numpy as np

from dare_job.decode.verify.penalty import distinct_tokens, on_path, penalise_scores, penalised_score
from pools.jit import array_at, cached

_BLOCK_SCORES = 256  # scores
_MIN_KEY, _INFINITY_BITS, _MAGNITUDE_MASK = np.int32(-(2**31)), np.int32(0x7F800000), np.int32(2**31 - 1)
_SIGN_SHIFT = np.int32(31)


@numba.njit
def _peak(bits):
    """Greatest of float32 numbers given as int32, as an integer that sorts like them, and the greatest
    magnitude. In this form the loop is compiled to vector instructions.
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
    """``np.argmax`` of scores float32 (V,), nearly as fast, and whether the greatest is a number."""
    bits = line.view(np.int32)
    peak, magnitude, at = _MIN_KEY, np.int32(0), 0
    for start in range(0, len(bits), _BLOCK_SCORES):
        highest, largest = _peak(bits[start : start + _BLOCK_SCORES])
        if highest > peak:
            peak, at = highest, start
        if largest > magnitude:
            magnitude = largest
    if magnitude > _INFINITY_BITS:
        for i in range(len(line)):
            if np.isnan(line[i]):
                return i, False
    return _first_index(line, bits, peak, at)


@numba.njit
def _first_index(line, bits, peak, at):
    """The first of the greatest scores, whose block begins ``at``, and whether it is a number."""
    if peak == 0:  # -0 is its equal, and may stand before it
        at = 0
    for i in range(at, len(line)):
        if bits[i] == peak ^ ((peak >> _SIGN_SHIFT) & _MAGNITUDE_MASK) or (peak == 0 and line[i] == 0):
            return i, -_INFINITY_BITS <= peak < _INFINITY_BITS
    return 0, False


@numba.njit
def _penalised_argmax(line, peaks, known, root, node, tokens, parents, seen, lowered):
    """``first_choice`` of a node's line behind ``penalise``. A penalty over 1 only lowers scores, and is
    given to those tokens alone that would win without it.

    peaks    int32 (blocks,): memory for the greatest of each block
    known    ``distinct`` tokens of the row, the last that were asked for
    lowered  int64: memory for as many tokens as a prefix has
    """
    if seen.penalty < 1.0:
        penalise_scores(line, known, root, node, tokens, parents, seen)
        return argmax(line)
    bits, magnitude = line.view(np.int32), np.int32(0)
    for block in range(len(peaks)):
        peaks[block], largest = _peak(bits[block * _BLOCK_SCORES : (block + 1) * _BLOCK_SCORES])
        magnitude = max(magnitude, largest)
    if magnitude > _INFINITY_BITS:
        return argmax(line)
    stamps, now, penalty, count = seen.stamps, seen.stamps[-1], np.float32(seen.penalty), 0
    while True:
        best = peaks.argmax()
        choice, number = _first_index(line, bits, peaks[best], best * _BLOCK_SCORES)
        if not number or stamps[choice] == -now:  # lowered already
            break
        in_text = stamps[choice] == now
        if not in_text and not on_path(choice, root, node, tokens, parents):
            break
        lowered[count] = choice if in_text else ~choice
        count += 1
        stamps[choice] = -now
        line[choice] = penalised_score(line[choice], penalty)
        start = choice // _BLOCK_SCORES * _BLOCK_SCORES
        peaks[choice // _BLOCK_SCORES], _ = _peak(bits[start : start + _BLOCK_SCORES])
    for token in lowered[:count]:
        if token < 0:
            stamps[~token] = 0
        else:
            stamps[token] = now
    return choice, number


@cached
def accept_strict(address, vocabulary, tokens, parents, starts, seen, counts, paths, out, relaxed, finite,
                  sound):
    """Fill in the strict verdict of the scores float32 (T, V) at an address, which takes less than an array
    of them does to make; whether all rows are sound.

    seen: ``Seen`` of the rows, for what is still to be done to the scores. Siblings are distinct: one branch
    passes at most.
    """
    scores = array_at(address, (len(tokens), vocabulary), np.float32)
    paths[:], out[:], relaxed[:], all_sound = 0, 0, False, True
    plain = seen.penalty == 1.0
    peaks = np.empty((vocabulary + _BLOCK_SCORES - 1) // _BLOCK_SCORES, np.int32)
    lowered = np.empty(seen.context.shape[1] + len(tokens), np.int64)
    for r in range(len(starts) - 1):
        root, end = starts[r], starts[r + 1]
        node, depth = root, 0
        known = distinct_tokens(r, vocabulary, seen)
        choice, number = argmax(scores[node]) if plain else _penalised_argmax(
            scores[node], peaks, known, root, node, tokens, parents, seen, lowered)
        sound[r] = number
        for t in range(root + 1, end):  # a node's children stand behind it
            if parents[t] == node and tokens[t] == choice:
                out[r, depth] = choice
                node = t
                depth += 1
                paths[r, depth] = node - root
                choice, number = argmax(scores[node]) if plain else _penalised_argmax(
                    scores[node], peaks, known, root, node, tokens, parents, seen, lowered)
                sound[r] &= number
        out[r, depth] = choice
        counts[r], finite[r] = depth, number
        all_sound &= sound[r]
    return all_sound


@numba.njit(cache=True)
def longest_branch(tokens, parents, depths, starts, choices, passed, finite, logp, counts, paths, out,
                   relaxed, out_finite, sound):
    """Fill in the verdict: the longest branch of nodes that passed, of equals the more probable one, then the
    first. Returns whether all rows are sound.
    """
    paths[:], out[:], relaxed[:], all_sound = 0, 0, False, True
    accepted = np.empty(len(tokens), np.bool_)
    path = np.zeros(len(tokens), np.float32)  # log probability of the branch down to the node
    for r in range(len(starts) - 1):
        root = starts[r]
        best = root
        accepted[root] = True
        sound[r] = finite[root]
        for t in range(root + 1, starts[r + 1]):
            parent = parents[t]
            sound[r] &= finite[t]
            accepted[t] = passed[t] and accepted[parent]
            if not accepted[t]:
                continue
            if logp.size:
                path[t] = path[parent] + logp[t]
            longer = depths[t] - depths[best]
            if longer > 0 or (longer == 0 and path[t] > path[best]):
                best = t
        depth = depths[best]
        counts[r], out_finite[r] = depth, finite[best]
        out[r, depth] = choices[best]
        node = best
        for place in range(depth, 0, -1):
            parent = parents[node]
            paths[r, place] = node - root
            out[r, place - 1] = tokens[node]
            relaxed[r, place - 1] = choices[parent] != tokens[node]
            node = parent
        all_sound &= sound[r]
    return all_sound
