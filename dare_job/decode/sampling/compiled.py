"""Sampling along deterministic draft trees, compiled for the CPU.

Only the nodes on a row's path are sampled. Truncation (top-k, top-p, min-p) and its order are those of
``warp``.
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
    """Settings of ``Warp`` as numbers; a disabled setting is 0, and 1 for top_p."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float


def warp_parameters(settings: Warp) -> WarpParameters:
    """The settings in the form that compiled code reads."""
    return WarpParameters(float(settings.temperature), int(settings.top_k or 0),
                          1.0 if settings.top_p is None else float(settings.top_p),
                          float(settings.min_p or 0.0))


@cached
def verify_deterministic_drafts(scores, tokens, parents, starts, uniforms, parameters, context, counts, paths,
                                out, relaxed, finite, tree_finite):
    """Sample a token at each node of a row's path, until the token is none of the node's children.

    Writes the verification result into ``counts`` to ``tree_finite``. Siblings must have distinct tokens.

    Parameters
    ----------
    scores : float32 (T, V)
        Logits; the repetition penalty is applied in place to the nodes visited.
    uniforms : float64 (T,)
        In [0, 1).
    context
        Tokens of each row's text and the penalty.

    Returns
    -------
    all_finite
        Whether every row has finite logits at its root.
    """
    paths[:], out[:], relaxed[:], all_finite = 0, 0, False, True
    weights = np.empty(scores.shape[1], np.float32)
    for r in range(len(starts) - 1):
        root, end = starts[r], starts[r + 1]
        node, depth = root, 0
        text_tokens = distinct_tokens(r, scores.shape[1], context)
        penalize_scores(scores[node], text_tokens, root, node, tokens, parents, context)
        token, finite_logits = _sample_token(scores[node], uniforms[node], parameters, weights)
        for t in range(root + 1, end):  # children come after their parent
            if finite_logits and parents[t] == node and tokens[t] == token:
                out[r, depth] = token
                node = t
                depth += 1
                paths[r, depth] = node - root
                penalize_scores(scores[node], text_tokens, root, node, tokens, parents, context)
                token, finite_logits = _sample_token(scores[node], uniforms[node], parameters, weights)
        out[r, depth] = token
        counts[r], finite[r], tree_finite[r] = depth, finite_logits, finite_logits or depth > 0
        all_finite &= tree_finite[r]
    return all_finite


@numba.njit
def _sample_token(line, uniform, parameters, weights):
    """Sample a token, and tell whether the logits are finite."""
    best, finite_logits = argmax(line)
    if parameters.temperature == 0.0 or not finite_logits:
        return best, finite_logits
    _exp_weights(line, line[best], np.float32(1.0 / parameters.temperature), weights)
    if 0 < parameters.top_k < len(line):
        _apply_top_k(line, weights, parameters.top_k)
    if parameters.top_p < 1.0:
        _apply_top_p(weights, parameters.top_p)
    if parameters.min_p > 0.0:
        for i in range(len(line)):
            weights[i] = weights[i] if weights[i] >= np.float32(parameters.min_p) else np.float32(0)
    return _inverse_cdf(weights, uniform), True


@numba.njit
def _exp_weights(line, peak, scale, weights):
    """Write exp((x - peak) scale) for scores x float32 with maximum ``peak``; 0 for -inf."""
    powers, rests = np.empty(BLOCK_SCORES, np.int32), np.empty(BLOCK_SCORES, np.float32)
    scales = powers.view(np.float32)
    for start in range(0, len(line), BLOCK_SCORES):
        block, out = line[start : start + BLOCK_SCORES], weights[start : start + BLOCK_SCORES]
        for i in range(len(block)):
            x = max((block[i] - peak) * scale, MIN_EXPONENT)
            n = exp_power(x)
            rests[i] = exp_remainder(x, n)
            powers[i] = power_bits(n)
        for i in range(len(block)):
            out[i] = exp_polynomial(rests[i]) * scales[i] if block[i] > -np.inf else np.float32(0)


@numba.njit
def _apply_top_k(line, weights, k):
    """Keep the k largest weights, and ties with the last of them."""
    threshold = _in_order(line.copy(), len(line) - k)
    for i in range(len(line)):
        weights[i] = weights[i] if line[i] >= threshold else np.float32(0)


@numba.njit
def _in_order(values, place):
    """Return the value that would stand at a place if the values, which it moves, were sorted.

    Hoare's selection (Hoare 1961, "Algorithm 65: Find"). Numba takes seconds to compile ``np.partition``.
    """
    low, high = 0, len(values) - 1
    while low < high:
        pivot, i, j = values[(low + high) // 2], low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i, j = i + 1, j - 1
        if place <= j:
            high = j
        elif place >= i:
            low = i
        else:
            break
    return values[place]


@numba.njit
def _apply_top_p(weights, top_p):
    """Keep the largest weights with at least share top_p of the sum; of ties, the last tokens.

    Weights of at most (1 - top_p) / V of the sum are always dropped: together they do not exceed the limit.
    """
    total = _sum(weights)
    limit = (1.0 - top_p) * total
    floor = np.float32(0.999999 * limit / len(weights))  # less than the largest weight, which is 1
    dropped, candidates = 0.0, np.empty(len(weights), np.float32)
    count = 0
    for weight in weights:
        if weight > floor:
            candidates[count] = weight
            count += 1
        else:
            dropped += weight
    ascending = np.sort(candidates[:count])
    at = 0
    while at < count - 1 and dropped + ascending[at] <= limit:
        dropped += ascending[at]
        at += 1
    ties = 0
    while ties < at and ascending[at - 1 - ties] == ascending[at]:
        ties += 1
    for i in range(len(weights)):
        if weights[i] < ascending[at]:
            weights[i] = 0
        elif weights[i] == ascending[at] and ties > 0:
            weights[i] = 0
            ties -= 1


@numba.njit(fastmath={"reassoc"})
def _sum(weights):
    """Sum in an order that allows vector instructions."""
    total = 0.0
    for weight in weights:
        total += weight
    return total


@numba.njit
def _inverse_cdf(weights, uniform):
    """Return the token at which the cumulative weight passes uniform times the total."""
    sums = np.empty((len(weights) + BLOCK_SCORES - 1) // BLOCK_SCORES)
    total = 0.0
    for block in range(len(sums)):
        sums[block] = _sum(weights[block * BLOCK_SCORES : (block + 1) * BLOCK_SCORES])
        total += sums[block]
    target, passed, last = uniform * total, 0.0, 0
    for block in range(len(sums)):
        if sums[block] == 0.0:
            continue
        if passed + sums[block] <= target and block + 1 < len(sums):
            passed += sums[block]
            last = block
            continue
        token = _inverse_cdf_in_block(weights, block * BLOCK_SCORES, target - passed)
        if token >= 0:
            return token
        passed += sums[block]
        last = block
    return _inverse_cdf_in_block(weights, last * BLOCK_SCORES, np.inf)


@numba.njit
def _inverse_cdf_in_block(weights, start, target):
    """Return the token of a block at which the sum passes the target, or -1; the last token for an infinite
    target.
    """
    passed, last = 0.0, -1
    for i in range(start, min(start + BLOCK_SCORES, len(weights))):
        if weights[i] > 0:
            last = i
            passed += weights[i]
            if passed > target:
                return i
    return last if target == np.inf else -1
