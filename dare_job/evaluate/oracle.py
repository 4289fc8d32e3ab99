"""Drafts that contain a known text among wrong branches, to exercise verification."""

from collections.abc import Mapping, Sequence

import numpy as np

from dare_job.decode.request import Request
from pools.tree import ROOT, SOURCE_MODEL, DraftBatch


class OracleDrafter:
    """Drafts each row's known text.

    The right token comes after its wrong siblings, some of which have children, so that the accepted path is
    rarely the first or contiguous. Some paths end in wrong tokens only.
    """

    def __init__(self, texts: Mapping[object, Sequence[int]], vocabulary: int, distractors: int = 2,
                 error_rate: float = 0.1, seed: int = 0):
        """``texts``: token ids (tokens,) by request id, without the prompt."""
        self._texts = {key: np.asarray(text, np.int32) for key, text in texts.items()}
        self._vocabulary, self._distractors, self._error_rate = vocabulary, distractors, error_rate
        self._rng = np.random.default_rng(seed)

    def draft(self, requests: Sequence[Request], context: np.ndarray, lengths: np.ndarray,
              budgets: np.ndarray, depths: np.ndarray, min_score: float = 0.0) -> DraftBatch:
        """As ``Drafter.draft``; ``min_score`` has no effect."""
        shape = (len(requests), int(budgets.max(initial=0)))
        tokens, parents = np.zeros(shape, np.int32), np.full(shape, ROOT, np.int32)
        sizes = np.zeros(len(requests), np.int32)
        for row, request in enumerate(requests):
            ahead = self._texts.get(request.id, ())[lengths[row] - len(request.prompt_ids):][: depths[row]]
            nodes = self._tree(ahead, budgets[row])
            sizes[row] = len(nodes)
            for column, (token, parent) in enumerate(nodes):
                tokens[row, column], parents[row, column] = token, parent
        scores, sources = np.ones(shape, np.float32), np.full(shape, SOURCE_MODEL, np.uint8)
        return DraftBatch(tokens, parents, sizes, scores, sources)

    def _tree(self, ahead: Sequence[int], budget: int) -> list[tuple[int, int]]:
        """Return (token, parent) of at most ``budget`` nodes, parents first."""
        nodes: list[tuple[int, int]] = []
        parent = ROOT
        for depth, right in enumerate(ahead):
            wrong = self._rng.choice(self._vocabulary, self._distractors + 1, replace=False)
            wrong = [int(token) for token in wrong if token != right][: self._distractors]
            if self._rng.random() < self._error_rate:
                right = None
            siblings = wrong + ([] if right is None else [int(right)])
            first = len(nodes)
            nodes += [(token, parent) for token in siblings]
            if right is None:
                break
            if depth + 1 < len(ahead) and wrong:
                nodes.append((int(ahead[depth + 1]), first))
            parent = first + len(siblings) - 1
        return nodes[:budget]
