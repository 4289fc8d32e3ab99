"""What a drafter is: it says which trie nodes the target should read next, as plain numbers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch

if TYPE_CHECKING:
    from dare_job.decode.beam.top_k.search import Query


class Progress(NamedTuple):
    """Rows that need a forward.

    rows    int64 (S,): their numbers among those of ``Drafter.begin``
    levels  int64 (S,): codes that their beams have
    nodes   int64 (S, K): their beams, NONE where there are fewer
    scores  float32 (S, K): log-probabilities under the target
    """

    rows: np.ndarray
    levels: np.ndarray
    nodes: np.ndarray
    scores: torch.Tensor


class Drafter(Protocol):
    def begin(self, queries: Sequence["Query"]) -> None:
        """Forget all rows; these are the new ones."""

    def draft(self, progress: Progress) -> np.ndarray:
        """Nodes int64 (S, X) below the beams, NONE where there are fewer; leaves among them are ignored."""
