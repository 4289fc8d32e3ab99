"""Chance of sampled beam search, as an argument: a row's numbers hang on nothing but its key and its own
steps.

Whatever else would be decided by chance goes through these two methods, so that tests can follow all that may
happen, each with its probability, through the code that samples.
"""

from typing import Protocol

import numpy as np
import torch

from dare_job.decode.sampling.seeds import VERIFY, uniforms
from dare_job.decode.sampling.steps import normalised


class Chance(Protocol):
    def accept(self, rows: np.ndarray, number: int, probability: torch.Tensor) -> torch.Tensor:
        """bool (S,): whether draft ``number`` of rows (S,) is accepted, with probabilities float64 (S,)."""

    def order(self, rows: np.ndarray, nodes: torch.Tensor, weights: torch.Tensor, limits: torch.Tensor,
              purpose: int) -> torch.Tensor:
        """Places int64 (S, max(limits)), NONE behind a row's limit or support: drawn one after the other by
        weights float64 (S, A), none twice (Plackett-Luce).

        nodes int64 (S, A): what stands in the places; limits int64 (S,)
        """

    def turn(self, rows: np.ndarray) -> None:
        """What rows (S,) decide from now on is decided anew."""


class Random:
    """keys uint64 (R, 2): of the rows, by ``Seeds.keys_of``."""

    def __init__(self, keys: np.ndarray):
        self._keys, self._turns = keys, np.zeros(len(keys), np.int64)

    def accept(self, rows: np.ndarray, number: int, probability: torch.Tensor) -> torch.Tensor:
        found = uniforms(self._keys[rows], self._turns[rows], VERIFY, np.full(len(rows), number), 1)[:, 0]
        return torch.from_numpy(found).to(probability.device) < probability

    def order(self, rows: np.ndarray, nodes: torch.Tensor, weights: torch.Tensor, limits: torch.Tensor,
              purpose: int) -> torch.Tensor:
        """By a race: candidate a arrives at -log(1 - u_a) / weight_a; a number hangs on the node alone."""
        count, width = int(limits.max()), weights.shape[1]
        every = np.repeat(rows, width)
        found = uniforms(self._keys[every], self._turns[every], purpose,
                         nodes.clamp_min(0).flatten().cpu().numpy(), 1).reshape(len(rows), width)
        times = -torch.log1p(-torch.from_numpy(found).to(weights.device)) / normalised(weights)
        times = times.masked_fill(weights <= 0, torch.inf)
        arrived, places = times.sort(dim=-1, stable=True)
        arrived, places = arrived[:, :count], places[:, :count]
        late = torch.arange(places.shape[1], device=limits.device) >= limits[:, None]
        return places.masked_fill(late | (arrived == torch.inf), -1)

    def turn(self, rows: np.ndarray) -> None:
        self._turns[rows] += 1
