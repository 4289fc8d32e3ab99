"""The relaxed rules of ``rules`` in compiled code for CPUs.

A rule is evaluated only for nodes that an accepted path reaches, cheap conditions first. Most accepted drafts
are the argmax, which needs no further condition, so few nodes need the sum over the vocabulary.

Exponentials are computed in a form that compiles to vector instructions and takes a tenth of the time of
``math.exp``, with a relative error of about 1e-7: with ``n = exp_power(x)``, exp(x) is 2**n, whose bits are
``power_bits(n)``, times ``exp_polynomial(exp_remainder(x, n))``. Two loops over each block of scores, one for
the first three functions and one for the last, compile to the fastest code.
"""

import math
from typing import NamedTuple

import numba
import numpy as np

from dare_job.decode.settings import EngineSettings
from dare_job.decode.verify.compiled import argmax, longest_branch
from dare_job.decode.verify.penalty import distinct_tokens, penalize_scores
from pools.jit import array_at, cached

BLOCK_SCORES = 256

MIN_EXPONENT = np.float32(-87.0)  # exp of a smaller value is subnormal

_LOG2_E, _LN2_HIGH = np.float32(math.log2(math.e)), np.float32(0.693359375)  # few bits set

_LN2_LOW = np.float32(math.log(2) - 0.693359375)

_TAYLOR = tuple(np.float32(1 / math.factorial(n)) for n in range(8))


@numba.njit
def exp_power(x):
    """Return n such that exp(x) = 2**n times a value close to 1; x float32 in [MIN_EXPONENT, 0]."""
    return np.int32(x * _LOG2_E - np.float32(0.5))


@numba.njit
def power_bits(n):
    """Return the bits of 2**n as float32."""
    return (n + np.int32(127)) << np.int32(23)


@numba.njit
def exp_remainder(x, n):
    """Return x - n log 2."""
    n = np.float32(n)
    return x - n * _LN2_HIGH - n * _LN2_LOW


@numba.njit
def exp_polynomial(r):
    """Return exp(r) by a Taylor polynomial."""
    value = _TAYLOR[7]
    value = value * r + _TAYLOR[6]
    value = value * r + _TAYLOR[5]
    value = value * r + _TAYLOR[4]
    value = value * r + _TAYLOR[3]
    value = value * r + _TAYLOR[2]
    value = value * r + _TAYLOR[1]
    return value * r + _TAYLOR[0]


class Thresholds(NamedTuple):
    """Conditions that a draft token must meet, unless it is the argmax and ``accept_argmax`` is set.

    Attributes
    ----------
    accept_argmax : bool
        Whether the argmax passes without further conditions.
    k : int
        Fewer than ``k`` tokens have a higher score; 0: no condition.
    logp : float
        The token's log probability is above this.
    gap : float
        The token's score is at most this far below that of the argmax.
    epsilon, delta : float
        Logarithms of the entropy rule's parameters; NaN for other rules.
    """

    accept_argmax: bool
    k: int
    logp: float
    gap: float
    epsilon: float
    delta: float


def thresholds(settings: EngineSettings) -> Thresholds:
    """Return the conditions of ``settings.rule``."""
    rule, p = settings.rule, math.log(settings.p) if settings.p > 0 else -math.inf
    return Thresholds(
        accept_argmax=rule not in ("top_k", "literal"),
        k=settings.k if rule in ("relaxed", "literal", "top_k") else 0,
        logp=p if rule in ("relaxed", "literal", "threshold") else -math.inf,
        gap=-math.log(settings.c) if rule == "ratio" else math.inf,
        epsilon=math.log(settings.epsilon) if rule == "entropy" else math.nan,
        delta=math.log(settings.delta) if rule == "entropy" else math.nan)


@cached
def accept_relaxed(address, vocabulary, tokens, parents, depths, starts, strict, eos, conditions, context,
                   counts, paths, out, relaxed, finite, tree_finite):
    """Fill in a ``VerificationResult`` by a relaxed rule; return ``all_finite``.

    Parameters
    ----------
    address
        Of the scores float32 (T, V).
    strict : bool (T,)
        Nodes that pass only as the argmax, whatever the rule; may be empty.
    eos : int64 (E,)
        Tokens that pass only as the argmax.
    conditions
        ``Thresholds`` of the rule.
    context
        ``PenaltyContext``, repetition penalty that the scores do not include yet.
    """
    total = len(tokens)
    scores = array_at(address, (total, vocabulary), np.float32)
    top_tokens, passed = np.zeros(total, np.int64), np.zeros(total, np.bool_)
    node_finite, logp = np.ones(total, np.bool_), np.zeros(total, np.float32)
    forks = _verify_nodes(scores, tokens, parents, starts, strict, eos, conditions, context, top_tokens,
                          passed, node_finite, logp)
    return longest_branch(tokens, parents, depths, starts, top_tokens, passed, node_finite,
                          logp if forks else logp[:0], counts, paths, out, relaxed, finite, tree_finite)


