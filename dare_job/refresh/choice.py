"""The choice of rows under a budget: a total order, and the longest prefix that the budget covers.

Rows are ordered by tier, then by score (best first, rounded to about 1 %), then by a hash of their id, so the
choice does not depend on partitioning. Rows of a seeded sample are written first, as many of them, by another
hash, as make 2 % of what the budget covers. Rows with equal tier, score and hash are written together
or not at all. ``cut`` and ``sample_end`` work on sums over rows with equal keys as well as on single rows; so
a table of any size is chosen from by its histogram, without collecting its rows.
"""

from dataclasses import dataclass

import numpy as np

# Tiers, in the order in which they are written.
OVERDUE, NO_TEXT, BY_VALUE = range(3)
BINS_PER_DOUBLING = 64  # two scores in one bin differ by at most 1.1 %
MIN_SCORE, MAX_SCORE = 1e-9, 1e12
HASHES = 1 << 16  # values of the hash that orders rows of equal score
SAMPLE_ONE_IN = 50  # rows that are in the sample, and of those written in a run that a budget limits
NOT_SAMPLED = -1


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

    def without(self, rows: int, tokens: int) -> "Budget":
        """What is left after so many rows and tokens; at least 0."""
        return Budget(None if self.rows is None else max(0, self.rows - rows),
                      None if self.tokens is None else max(0, self.tokens - tokens))


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


def sample_end(keys: np.ndarray, rows: np.ndarray, others: tuple[int, int], overdue: tuple[int, int],
               budget: Budget) -> int:
    """The key below which rows of the sample are written: one in SAMPLE_ONE_IN of those that a budget covers.

    Without limits, all of them: also those that something else than the budget holds back.

    Parameters
    ----------
    keys, rows : (n,)
        Keys of the sample, ascending, and the rows of each.
    others, overdue
        Rows and tokens of the tiers after OVERDUE, which have the sample, and of OVERDUE, which come first.
    """
    if budget == Budget():
        return HASHES
    covered, tokens_of_row = float(others[0]), others[1] / max(1, others[0])
    left = budget.without(*overdue)
    if left.rows is not None:
        covered = min(covered, left.rows)
    if left.tokens is not None and tokens_of_row:
        covered = min(covered, left.tokens / tokens_of_row)
    fits = np.cumsum(rows) <= covered // SAMPLE_ONE_IN
    return HASHES if fits.all() else int(keys[np.argmin(fits)])


def choose(tiers: np.ndarray, scores: np.ndarray, hashes: np.ndarray, sample: np.ndarray, tokens: np.ndarray,
           budget: Budget) -> np.ndarray:
    """Which of n rows are written (n,) bool.

    Parameters
    ----------
    tiers : (n,)
        OVERDUE, NO_TEXT or BY_VALUE.
    scores : (n,)
        Value per cost, or what else rows are ranked by; the highest first.
    hashes : (n,)
        Order of rows with equal scores: 0 to ``HASHES`` - 1.
    sample : (n,)
        Key of a row in the seeded sample, 0 to ``HASHES`` - 1, the lowest first; of others NOT_SAMPLED, as of
        all rows of the tier OVERDUE.
    tokens : (n,)
        Tokens of prompt and text.
    """
    tiers, sample, tokens = np.asarray(tiers), np.asarray(sample), np.asarray(tokens)
    overdue = tiers == OVERDUE
    keys, rows = np.unique(sample[sample != NOT_SAMPLED], return_counts=True)
    end = sample_end(keys, rows, (np.sum(~overdue), tokens[~overdue].sum()),
                     (np.sum(overdue), tokens[overdue].sum()), budget)
    chosen = (sample != NOT_SAMPLED) & (sample < end)
    order = np.lexsort((hashes, score_bin(scores), tiers))
    order = order[~chosen[order]]
    places = np.arange(len(order))  # within a tier, keys ascend as the order does
    count = cut(tiers[order], places, np.ones(len(order), np.int64), tokens[order],
                budget.without(chosen.sum(), tokens[chosen].sum()))
    chosen[order[:count]] = True
    return chosen
