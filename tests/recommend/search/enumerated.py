"""Exact enumeration of code that receives its randomness as an argument: every outcome with its probability.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable

import torch

from dare_job.decode.sampling.rules import normalised


class FollowedPath:
    """Randomness of one row that follows a given path of decisions, and records the first undecided one."""

    def __init__(self, way: list[int]):
        self.way, self.options, self.weight = list(way), [], 1.0

    def _decide(self, probabilities: list[float]) -> int:
        at = len(self.options)
        if at == len(self.way):
            self.way.append(next(i for i, one in enumerate(probabilities) if one > 0))
        self.options.append(probabilities)
        self.weight *= probabilities[self.way[at]]
        return self.way[at]

    def accept(self, rows, number, probability):
        probability = float(probability[0])
        return torch.tensor([self._decide([probability, 1 - probability]) == 0])

    def sample_order(self, rows, nodes, weights, limits, purpose):
        assert len(weights) == 1
        left, found = weights[0].clone(), []
        for _ in range(int(limits[0])):
            if not left.sum() > 0:
                break
            found.append(self._decide(normalised(left[None])[0].tolist()))
            left[found[-1]] = 0
        return torch.tensor([found + [-1] * (int(limits[0]) - len(found))], dtype=torch.int64).reshape(1, -1)

    def advance(self, rows):
        pass


def distribution(run: Callable[[FollowedPath], Hashable]) -> dict[Hashable, float]:
    """Return the probabilities of all results of ``run``, which must decide by its argument alone."""
    found: dict[Hashable, float] = defaultdict(float)
    way: list[int] = []
    while True:
        randomness = FollowedPath(way)
        found[run(randomness)] += randomness.weight
        way, options = randomness.way[:len(randomness.options)], randomness.options
        while way:
            last = way.pop()
            later = [i for i in range(last + 1, len(options[len(way)])) if options[len(way)][i] > 0]
            if later:
                way.append(later[0])
                break
        else:
            return dict(found)


def distance(one: dict, other: dict) -> float:
    """Return the total variation distance."""
    return sum(abs(one.get(key, 0) - other.get(key, 0)) for key in one.keys() | other.keys()) / 2


def without_replacement(p: torch.Tensor, k: int) -> dict[tuple[int, ...], float]:
    """Return the distribution of k samples without replacement."""
    found = {(): 1.0}
    for _ in range(min(k, int((p > 0).sum()))):
        found = {(*drawn, x): weight * float(p[x]) / (float(p.sum()) - sum(float(p[y]) for y in drawn))
                 for drawn, weight in found.items() for x in range(len(p)) if x not in drawn and p[x] > 0}
    return found
