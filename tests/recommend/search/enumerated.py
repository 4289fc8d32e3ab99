"""All that may happen in code whose chance is an argument: each outcome with its probability."""

from collections import defaultdict
from collections.abc import Callable, Hashable

import torch

from dare_job.decode.sampling.rules import normalised


class Followed:
    """Chance of one row that takes a given way through its decisions, and the first one behind its end."""

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
        chance = float(probability[0])
        return torch.tensor([self._decide([chance, 1 - chance]) == 0])

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


def law(run: Callable[[Followed], Hashable]) -> dict[Hashable, float]:
    """Probabilities of all results of ``run``, which must decide by its argument alone."""
    found: dict[Hashable, float] = defaultdict(float)
    way: list[int] = []
    while True:
        chance = Followed(way)
        found[run(chance)] += chance.weight
        way, options = chance.way[:len(chance.options)], chance.options
        while way:
            last = way.pop()
            later = [i for i in range(last + 1, len(options[len(way)])) if options[len(way)][i] > 0]
            if later:
                way.append(later[0])
                break
        else:
            return dict(found)


def distance(one: dict, other: dict) -> float:
    """Total variation."""
    return sum(abs(one.get(key, 0) - other.get(key, 0)) for key in one.keys() | other.keys()) / 2


def without_replacement(p: torch.Tensor, k: int) -> dict[tuple[int, ...], float]:
    """The law of k draws one after the other, none twice."""
    found = {(): 1.0}
    for _ in range(min(k, int((p > 0).sum()))):
        found = {(*drawn, x): weight * float(p[x]) / (float(p.sum()) - sum(float(p[y]) for y in drawn))
                 for drawn, weight in found.items() for x in range(len(p)) if x not in drawn and p[x] > 0}
    return found
