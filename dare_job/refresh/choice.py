"""The choice of rows under a budget: a total order, and the longest prefix that the budget covers.

Rows are ordered by tier, then by score (best first, rounded to about 1 %), then by a hash of their id, so the
choice does not depend on partitioning. The seeded sample is ordered by the hash alone, and limited to a share
of what the budget covers. Rows with equal tier, score and hash are written together or not at all. ``cut``
works on sums over rows with equal keys as well as on single
rows; so a table of any size is chosen from by its histogram, without collecting its rows.
"""

from dataclasses import dataclass

import numpy as np

# Tiers, in the order in which they are written.
OVERDUE, SAMPLE, NO_TEXT, BY_VALUE = range(4)
BINS_PER_DOUBLING = 64  # two scores in one bin differ by at most 1.1 %
MIN_SCORE, MAX_SCORE = 1e-9, 1e12
HASHES = 1 << 16  # values of the hash that orders rows of equal score
SAMPLE_ONE_IN = 50  # rows that are in the sample, and of those written in a run that a budget limits


@dataclass(frozen=True)
class Budget:
    """What a run may write. None: no limit.

    Attributes
    ----------
    rows
        Texts.
    tokens
        Tokens of prompts and texts together.
    """

    rows: int | None = None
    tokens: int | None = None


def score_bin(scores: np.ndarray) -> np.ndarray:
    """Number of a score's bin (int64); a lower number is a better score."""
    clipped = np.clip(np.asarray(scores, np.float64), MIN_SCORE, MAX_SCORE)
    return -np.floor(np.log2(clipped) * BINS_PER_DOUBLING).astype(np.int64)


def cut(tiers: np.ndarray, keys: np.ndarray, rows: np.ndarray, tokens: np.ndarray, budget: Budget) -> int:
    """Number of entries, in the order given, that the budget covers.

    Parameters
    ----------
    tiers, keys : (n,)
        Ascending by (tier, key): the order in which entries are written.
    rows, tokens : (n,)
        Rows and tokens of each entry.

    Returns
    -------
    n
        Entries of the tier OVERDUE are always covered. They use up the budget and may exceed it.
    """
    order = np.lexsort((keys, tiers))
    if not np.array_equal(order, np.arange(len(order))):
        raise ValueError("entries must be sorted by tier and key")
    fits = np.ones(len(order), bool)
    for amounts, limit in ((rows, budget.rows), (tokens, budget.tokens)):
        if limit is not None:
            fits &= np.cumsum(amounts) <= limit
    fits |= np.asarray(tiers) == OVERDUE
    return len(fits) if fits.all() else int(np.argmin(fits))


def sample_limit(tiers: np.ndarray, rows: np.ndarray, tokens: np.ndarray, budget: Budget) -> int:
    """Maximum number of rows of the sample: one in SAMPLE_ONE_IN of those that a budget covers.

    Parameters
    ----------
    tiers, rows, tokens : (n,)
        Tier, and rows and tokens, of each entry. Entries of the tier OVERDUE come first and do not count.
    """
    overdue = np.asarray(tiers) == OVERDUE
    left_rows, left_tokens = rows[~overdue].sum(), tokens[~overdue].sum()
    covered = float(left_rows)
    if budget.rows is not None:
        covered = min(covered, budget.rows - rows[overdue].sum())
    if budget.tokens is not None and left_tokens:
        covered = min(covered, left_rows * (budget.tokens - tokens[overdue].sum()) / left_tokens)
    return max(0, -int(-covered // SAMPLE_ONE_IN))


def choose(tiers: np.ndarray, scores: np.ndarray, hashes: np.ndarray, tokens: np.ndarray, budget: Budget
           ) -> np.ndarray:
    """Which of n rows are written (n,) bool.

    Parameters
    ----------
    tiers : (n,)
        OVERDUE, SAMPLE, NO_TEXT or BY_VALUE.
    scores : (n,)
        Value per cost, or what else rows are ranked by; the highest first.
    hashes : (n,)
        Order of rows with equal scores: 0 to ``HASHES`` - 1.
    tokens : (n,)
        Tokens of prompt and text.
    """
    tiers, tokens = np.asarray(tiers), np.asarray(tokens)
    bins = np.where(tiers == SAMPLE, 0, score_bin(scores))
    order = np.lexsort((hashes, bins, tiers))
    sampled = np.flatnonzero(tiers[order] == SAMPLE)
    limit = sample_limit(tiers, np.ones(len(tiers), np.int64), tokens, budget)
    order = np.delete(order, sampled[limit:])
    places = np.arange(len(order))  # within a tier, keys ascend as the order does
    count = cut(tiers[order], places, np.ones(len(order), np.int64), tokens[order], budget)
    chosen = np.zeros(len(tiers), bool)
    chosen[order[:count]] = True
    return chosen
