"""What searches cost where memory bounds forwards: one user at a time, by data sheets.

The target is charged as Mistral-7B, a draft model as LLaMA-68M, which AtSpeed drafts with, both in bfloat16
on an H100 by ``dare_job.replay.roofline``: a forward reads every weight once, so up to some 300 tokens cost
what one does. Choosing beams, and drafters without a model, are not charged.
"""

from functools import cache

import numpy as np

from dare_job.decode.beam.top_k.search import Lists
from dare_job.replay.roofline import H100, MISTRAL, Model, forward_ms

ATSPEED_DRAFTER = Model("LLaMA-68M, bfloat16", 6.8e7, 2, 12, 12, 64)
ABOUT = "Mistral-7B drafted by LLaMA-68M on an H100, roofline of the data sheets, one user at a time"
_CONTEXT = 64  # tokens of a usual prompt


@cache
def _ms(target: bool, queries: int, rows: int = 1) -> float:
    return forward_ms(H100, MISTRAL if target else ATSPEED_DRAFTER, rows, queries, _CONTEXT)


def search_ms(lists: Lists) -> np.ndarray:
    """Milliseconds float64 (R,) of each user's search alone."""
    return _sum(lists.reads, True) + _sum(lists.draft_reads, False)


def without_tree_ms(lists: Lists, width: int, k: int) -> np.ndarray:
    """The same where each drafted path is a row of its own, with its own copy of the prompt, as without tree
    attention: a forward of ``width`` paths a drafted level, each as long as the levels above it.
    """
    found = _sum(lists.draft_reads, False)
    for user in range(lists.reads.shape[1]):
        own = lists.reads[:, user][lists.reads[:, user] > 0]
        paths = [max(1, int(np.ceil(queries / width))) * width for queries in own]
        found[user] += sum(_ms(True, 1 + lists.length // 2, max(k, count)) for count in paths)
    return found


def _sum(reads: np.ndarray, target: bool) -> np.ndarray:
    costs = np.array([[_ms(target, int(queries)) if queries else 0.0 for queries in forward]
                      for forward in reads])
    return costs.reshape(len(reads), reads.shape[1]).sum(0) if len(reads) else np.zeros(reads.shape[1])
