"""The relaxed rules in compiled code, for a CPU; ``rules`` says the same in tensors.

A rule is asked only of nodes that a branch reaches, cheap questions first. Most drafts that pass are first
choices, of which nothing more is asked, and the sum over the vocabulary is taken of few nodes.

Exponentials in compiled code: what loops over scores need to be compiled to vector instructions.

By powers of 2 and a polynomial, which take a tenth of the time of ``math.exp``; the error is some 1e-7 of
each. With ``n = whole(x)``, exp(x) is 2**n, whose bits are ``power(n)``, times ``small(rest(x, n))``. One
loop over a block of scores for the first three and one for the last are compiled best.
"""

import math
from typing import NamedTuple

import numba
import numpy as np

from dare_job.decode.settings import EngineSettings
from dare_job.decode.verify.compiled import argmax, longest_branch
from dare_job.decode.verify.penalty import distinct_tokens, penalise_scores
from pools.jit import array_at, cached

BLOCK_SCORES = 256  # scores

MIN_EXPONENT = np.float32(-87.0)  # below it exp is no normal number

_LOG2_E, _LN2_HIGH = np.float32(math.log2(math.e)), np.float32(0.693359375)  # of which few bits are set

_LN2_LOW = np.float32(math.log(2) - 0.693359375)

_TAYLOR = tuple(np.float32(1 / math.factorial(n)) for n in range(8))


@numba.njit
def exp_power(x):
    """The power of 2 that is taken out of exp(x); x float32 in [LEAST, 0]."""
    return np.int32(x * _LOG2_E - np.float32(0.5))


@numba.njit
def power_bits(n):
    return (n + np.int32(127)) << np.int32(23)


@numba.njit
def exp_remainder(x, n):
    n = np.float32(n)
    return x - n * _LN2_HIGH - n * _LN2_LOW


@numba.njit
def exp_polynomial(r):
    """exp(r) of what is left."""
    value = _TAYLOR[7]
    value = value * r + _TAYLOR[6]
    value = value * r + _TAYLOR[5]
    value = value * r + _TAYLOR[4]
    value = value * r + _TAYLOR[3]
    value = value * r + _TAYLOR[2]
    value = value * r + _TAYLOR[1]
    return value * r + _TAYLOR[0]


class Thresholds(NamedTuple):
    """What a token must hold to pass behind a node, unless it is the first choice and ``first`` is set.

    first    the first choice passes whatever else holds
    k        fewer tokens are more probable; 0: any number
    logp     its log probability is over this
    gap      its score is at most so far under the first choice's
    epsilon  logs of the entropy rule's; nan: another rule
    delta
    """

    first: bool
    k: int
    logp: float
    gap: float
    epsilon: float
    delta: float


def thresholds(settings: EngineSettings) -> Thresholds:
    """Of the settings' rule."""
    rule, p = settings.rule, math.log(settings.p) if settings.p > 0 else -math.inf
    return Thresholds(
        first=rule not in ("top_k", "literal"),
        k=settings.k if rule in ("relaxed", "literal", "top_k") else 0,
        logp=p if rule in ("relaxed", "literal", "threshold") else -math.inf,
        gap=-math.log(settings.c) if rule == "ratio" else math.inf,
        epsilon=math.log(settings.epsilon) if rule == "entropy" else math.nan,
        delta=math.log(settings.delta) if rule == "entropy" else math.nan)


@cached
def accept_relaxed(address, vocabulary, tokens, parents, depths, starts, strict, eos, bounds, seen, counts,
                   paths, out, relaxed, finite, sound):
    """Fill in the verdict of the scores float32 (T, V) at an address; whether all rows are sound.

    strict   bool (T,): nodes that pass as first choices alone, whatever the rule; or empty
    eos      int64 (E,): tokens that pass as nothing else
    seen     ``Seen`` of the rows, for what is still to be done to the scores
    """
    total = len(tokens)
    scores = array_at(address, (total, vocabulary), np.float32)
    choices, passed = np.zeros(total, np.int64), np.zeros(total, np.bool_)
    number, logp = np.ones(total, np.bool_), np.zeros(total, np.float32)
    forks = _passing(scores, tokens, parents, starts, strict, eos, bounds, seen, choices, passed, number,
                     logp)
    return longest_branch(tokens, parents, depths, starts, choices, passed, number, logp if forks
                          else logp[:0], counts, paths, out, relaxed, finite, sound)


