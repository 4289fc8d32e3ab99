"""Is a node's score the probability that its path is accepted? Predicted against observed, by decile."""

from collections.abc import Sequence

import numpy as np


class Calibration:
    """Collects the scores of drafted nodes, and which of them were accepted."""

    def __init__(self) -> None:
        self._scores, self._accepted = bytearray(), bytearray()  # growing arrays do not disturb what is timed

    def add(self, scores: np.ndarray, accepted: Sequence[int]) -> None:
        """One tree: float32 (nodes,), and the places of the nodes on the accepted path."""
        hit = bytearray(len(scores))
        for place in accepted:
            hit[place] = 1
        self._scores += scores.tobytes()
        self._accepted += hit

    def deciles(self) -> list[dict]:
        """Nodes in ten parts of equal size by score, the lowest first: mean score, accepted share, nodes."""
        scores, accepted = np.frombuffer(self._scores, np.float32), np.frombuffer(self._accepted, np.uint8)
        order = np.argsort(scores, kind="stable")
        return [{"predicted": round(float(scores[part].mean()), 4),
                 "observed": round(float(accepted[part].mean()), 4), "nodes": int(part.size)}
                for part in np.array_split(order, 10) if part.size]
