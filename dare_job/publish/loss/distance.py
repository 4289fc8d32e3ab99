"""Distances of texts from the strict texts of the same rows, and confidence bounds of their means.

A row's distance is bounded and mostly 0. If all n sampled rows are equal, a t interval or a bootstrap has
no width. ``mean_lower_bound`` holds for every distribution on [0, 1] and every n. For a mean m the product

    K(m) = sum over f of w(f) prod over rows of (1 + f (x - m) / m),   0 < f <= 1,   sum of w(f) = 1

is at least 0 and, if the true mean is at most m, has an expected value of at most 1. So it reaches 1 / alpha
in at most alpha of all samples (Markov), and every m for which it does is ruled out. K is the wealth won by
bets of a share f against m: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by
betting" (JRSS B 86, 2024), here with a mixture of fixed bets, so that the order of rows does not matter. For
n rows that all are 1 the bound is about (alpha / 2) ** (1 / n).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

_WORD = re.compile(r"\w+")
_MIN_MEAN = 1e-12
# Half of the weight is on the bet that loses all at a row of 0, which is the best one if all rows are equal.
_BETS = np.array([1.0, *0.5 ** np.arange(0.5, 10.5, 0.5)])
_WEIGHTS = np.array([0.5, *[0.5 / (len(_BETS) - 1)] * (len(_BETS) - 1)])

Pairs = Sequence[tuple[str, str]]  # (strict text, other text)


@dataclass(frozen=True)
class Distances:
    """Distances of R rows, each (R,) float64.

    Attributes
    ----------
    cosine
        Of the sentence embeddings, -1 to 1.
    rouge_l
        F1 of ROUGE-L over words, 0 to 1.
    length
        Difference of the token counts over the larger one, 0 to 1.
    equal
        Whether the texts are equal, bool.
    """

    cosine: np.ndarray
    rouge_l: np.ndarray
    length: np.ndarray
    equal: np.ndarray


def measure(pairs: Pairs, tokens: np.ndarray, encode: Callable[[list[str]], np.ndarray]) -> Distances:
    """Distances of pairs of texts; equal texts are not encoded.

    Parameters
    ----------
    tokens : int (R, 2)
        Tokens of the strict and of the other text.
    encode
        Maps n texts to vectors (n, d).
    """
    equal = np.array([strict == other for strict, other in pairs], bool)
    cosine, rouge = np.ones(len(pairs)), np.ones(len(pairs))
    differing = np.flatnonzero(~equal)
    if len(differing):
        texts = list(dict.fromkeys(text for row in differing for text in pairs[row]))
        place = {text: number for number, text in enumerate(texts)}
        vectors = encode(texts).astype(float)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        for row in differing:
            strict, other = pairs[row]
            cosine[row] = np.clip(vectors[place[strict]] @ vectors[place[other]], -1, 1)
            rouge[row] = rouge_l(strict, other)
    longer = np.maximum(tokens.max(axis=1), 1)
    return Distances(cosine, rouge, np.abs(tokens[:, 0] - tokens[:, 1]) / longer, equal)


def rouge_l(text: str, other: str) -> float:
    """F1 of ROUGE-L (Lin 2004): 2 LCS / (words + words), of lower-case words without stemming."""
    a, b = (_WORD.findall(part.lower()) for part in (text, other))
    if not a or not b:
        return float(a == b)
    return 2 * common_subsequence(a, b) / (len(a) + len(b))


def common_subsequence(a: Sequence, b: Sequence) -> int:
    """Length of the longest common subsequence; a row of the table is computed as the bits of one integer.

    Bit i of ``row`` is 0 where the table's column i is one more than the one before it (Hyyro 2004).
    """
    places: dict = {}
    for number, item in enumerate(a):
        places[item] = places.get(item, 0) | 1 << number
    full = (1 << len(a)) - 1
    row = full
    for item in b:
        match = row & places.get(item, 0)
        row = (row + match | row - match) & full
    return len(a) - row.bit_count()


def mean_lower_bound(values: np.ndarray, alpha: float) -> float:
    """Lower bound, at level 1 - ``alpha``, of the mean of which (n,) ``values`` in [0, 1] are a sample."""
    values, counts = np.unique(np.asarray(values, float), return_counts=True)
    if _log_wealth(values, counts, _MIN_MEAN) < -np.log(alpha):
        return 0.0
    mean = float(values @ counts / counts.sum())
    return float(optimize.brentq(lambda m: _log_wealth(values, counts, m) + np.log(alpha), _MIN_MEAN, mean))


def share_upper_bound(changed: int, rows: int, alpha: float) -> float:
    """Upper bound, at level 1 - ``alpha``, of the share of which ``changed`` of ``rows`` are a sample.

    It is that of Clopper and Pearson ("The use of confidence or fiducial limits illustrated in the case of
    the binomial", Biometrika 1934), one-sided.
    """
    return float(special.betaincinv(changed + 1, rows - changed, 1 - alpha)) if changed < rows else 1.0


def _log_wealth(values: np.ndarray, counts: np.ndarray, mean: float) -> float:
    """log K(mean), which falls as the mean grows."""
    with np.errstate(divide="ignore"):
        factors = np.log1p(_BETS[:, None] * (values - mean) / mean)
    return float(special.logsumexp(factors @ counts, b=_WEIGHTS))
