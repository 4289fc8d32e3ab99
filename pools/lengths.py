"""How long a row's text usually is, by the lengths of the old texts nearest to it."""

import math
from collections.abc import Iterable

from pools.index import Index

_FEWEST = 20  # texts of which a quantile says something


def usual_length(pools: Iterable[Index], quantile: float) -> int | None:
    """Least length in tokens that the share ``quantile`` of a pool's texts do not pass.

    Of the first of ``pools``, the nearest first, with enough texts: 20, and so many that at least one is
    longer by rank. None where no pool has as many.
    """
    enough = max(_FEWEST, math.ceil(round(1 / (1 - quantile), 6)))
    for pool in pools:
        if pool.texts >= enough:
            return int(pool.lengths[math.ceil(round(quantile * pool.texts, 6)) - 1])
    return None
