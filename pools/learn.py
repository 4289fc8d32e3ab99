"""Learns the blend weights of a pool by leave-one-out: each text is predicted from all the others.

A context of n tokens with c occurrences and d distinct continuations gets the share c / (c + alpha_n + beta_n
d) of the remaining weight (``pools.blend``); a context with c occurrences in the row's prompt and text so far
gets c / (c + live_n). Adam on the exact gradient maximizes the likelihood of a sample of the pool's texts.
The counts used for a text exclude the text itself.
"""

import numpy as np

from pools.blend import IS_BACKOFF_ORDER, MAX_DISTINCT
from pools.intervals import MAX_RUNS, locate, runs
from pools.jit import compiled
from pools.lookup import ALPHA, BETA, COUNT, LIVE, first, narrow

MAX_POSITIONS = 24_000  # maximum number of tokens in the sampled texts
MIN_TEXTS = 20  # pools with fewer texts keep the initial weights
_MAX_TEXT_TOKENS = 1000  # texts are truncated: counting is quadratic in their length
_STEPS, _RATE = 45, 0.15
_UNSEEN = 0.5  # pseudo-count of a token that no other text contains
_SMOOTHING = 1e-3  # added to probabilities: tokens far below it are not drafted and get little gradient
_START = {"own": 1.5}  # initial alpha of pools by kind
_START_ALPHA, _START_LIVE = 8.0, 2.0


def initial_weights(depth: int, kind: str) -> np.ndarray:
    """Weights before learning, float64 (3, depth): rows ALPHA, BETA, LIVE; columns are context orders."""
    weights = np.zeros((3, depth))
    weights[ALPHA], weights[LIVE] = _START.get(kind, _START_ALPHA), _START_LIVE
    return weights


def fit_weights(index) -> None:
    """Set ``index.weights`` in place. Deterministic: the same texts give the same weights."""
    ends = np.flatnonzero(index.tokens == 0)
    if ends.size < MIN_TEXTS:
        return
    starts = np.concatenate(([0], ends[:-1] + 1))
    stops = np.minimum(ends, starts + _MAX_TEXT_TOKENS)
    chosen = np.random.default_rng(0).permutation(ends.size)
    chosen = chosen[np.cumsum((stops - starts)[chosen]) <= MAX_POSITIONS]
    orders = index.depth - 1
    parts = [_counts(index.addresses, _text(index.tokens, starts[i], stops[i]), orders) for i in chosen]
    counts = np.concatenate([c for c, _ in parts], axis=1)
    unigram = np.concatenate([p for _, p in parts])
    index.weights[:, 1:] = fit(counts, unigram, index.weights[:, 1:])


def _text(tokens: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Codes of tokens[start:stop] followed by 0, int64 (tokens + 1,)."""
    text = np.zeros(stop - start + 1, np.int64)
    text[:-1] = tokens[start:stop]
    return text


def fit(counts: np.ndarray, unigram: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Maximum-likelihood weights for the counts at P positions, by M context orders.

    Parameters
    ----------
    counts : int32 (5, P, M)
        Of each context: occurrences c in the pool, those followed by the actual token, distinct continuations
        d, and the first two again for the text itself.
    unigram : float64 (P,)
        Probability of the actual token without context.
    start : float64 (3, M)
        Initial weights.

    Returns
    -------
    float64 (3, M)
        Rows ALPHA, BETA, LIVE.
    """
    logs = np.log(np.maximum(start, 0.5))
    mean, square = np.zeros_like(logs), np.zeros_like(logs)
    for step in range(1, _STEPS + 1):
        gradient = _gradient(counts, unigram, np.exp(logs))
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        rate = _RATE * min(1.0, 2 * (1 - step / (_STEPS + 1)))
        logs -= rate * mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    return np.exp(logs)


@compiled
def _counts(a, text, orders):
    """``counts`` (5, T, orders) and ``unigram`` (T,) of ``fit`` for a text of the pool that ends with code 0.
    """
    size = text.size
    out, unigram = np.zeros((5, size, orders), np.int32), np.ones(size)
    codes = np.zeros(orders, np.int64)
    own, own_true = np.zeros(orders, np.int64), np.zeros(orders, np.int64)
    scratch = np.zeros((3, MAX_RUNS), np.int32)
    for i in range(1, size - 1):
        known = min(i, orders)
        own[:] = 0
        own_true[:] = 0
        unigram[i] = max(_UNSEEN, first(a, text[i])[1] - np.sum(text == text[i])) / a[COUNT]
        for n in range(known):
            codes[n] = text[i - 1 - n]
        for p in range(1, size):
            n = 0
            while n < known and p - 1 - n >= 0 and text[p - 1 - n] == codes[n]:
                own[n] += 1
                own_true[n] += text[p] == text[i]
                if p < i:
                    out[3, i, n] += 1
                    out[4, i, n] += text[p] == text[i]
                n += 1
        for n in range(known):
            low, count = locate(a, codes, n + 1)
            if count == own[n]:  # longer contexts do not occur in other texts either
                break
            true = narrow(a, low, count, n + 1, text[i])[1]
            out[0, i, n] = count - own[n]
            out[1, i, n] = true - own_true[n]
            distinct = runs(a, low, count, n + 1, 2 * MAX_DISTINCT, scratch[0], scratch[1], scratch[2])[0]
            out[2, i, n] = max(1, min(MAX_DISTINCT, distinct) - (true == own_true[n]))
    return out, unigram


@compiled
def _gradient(counts, unigram, weights):
    """Gradient (3, M) of the mean negative log-likelihood with respect to the logarithms of the weights."""
    positions, orders = counts.shape[1], counts.shape[2]
    gradient = np.zeros((3, orders))
    gains, shares, rests = np.zeros(2 * orders), np.zeros(2 * orders), np.zeros(2 * orders)
    places = np.zeros(2 * orders, np.int64)  # per term: 2 order - 2 (row) or 2 order - 1 (pool)
    for i in range(positions):
        rest, size = 1.0, 0
        longest = True
        for n in range(orders, 0, -1):
            for row in (3, 0):
                c = counts[row, i, n - 1]
                if c == 0 or not (IS_BACKOFF_ORDER[n] or (row == 0 and longest)):
                    continue
                extra = weights[LIVE, n - 1]
                if row == 0:
                    extra = weights[ALPHA, n - 1] + weights[BETA, n - 1] * counts[2, i, n - 1]
                    longest = False
                gains[size], shares[size] = c / (c + extra), counts[row + 1, i, n - 1] / c
                rests[size], places[size] = rest, 2 * n - 2 + (row == 0)
                rest *= 1 - gains[size]
                size += 1
        value = unigram[i]
        for j in range(size - 1, -1, -1):
            shorter = value
            value = gains[j] * shares[j] + (1 - gains[j]) * shorter
            rests[j] *= shares[j] - shorter  # derivative of the probability with respect to the gain
        for j in range(size):
            n, pooled = places[j] // 2, places[j] % 2
            c = counts[0 if pooled else 3, i, n]
            # negative derivative with respect to the term added to c
            slope = rests[j] * gains[j] * gains[j] / c / (value + _SMOOTHING) / positions
            if pooled:
                gradient[ALPHA, n] += slope * weights[ALPHA, n]
                gradient[BETA, n] += slope * weights[BETA, n] * counts[2, i, n]
            else:
                gradient[LIVE, n] += slope * weights[LIVE, n]
    return gradient
