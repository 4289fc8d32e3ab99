"""How far a text is from the strict text of the same row.

How far the mean of all rows may be from that of those seen, for numbers that are mostly the same.

A row's distance is bounded and mostly 0: where all n rows seen are alike, a t interval or a bootstrap has no
width at all. ``least_mean`` holds for every distribution on [0, 1] and every n. For a mean m the product

    K(m) = sum over f of w(f) prod over rows of (1 + f (x - m) / m),   0 < f <= 1,   sum of w(f) = 1

is at least 0 and has, where the true mean is m or less, an expected value of at most 1; so it is 1 / alpha or
more in at most alpha of all samples (Markov), and every m for which it is so is ruled out. It is what bets of
a share f against m have won: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by
betting" (JRSS B 86, 2024), here with a mixture of fixed bets, so that the order of rows does not matter.
Of n rows that all are 1 the bound is about (alpha / 2) ** (1 / n).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

_WORD = re.compile(r"\w+")
_LEAST = 1e-12
# Half on the bet that loses all where a row is 0, which is the best one where all rows are alike.
_BETS = np.array([1.0, *0.5 ** np.arange(0.5, 10.5, 0.5)])
_WEIGHTS = np.array([0.5, *[0.5 / (len(_BETS) - 1)] * (len(_BETS) - 1)])

Pairs = Sequence[tuple[str, str]]  # (strict text, other text)


@dataclass(frozen=True)
class Distances:
    """Of R rows, each (R,) float64.

    cosine   of the sentence embeddings, -1 to 1
    rouge_l  F1 of ROUGE-L over words, 0 to 1
    length   tokens' difference over those of the longer text, 0 to 1
    same     the texts are equal
    """

    cosine: np.ndarray
    rouge_l: np.ndarray
    length: np.ndarray
    same: np.ndarray


def measure(pairs: Pairs, tokens: np.ndarray, encode: Callable[[list[str]], np.ndarray]) -> Distances:
    """Distances of pairs of texts; equal ones are at no distance, and are not encoded.

    tokens  (R, 2) of the strict and the other text
    encode  n texts to (n, d) vectors
    """
    same = np.array([strict == other for strict, other in pairs], bool)
    cosine, rouge = np.ones(len(pairs)), np.ones(len(pairs))
    differing = np.flatnonzero(~same)
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
    return Distances(cosine, rouge, np.abs(tokens[:, 0] - tokens[:, 1]) / longer, same)


def rouge_l(one: str, other: str) -> float:
    """F1 of ROUGE-L (Lin 2004): 2 LCS / (words + words), of words in lower case as they are, not stemmed."""
    a, b = (_WORD.findall(text.lower()) for text in (one, other))
    if not a or not b:
        return float(a == b)
    return 2 * common_subsequence(a, b) / (len(a) + len(b))


def common_subsequence(a: Sequence, b: Sequence) -> int:
    """Length of the longest common subsequence, a row of the table at once as the bits of one integer.

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


def least_mean(values: np.ndarray, alpha: float) -> float:
    """Lower bound, at level 1 - ``alpha``, of the mean of which (n,) ``values`` in [0, 1] are a sample."""
    values, counts = np.unique(np.asarray(values, float), return_counts=True)
    mean = float(values @ counts / max(counts.sum(), 1))
    if _won(values, counts, _LEAST) < -np.log(alpha):
        return 0.0
    return float(optimize.brentq(lambda m: _won(values, counts, m) + np.log(alpha), _LEAST, mean))


def _won(values: np.ndarray, counts: np.ndarray, mean: float) -> float:
    """log K(mean), which falls as the mean grows."""
    with np.errstate(divide="ignore"):
        factors = np.log1p(_BETS[:, None] * (values - mean) / mean)
    return float(special.logsumexp(factors @ counts, b=_WEIGHTS))
