"""Few entities that stand for many: shares of groups, and the members of a group that cover it."""

from collections.abc import Mapping
from typing import TypeVar

import numpy as np

Key = TypeVar("Key")


def quotas(sizes: Mapping[Key, int], count: int) -> dict[Key, int]:
    """How many of ``count`` each group gives by its size: at least one while they last, largest remainders.

    Keys must be sortable. Ties go to the larger group, then to the smaller key; no group gives more than it
    has, and groups that give none are left out.
    """
    order = sorted((key for key in sizes if sizes[key] > 0), key=lambda key: (-sizes[key], key))
    total = sum(sizes[key] for key in order)
    count = min(count, total)
    if count < len(order):
        return dict.fromkeys(order[:count], 1)
    given = {key: max(1, count * sizes[key] // total) for key in order}
    remainder = {key: count * sizes[key] % total for key in order}
    missing = count - sum(given.values())
    for key in sorted(order, key=lambda key: -remainder[key]):  # stable: ties stay in order
        if missing > 0 and given[key] < sizes[key]:
            given[key] += 1
            missing -= 1
    while missing < 0:  # the smallest groups' one each came from the largest shares
        largest = max(order, key=lambda key: given[key] / sizes[key] if given[key] > 1 else 0.0)
        given[largest] -= 1
        missing += 1
    return given


def spread(vectors: np.ndarray, count: int) -> list[int]:
    """Rows of ``vectors`` (n, d), ``count`` or n: the medoid, then each time the farthest from those before.

    The medoid is the row nearest the mean (L2); ties go to the row that stands first. The first rows of a
    longer answer are the shorter answer.
    """
    if not len(vectors) or count < 1:
        return []
    points = np.asarray(vectors, np.float64)
    distances = _squared(points, points.mean(axis=0))
    found = [int(distances.argmin())]
    nearest = np.full(len(points), np.inf)
    while len(found) < min(count, len(points)):
        np.minimum(nearest, _squared(points, points[found[-1]]), out=nearest)
        nearest[found[-1]] = -1.0  # taken, also where others are equal to it
        found.append(int(nearest.argmax()))
    return found


def _squared(points: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Squared distances (n,). No matrix product: the same sums whatever the number of threads."""
    return ((points - centre) ** 2).sum(axis=1)
