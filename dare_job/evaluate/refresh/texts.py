"""Vectors of texts, tokens of texts, and vectors of items, for replayed nights."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from dare_job.embed.lightgcn import Pairs
from dare_job.evaluate.ctr.sets import TextEncoder
from dare_job.models.files import EMBEDDED, resolve
from dare_job.training import lightgcn


def encoded(texts: Sequence[str], encoder: str) -> np.ndarray:
    """Vectors float32 (n, d) of length 1, by the sentence encoder that ``dare-job ctr`` uses."""
    vectors, _ = TextEncoder(encoder)(list(texts))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)


def distances(vectors: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """1 - cosine (n,) of the texts at ``first`` and ``second`` (n,); ``vectors`` (T, d) have length 1."""
    return 1 - np.einsum("nd,nd->n", vectors[first], vectors[second])


def token_counter():
    """Function that counts the tokens of texts by the embedded model's tokenizer."""
    tokenizer = Tokenizer.from_file(str(resolve(EMBEDDED) / "tokenizer.json"))
    return lambda texts: [len(each.ids) for each in tokenizer.encode_batch(texts, add_special_tokens=False)]


def item_vectors(user: np.ndarray, item: np.ndarray, users: int, items: int, seed: int) -> np.ndarray:
    """LightGCN vectors float32 (items, d), of length 1, from clicks: user and item int64 (n,)."""
    pair = np.unique(user * items + item)
    numbers = [pa.array(map(str, range(count))) for count in (users, items)]
    pairs = Pairs(*numbers, *np.divmod(pair, items), np.zeros(len(pair), bool))
    vectors = lightgcn.train(pairs, lightgcn.Training(seed=seed), "cpu").items
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
