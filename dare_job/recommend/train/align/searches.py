"""The nights' own search, for an alignment: by the target, by the draft as it is now, and by both mixed."""

import copy
import math
from collections.abc import Sequence

import numpy as np
import torch

from dare_job.decode.beam.top_k.reader import Children, Reader
from dare_job.decode.beam.top_k.search import Query, TopK
from dare_job.decode.beam.top_k.trie import Trie, Vocabulary
from dare_job.decode.target import Target
from dare_job.recommend.ids.vocabulary import Recommender

USERS = 32  # at once
Scorer = tuple[torch.nn.Module, Recommender]
Engine = tuple[Target, Recommender]


def engine(scorer: Scorer, learns: bool = False) -> Engine:
    """A model as the search runs it, its attention exchanged and its weights packed as they are now: a copy
    of one that learns on.
    """
    model, recommender = scorer
    return Target(copy.deepcopy(model) if learns else model, check=False, static=False), recommender


def plain(by: Engine, trie: Trie, k: int) -> TopK:
    """The k best ids, or all where there are fewer."""
    return TopK(by[0], trie, by[1].first_code_token, min(k, trie.leaves))


class MixedTopK(TopK):
    """By the law share * p + (1 - share) * q of the next code, of two models: AtSpeed-S learns on its beams.

    ``prompt`` of a query is what p reads, ``draft_prompt`` what q does.
    """

    def __init__(self, p: Engine, q: Engine, share: float, trie: Trie, k: int):
        super().__init__(p[0], trie, p[1].first_code_token, min(k, trie.leaves))
        other = Reader(q[0], Vocabulary(trie, list(q[1].first_code_token), q[0].device))
        self.reader = _Mixture((self.reader, other), (share, 1 - share))

    def begin(self, queries: Sequence[Query]) -> None:
        self.reader.begin([(query.prompt, query.draft_prompt) for query in queries])


class _Mixture:
    """What several readers have read, as one of them: the mixture of their laws."""

    def __init__(self, readers: Sequence[Reader], shares: Sequence[float]):
        self._readers = readers
        self._logs = [math.log(share) if share else -math.inf for share in shares]

    @property
    def reads(self) -> list[np.ndarray]:
        return self._readers[0].reads

    def begin(self, prompts: Sequence[Sequence[Sequence[int]]]) -> None:
        """prompts: of each row, one a reader."""
        for reader, own in zip(self._readers, zip(*prompts, strict=True), strict=True):
            reader.begin(own)

    def knows(self, rows: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        return self._readers[0].knows(rows, nodes)

    def read(self, rows: np.ndarray, nodes: np.ndarray) -> None:
        for reader in self._readers:
            reader.read(rows, nodes)

    def children(self, rows: np.ndarray, nodes: np.ndarray) -> Children:
        found = [reader.children(rows, nodes) for reader in self._readers]
        mixed = torch.stack([logs + share for (*_, logs), share in zip(found, self._logs, strict=True)])
        return *found[0][:2], mixed.logsumexp(0)
