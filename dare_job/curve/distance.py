"""How far a text is from the strict text of the same row."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

_WORD = re.compile(r"\w+")
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
