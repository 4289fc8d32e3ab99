"""Verifiers of users in replays, which have no model."""

from collections.abc import Sequence

import numpy as np
import torch

from dare_job.config.plugins import PlugIn
from dare_job.decode.model.tree import build
from dare_job.decode.verify import plugin
from pools.tree import DraftBatch

_LOGIT = 30.0  # of the recorded token; the others have 0, which gives it almost all probability


class Recorded:
    """Verifies with scores that a recorded text gives: at each position, its token is all but certain.

    This is so after any accepted token, also one that differs from the text. It is an estimate for verifiers
    that tolerate a token for what follows it; one that compares probabilities is as strict as the text.
    """

    def __init__(self, verifier: PlugIn, vocabulary: int):
        """``vocabulary``: larger than any token of the texts."""
        self._eos = torch.zeros(0, dtype=torch.long)
        self._verifier, self._end = verifier.make(self._eos), vocabulary
        self._scores = torch.zeros((0, vocabulary + 1))

    def __call__(self, row: np.ndarray, known: int, prompt: int, tokens: Sequence[int],
                 parents: Sequence[int]) -> list[int]:
        """As ``measure.Verifier``."""
        tree = build(row[known - 1 : known], DraftBatch.of([tokens], [parents]), np.array([len(tokens)]))
        if len(self._scores) < len(tree):
            self._scores = torch.zeros((len(tree), self._end + 1))
        places, queries = known + tree.host[2], torch.arange(len(tree))
        wanted = np.where(places < row.size, row[np.minimum(places, row.size - 1)], self._end)
        at = queries, torch.from_numpy(wanted.astype(np.int64))
        scores = self._scores[: len(tree)]
        scores[at] = _LOGIT
        context = row[None, :known], np.array([known]), np.array([max(1, prompt)])
        result = plugin.verify(self._verifier, scores, tree, None, self._eos, context)
        scores[at] = 0.0
        return (result.paths[0, 1 : result.counts[0] + 1] - 1)[: row.size - known].tolist()