@numba.njit
def _verify_nodes(scores, tokens, parents, starts, strict, eos, conditions, context, top_tokens, passed,
                  finite, logp):
    """Fill in which nodes pass together with all their ancestors; return whether ``logp`` is filled in.

    Parameters
    ----------
    top_tokens, finite : (T,)
        Argmax, and whether its score is finite, of roots and of nodes that pass.
    logp : float32 (T,)
        Of nodes that pass, if a node has two children that pass.
    """
    sums = np.full((len(tokens), 2), np.nan)  # log-sum-exp and entropy of each node
    children = np.zeros(len(tokens), np.int64)
    forks, row, text_tokens = False, -1, distinct_tokens(0, 0, context)
    for t in range(len(tokens)):
        parent, token = parents[t], tokens[t]
        if t == starts[row + 1]:
            row += 1
            text_tokens = distinct_tokens(row, scores.shape[1], context)
        if parent != t:
            if parents[parent] != parent and not passed[parent] or token >= scores.shape[1]:
                continue
            is_top = token == top_tokens[parent]
            if strict.size > 0 and strict[t]:
                if not is_top:
                    continue
            elif not _passes(scores[parent], top_tokens[parent], token, is_top, eos, conditions,
                             sums[parent]):
                continue
            passed[t] = True
            children[parent] += 1
            forks |= children[parent] > 1
        penalize_scores(scores[t], text_tokens, starts[row], t, tokens, parents, context)
        top_tokens[t], finite[t] = argmax(scores[t])
    if forks:
        for t in range(len(tokens)):
            if passed[t]:
                parent = parents[t]
                _fill_sums(scores[parent], top_tokens[parent], sums[parent])
                logp[t] = scores[parent, tokens[t]] - sums[parent, 0]
    return forks


@numba.njit
def _passes(line, top, token, is_top, eos, conditions, sums):
    if is_top and conditions.accept_argmax:
        return True
    for end in eos:
        if token == end and not is_top:
            return False
    return _within_thresholds(line, top, token, conditions, sums)


@numba.njit
def _within_thresholds(line, top, token, conditions, sums):
    """Return whether a token meets the conditions of ``Thresholds``; ``top``: the argmax of ``line``."""
    score = line[token]
    if not (np.isfinite(score) and np.float32(line[top] - score) <= np.float32(conditions.gap)):
        return False
    min_logp = conditions.logp
    if not np.isnan(conditions.epsilon):  # the entropy is at most log V
        min_logp = min(conditions.epsilon, conditions.delta - math.log(len(line)))
    if min_logp > -np.inf and score - line[top] <= min_logp:  # the log-sum-exp is at least the maximum
        return False
    if conditions.k > 0:
        higher = 0
        for v in range(len(line)):
            higher += line[v] > score
        if higher >= conditions.k:
            return False
    if not np.isnan(conditions.epsilon):
        _fill_sums(line, top, sums)
        min_logp = min(conditions.epsilon, conditions.delta - sums[1])
    if min_logp == -np.inf:
        return True
    _fill_sums(line, top, sums)
    return score - sums[0] > min_logp


@numba.njit
def _fill_sums(line, top, sums):
    """Fill in the log-sum-exp and the entropy in nats of scores, unless they are known already."""
    if np.isnan(sums[0]):
        total, moment = _exponentials(line, line[top])
        sums[0] = line[top] + math.log(total)
        sums[1] = math.log(total) - moment / total


@numba.njit
def _exponentials(line, peak):
    """Return the sums of exp(x) and of x exp(x), where x is a score minus ``peak``, the maximum."""
    powers, totals = np.empty(BLOCK_SCORES, np.int32), np.zeros(BLOCK_SCORES, np.float32)
    scales, moments = powers.view(np.float32), np.zeros(BLOCK_SCORES, np.float32)
    remainders, offsets = np.empty(BLOCK_SCORES, np.float32), np.empty(BLOCK_SCORES, np.float32)
    for start in range(0, len(line), BLOCK_SCORES):
        block = line[start : start + BLOCK_SCORES]
        for i in range(len(block)):
            x = max(block[i] - peak, MIN_EXPONENT)
            n = exp_power(x)
            offsets[i] = x
            remainders[i] = exp_remainder(x, n)
            powers[i] = power_bits(n)
        for i in range(len(block)):
            value = exp_polynomial(remainders[i]) * scales[i]
            totals[i] += value
            moments[i] += value * offsets[i]
    return totals.sum(), moments.sum()
