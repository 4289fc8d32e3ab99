"""Beams that ended: the best are kept, and a row ends when none that goes on can be better.

Scores and the end are those of beam search in ``generate`` of transformers with ``early_stopping`` false: a
finished beam's score is log P / tokens ** length_penalty, and a row with as many finished beams as its width
ends once the best beam that goes on, scored at its present length, is no better than the worst of them.
"""

import numpy as np


class Finished:
    """The best finished beams of one row, best first."""

    def __init__(self, width: int, length_penalty: float):
        self.width, self.length_penalty = width, length_penalty
        self.beams: list[tuple[float, np.ndarray, float]] = []  # score, tokens, log P

    def score(self, likelihood: float, tokens: int) -> float:
        return likelihood / tokens**self.length_penalty

    def wanted(self, likelihood: float, tokens: int) -> bool:
        """Whether a beam that ends now is among the best."""
        return len(self.beams) < self.width or self.score(likelihood, tokens) > self.beams[-1][0]

    def add(self, likelihood: float, tokens: np.ndarray) -> None:
        self.beams.append((self.score(likelihood, len(tokens)), tokens, likelihood))
        self.beams.sort(key=lambda beam: -beam[0])
        del self.beams[self.width :]

    def settled(self, likelihood: float, tokens: int) -> bool:
        """Whether nothing is gained by going on: likelihood of the best beam that could, -inf: none."""
        if likelihood == -np.inf:
            return True
        full = len(self.beams) == self.width
        return full and self.score(likelihood, tokens) <= self.beams[-1][0]