@numba.njit
def _passing(scores, tokens, parents, starts, strict, eos, bounds, seen, choices, passed, finite, logp):
    """Which nodes pass, with all their ancestors; whether ``logp`` is filled in.

    choices, finite  (T,) of roots and of nodes that pass
    logp     float32 (T,) of nodes that pass, where a node has two children that do
    """
    sums = np.full((len(tokens), 2), np.nan)  # a node's log of sums, and its entropy
    children = np.zeros(len(tokens), np.int64)
    forks, row, known = False, -1, distinct_tokens(0, 0, seen)
    for t in range(len(tokens)):
        parent, token = parents[t], tokens[t]
        if t == starts[row + 1]:
            row += 1
            known = distinct_tokens(row, scores.shape[1], seen)
        if parent != t:
            if parents[parent] != parent and not passed[parent] or token >= scores.shape[1]:
                continue
            is_first = token == choices[parent]
            if strict.size > 0 and strict[t]:
                if not is_first:
                    continue
            elif not _passes(scores[parent], choices[parent], token, is_first, eos, bounds, sums[parent]):
                continue
            passed[t] = True
            children[parent] += 1
            forks |= children[parent] > 1
        penalise_scores(scores[t], known, starts[row], t, tokens, parents, seen)
        choices[t], finite[t] = argmax(scores[t])
    if forks:
        for t in range(len(tokens)):
            if passed[t]:
                parent = parents[t]
                _fill_sums(scores[parent], choices[parent], sums[parent])
                logp[t] = scores[parent, tokens[t]] - sums[parent, 0]
    return forks


@numba.njit
def _passes(line, choice, token, is_first, eos, bounds, sums):
    if is_first and bounds.first:
        return True
    for end in eos:
        if token == end and not is_first:
            return False
    return _within_thresholds(line, choice, token, bounds, sums)


@numba.njit
def _within_thresholds(line, choice, token, bounds, sums):
    """Whether a token holds what ``Bounds`` says."""
    own = line[token]
    if not (np.isfinite(own) and np.float32(line[choice] - own) <= np.float32(bounds.gap)):
        return False
    least = bounds.logp
    if not np.isnan(bounds.epsilon):  # no entropy is over log V
        least = min(bounds.epsilon, bounds.delta - math.log(len(line)))
    if least > -np.inf and own - line[choice] <= least:  # as the sum is no less than its largest
        return False
    if bounds.k > 0:
        higher = 0
        for v in range(len(line)):
            higher += line[v] > own
        if higher >= bounds.k:
            return False
    if not np.isnan(bounds.epsilon):
        _fill_sums(line, choice, sums)
        least = min(bounds.epsilon, bounds.delta - sums[1])
    if least == -np.inf:
        return True
    _fill_sums(line, choice, sums)
    return own - sums[0] > least


@numba.njit
def _fill_sums(line, choice, sums):
    """The log of the sum of exponentials and the entropy in nats into ``sums``, unless they are there."""
    if np.isnan(sums[0]):
        total, moment = _exponentials(line, line[choice])
        sums[0] = line[choice] + math.log(total)
        sums[1] = math.log(total) - moment / total


@numba.njit
def _exponentials(line, peak):
    """Sums of exp(x) and of exp(x) x with an error of some 1e-7 of themselves; x is the score less the peak,
    the greatest score.
    """
    powers, totals = np.empty(BLOCK_SCORES, np.int32), np.zeros(BLOCK_SCORES, np.float32)
    scales, moments = powers.view(np.float32), np.zeros(BLOCK_SCORES, np.float32)
    rests, distances = np.empty(BLOCK_SCORES, np.float32), np.empty(BLOCK_SCORES, np.float32)
    for start in range(0, len(line), BLOCK_SCORES):
        block = line[start : start + BLOCK_SCORES]
        for i in range(len(block)):
            x = max(block[i] - peak, MIN_EXPONENT)
            n = exp_power(x)
            distances[i] = x
            rests[i] = exp_remainder(x, n)
            powers[i] = power_bits(n)
        for i in range(len(block)):
            share = exp_polynomial(rests[i]) * scales[i]
            totals[i] += share
            moments[i] += share * distances[i]
    return totals.sum(), moments.sum()
