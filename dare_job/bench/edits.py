"""How far two texts are apart, in tokens."""

import numba
import numpy as np


@numba.njit(cache=True)
def distance(a, b):
    """Edit distance of two texts over the longer one's tokens; 0 where both are empty."""
    above = np.arange(len(b) + 1)
    for i in range(len(a)):
        left, corner = i + 1, above[0]
        above[0] = left
        for j in range(len(b)):
            left = min(left + 1, above[j + 1] + 1, corner + (a[i] != b[j]))
            corner = above[j + 1]
            above[j + 1] = left
    return above[len(b)] / max(len(a), len(b), 1)
