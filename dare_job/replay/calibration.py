"""Is a node's score the probability that its path is accepted? Predicted against observed, by decile."""

from collections.abc import Sequence

import numpy as np


class Calibration:
    """Collects the scores of drafted nodes, and which of them were accepted."""

    def __init__(self) -> None:
        self._scores: list[np.ndarray] = []
        self._accepted: list[np.ndarray] = []

    def add(self, scores: np.ndarray, accepted: Sequence[int]) -> None:
        """One tree: float32 (nodes,), and the places of the nodes on the accepted path."""
        hit = np.zeros(len(scores), np.bool_)
        hit[list(accepted)] = True
        self._scores.append(np.array(scores))
        self._accepted.append(hit)

    def deciles(self) -> list[dict]:
        """Nodes in ten parts of equal size by score, the lowest first: mean score, accepted share, nodes."""
        if not self._scores:
            return []
        scores, accepted = np.concatenate(self._scores), np.concatenate(self._accepted)
        order = np.argsort(scores, kind="stable")
        return [{"predicted": round(float(scores[part].mean()), 4),
                 "observed": round(float(accepted[part].mean()), 4), "nodes": int(part.size)}
                for part in np.array_split(order, 10) if part.size]
