"""Items with the same codes get ids of their own: another last code, or one level more."""

import numpy as np
from scipy.optimize import linear_sum_assignment

from dare_job.errors import ConfigError


def count(codes: np.ndarray) -> int:
    """Items of codes (n, L) whose id another one before them has."""
    return len(codes) - len(np.unique(codes, axis=0))


def reassigned(codes: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """Codes (n, L) all different: only last codes change, and only below prefixes where two items collide.

    distances (n, C): what each item would pay for each last code. Below such a prefix the items get
    different codes for the least sum (Kuhn and Munkres). Raises ConfigError where a prefix has more items
    than a level has codes.
    """
    found = codes.copy()
    _, owners, sizes = np.unique(codes[:, :-1], axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(owners.reshape(-1), kind="stable")
    for rows in np.split(order, np.cumsum(sizes)[:-1]):
        if len(np.unique(codes[rows, -1])) == len(rows):
            continue
        if len(rows) > distances.shape[1]:
            raise ConfigError(f"{len(rows)} items share all codes but the last, which has "
                              f"{distances.shape[1]}: give more --codes or --levels, or --collisions level")
        found[rows, -1] = linear_sum_assignment(distances[rows])[1]
    return found


def levelled(codes: np.ndarray) -> np.ndarray:
    """Codes (n, L + 1): behind the L codes each item's number among those that share them (TIGER)."""
    _, owners = np.unique(codes, axis=0, return_inverse=True)
    owners = owners.reshape(-1)
    order = np.argsort(owners, kind="stable")
    starts = np.searchsorted(owners[order], owners[order])
    numbers = np.empty(len(codes), codes.dtype)
    numbers[order] = np.arange(len(codes)) - starts
    return np.column_stack((codes, numbers))
