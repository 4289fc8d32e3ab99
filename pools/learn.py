"""The weights of the blend, learned from the pool: each text is predicted by all the others (leave one out).

A context of n tokens that occurs c times, with d different continuations, takes the share
c / (c + alpha_n + beta_n d) of the weight that is left (``pools.blend``); one that occurs c times in the
row's own text c / (c + live_n). The three numbers of each order are those that give a sample of the pool's
texts the highest probability, found by Adam on the exact gradient. Counts of a text are those of the pool
less its own.
"""

import numpy as np

from pools.blend import MOST_DIFFERENT, RUNG
from pools.intervals import MOST_RUNS, locate, runs
from pools.jit import compiled
from pools.lookup import ALPHA, BETA, COUNT, LIVE, first, narrow

POSITIONS = 24_000  # of the sampled texts, at most
LEAST_TEXTS = 20  # fewer tell nothing
_LONGEST = 1000  # tokens of a text, from its start
_STEPS, _RATE = 45, 0.15
_UNSEEN = 0.5  # occurrences of a token that no other text has
_HOPELESS = 1e-3  # far below it a continuation is not drafted anyway, and hardly counts
_START = {"own": 1.5}  # alpha before learning, and where nothing is learned
_START_ALPHA, _START_LIVE = 8.0, 2.0


def fixed(depth: int, kind: str) -> np.ndarray:
    """Weights of a pool that learned none: float64 (3, depth), columns are context orders (0 is unused)."""
    weights = np.zeros((3, depth))
    weights[ALPHA], weights[LIVE] = _START.get(kind, _START_ALPHA), _START_LIVE
    return weights


def learn(index) -> None:
    """Set ``index.weights`` in place, always to the same values for the same texts."""
    ends = np.flatnonzero(index.tokens == 0)
    if ends.size < LEAST_TEXTS:
        return
    starts = np.concatenate(([0], ends[:-1] + 1))
    stops = np.minimum(ends, starts + _LONGEST)  # a text's counts take time by the square of its length
    chosen = np.random.default_rng(0).permutation(ends.size)
    chosen = chosen[np.cumsum((stops - starts)[chosen]) <= POSITIONS]
    orders = index.depth - 1
    found = [_counts(index.addresses, _text(index.tokens, starts[i], stops[i]), orders)
             for i in chosen]
    counts, alone = np.concatenate([c for c, _ in found], axis=1), np.concatenate([p for _, p in found])
    index.weights[:, 1:] = fit(counts, alone, index.weights[:, 1:])


def _text(tokens: np.ndarray, start: int, stop: int) -> np.ndarray:
    """int64 codes of a text, or of its beginning, with 0 behind it."""
    text = np.zeros(stop - start + 1, np.int64)
    text[:-1] = tokens[start:stop]
    return text


def fit(counts: np.ndarray, alone: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Best weights float64 (3, M) for int32 counts (5, P, M): c, of these the truth, d, and live's two.

    alone  float64 (P,)  probability of the truth without any context
    """
    logs = np.log(np.maximum(start, 0.5))
    mean, square = np.zeros_like(logs), np.zeros_like(logs)
    for step in range(1, _STEPS + 1):
        gradient = _gradient(counts, alone, np.exp(logs))
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        rate = _RATE * min(1.0, 2 * (1 - step / (_STEPS + 1)))
        logs -= rate * mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    return np.exp(logs)


@compiled
def _counts(a, text, orders):
    """What ``fit`` takes, (5, T, orders) and (T,), of a text of the pool that ends with code 0."""
    size = text.size
    out, alone = np.zeros((5, size, orders), np.int32), np.ones(size)
    codes = np.zeros(orders, np.int64)
    own, own_true = np.zeros(orders, np.int64), np.zeros(orders, np.int64)
    scratch = np.zeros((3, MOST_RUNS), np.int32)
    for i in range(1, size - 1):
        known = min(i, orders)
        own[:] = 0
        own_true[:] = 0
        alone[i] = max(_UNSEEN, first(a, text[i])[1] - np.sum(text == text[i])) / a[COUNT]
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
            if count == own[n]:  # nor does any longer context occur elsewhere
                break
            true = narrow(a, low, count, n + 1, text[i])[1]
            out[0, i, n] = count - own[n]
            out[1, i, n] = true - own_true[n]
            different = runs(a, low, count, n + 1, 2 * MOST_DIFFERENT, scratch[0], scratch[1], scratch[2])[0]
            out[2, i, n] = max(1, min(MOST_DIFFERENT, different) - (true == own_true[n]))
    return out, alone


@compiled
def _gradient(counts, alone, weights):
    """Gradient (3, M) of the mean negative log probability by the logarithms of the weights."""
    positions, orders = counts.shape[1], counts.shape[2]
    gradient = np.zeros((3, orders))
    gains, shares, left = np.zeros(2 * orders), np.zeros(2 * orders), np.zeros(2 * orders)
    places = np.zeros(2 * orders, np.int64)  # of what the blend looks up: 2 order - 2, one more for the pool
    for i in range(positions):
        rest, size = 1.0, 0
        longest = True
        for n in range(orders, 0, -1):
            for row in (3, 0):
                c = counts[row, i, n - 1]
                if c == 0 or not (RUNG[n] or (row == 0 and longest)):
                    continue
                extra = weights[LIVE, n - 1]
                if row == 0:
                    extra = weights[ALPHA, n - 1] + weights[BETA, n - 1] * counts[2, i, n - 1]
                    longest = False
                gains[size], shares[size] = c / (c + extra), counts[row + 1, i, n - 1] / c
                left[size], places[size] = rest, 2 * n - 2 + (row == 0)
                rest *= 1 - gains[size]
                size += 1
        value = alone[i]
        for j in range(size - 1, -1, -1):
            behind = value
            value = gains[j] * shares[j] + (1 - gains[j]) * behind
            left[j] *= shares[j] - behind  # what a little more gain adds to the probability
        for j in range(size):
            n, pooled = places[j] // 2, places[j] % 2
            c = counts[0 if pooled else 3, i, n]
            # by the terms beside c, negated
            slope = left[j] * gains[j] * gains[j] / c / (value + _HOPELESS) / positions
            if pooled:
                gradient[ALPHA, n] += slope * weights[ALPHA, n]
                gradient[BETA, n] += slope * weights[BETA, n] * counts[2, i, n]
            else:
                gradient[LIVE, n] += slope * weights[LIVE, n]
    return gradient
