"""Drawing from trees without chance in compiled code, for a CPU: of the nodes that a path reaches, no others.

What is kept by which setting, and in which order, is as in ``warp``.
"""

from typing import NamedTuple

import numba
import numpy as np

from dare_job.decode.settings import Warp
from dare_job.decode.verify.compiled import argmax
from dare_job.decode.verify.penalty import distinct_tokens, penalize_scores
from dare_job.decode.verify.relaxed_compiled import (
    BLOCK_SCORES,
    MIN_EXPONENT,
    exp_polynomial,
    exp_power,
    exp_remainder,
    power_bits,
)
from pools.jit import cached


class WarpParameters(NamedTuple):
    """Settings of ``Warp`` as numbers; those that change nothing are 0, top_p's is 1."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float


def warp_parameters(settings: Warp) -> WarpParameters:
    return WarpParameters(float(settings.temperature), int(settings.top_k or 0),
                1.0 if settings.top_p is None else float(settings.top_p), float(settings.min_p or 0.0))


@cached
def verify_deterministic_drafts(
    scores, tokens, parents, starts, uniforms, kept, seen, counts, paths, out, relaxed, finite, sound
):
    """Fill in the verdict: at each node of a row's path a token is drawn, until it is none of the node's
    children. Returns whether all rows are sound: all but those that have no numbers behind their roots.

    scores float32 (T, V), in which the nodes' are changed by the penalty; uniforms (T,) in [0, 1); seen: as
    in ``verify.compiled``. Siblings are distinct.
    """
    paths[:], out[:], relaxed[:], all_sound = 0, 0, False, True
    weights = np.empty(scores.shape[1], np.float32)
    for r in range(len(starts) - 1):
        root, end = starts[r], starts[r + 1]
        node, depth = root, 0
        known = distinct_tokens(r, scores.shape[1], seen)
        penalize_scores(scores[node], known, root, node, tokens, parents, seen)
        choice, number = _sample_token(scores[node], uniforms[node], kept, weights)
        for t in range(root + 1, end):  # a node's children stand behind it
            if number and parents[t] == node and tokens[t] == choice:
                out[r, depth] = choice
                node = t
                depth += 1
                paths[r, depth] = node - root
                penalize_scores(scores[node], known, root, node, tokens, parents, seen)
                choice, number = _sample_token(scores[node], uniforms[node], kept, weights)
        out[r, depth] = choice
        counts[r], finite[r], sound[r] = depth, number, number or depth > 0
        all_sound &= sound[r]
    return all_sound


@numba.njit
def _sample_token(line, uniform, kept, weights):
    """A token by its probability, and whether there is one."""
    first, number = argmax(line)
    if kept.temperature == 0.0 or not number:
        return first, number
    _exp_weights(line, line[first], np.float32(1.0 / kept.temperature), weights)
    if 0 < kept.top_k < len(line):
        _apply_top_k(line, weights, kept.top_k)
    if kept.top_p < 1.0:
        _apply_top_p(weights, kept.top_p)
    if kept.min_p > 0.0:
        for i in range(len(line)):
            weights[i] = weights[i] if weights[i] >= np.float32(kept.min_p) else np.float32(0)
    return _inverse_cdf(weights, uniform), True


@numba.njit
def _exp_weights(line, peak, scale, weights):
    """exp((x - peak) scale) of scores float32, the greatest of which is the peak; 0 of what is -inf."""
    powers, rests = np.empty(BLOCK_SCORES, np.int32), np.empty(BLOCK_SCORES, np.float32)
    scales = powers.view(np.float32)
    for start in range(0, len(line), BLOCK_SCORES):
        block, found = line[start : start + BLOCK_SCORES], weights[start : start + BLOCK_SCORES]
        for i in range(len(block)):
            x = max((block[i] - peak) * scale, MIN_EXPONENT)
            n = exp_power(x)
            rests[i] = exp_remainder(x, n)
            powers[i] = power_bits(n)
        for i in range(len(block)):
            found[i] = exp_polynomial(rests[i]) * scales[i] if block[i] > -np.inf else np.float32(0)


@numba.njit
def _apply_top_k(line, weights, k):
    """The k greatest, and those that equal the last of them."""
    least = np.partition(line, len(line) - k)[len(line) - k]
    for i in range(len(line)):
        weights[i] = weights[i] if line[i] >= least else np.float32(0)


@numba.njit
def _apply_top_p(weights, top_p):
    """The greatest that have this share of the sum together; of equals the last ones.

    None of a share of (1 - top_p) / V is among them, as all of those come to less than what is dropped.
    """
    total = _sum(weights)
    limit = (1.0 - top_p) * total
    floor = np.float32(0.999999 * limit / len(weights))  # below the greatest, which is 1
    below, more = 0.0, np.empty(len(weights), np.float32)
    count = 0
    for weight in weights:
        if weight > floor:
            more[count] = weight
            count += 1
        else:
            below += weight
    rising = np.sort(more[:count])
    at = 0
    while at < count - 1 and below + rising[at] <= limit:
        below += rising[at]
        at += 1
    equal = 0
    while equal < at and rising[at - 1 - equal] == rising[at]:
        equal += 1
    for i in range(len(weights)):
        if weights[i] < rising[at]:
            weights[i] = 0
        elif weights[i] == rising[at] and equal > 0:
            weights[i] = 0
            equal -= 1


@numba.njit(fastmath={"reassoc"})
def _sum(weights):
    """In an order that suits vector instructions."""
    total = 0.0
    for weight in weights:
        total += weight
    return total


@numba.njit
def _inverse_cdf(weights, uniform):
    sums = np.empty((len(weights) + BLOCK_SCORES - 1) // BLOCK_SCORES)
    total = 0.0
    for block in range(len(sums)):
        sums[block] = _sum(weights[block * BLOCK_SCORES : (block + 1) * BLOCK_SCORES])
        total += sums[block]
    target, below, last = uniform * total, 0.0, 0
    for block in range(len(sums)):
        if sums[block] == 0.0:
            continue
        if below + sums[block] <= target and block + 1 < len(sums):
            below += sums[block]
            last = block
            continue
        token = _inverse_cdf_in_block(weights, block * BLOCK_SCORES, target - below)
        if token >= 0:
            return token
        below += sums[block]
        last = block
    return _inverse_cdf_in_block(weights, last * BLOCK_SCORES, np.inf)


@numba.njit
def _inverse_cdf_in_block(weights, start, target):
    """The token of a block where the sum passes the target; its last one where it is infinite, else -1."""
    below, last = 0.0, -1
    for i in range(start, min(start + BLOCK_SCORES, len(weights))):
        if weights[i] > 0:
            last = i
            below += weights[i]
            if below > target:
                return i
    return last if target == np.inf else -1
