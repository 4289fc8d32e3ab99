"""One way of searching, run over all users: lists, what they took, and whether they are the plain ones.

What searches cost where memory bounds forwards: one user at a time, by data sheets.

The target is charged as Mistral-7B, a draft model as LLaMA-68M, which AtSpeed drafts with, both in bfloat16
on an H100 by ``dare_job.evaluate.replay.latency``: a forward reads every weight once, so up to some 300
tokens cost what one does. Choosing beams, and drafters without a model, are not charged.
"""

import statistics
from dataclasses import dataclass
from functools import cache

import numpy as np

from dare_job.bench.measured import timed
from dare_job.bench.recommend.methods import Makers, Method
from dare_job.decode.trie_search.draft_depth import DraftDepth
from dare_job.decode.trie_search.search import TopKResult
from dare_job.evaluate.replay.latency import H100, MISTRAL, Model, forward_ms

ATSPEED_DRAFTER = Model("LLaMA-68M, bfloat16", 6.8e7, 2, 12, 12, 64)
ABOUT = "Mistral-7B drafted by LLaMA-68M on an H100, roofline of the data sheets, one user at a time"
_CONTEXT = 64  # tokens of a usual prompt


@cache
def _ms(target: bool, queries: int, rows: int = 1) -> float:
    return forward_ms(H100, MISTRAL if target else ATSPEED_DRAFTER, rows, queries, _CONTEXT)


def search_ms(lists: TopKResult) -> np.ndarray:
    """Milliseconds float64 (R,) of each user's search alone."""
    return _sum(lists.reads, True) + _sum(lists.draft_reads, False)


def without_tree_ms(lists: TopKResult, width: int, k: int) -> np.ndarray:
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

NEAR = 1e-4  # nats: scores that float32 cannot tell apart behind another grouping of the same sums


@dataclass(frozen=True)
class Measured:
    """Of all users: lists (R, K), scores, forwards and queries (R,), what memory-bound forwards would take,
    the processor's time and the clock's, in milliseconds a user.
    """

    lists: tuple[TopKResult, ...]
    leaves: np.ndarray
    scores: np.ndarray
    forwards: np.ndarray
    queries: np.ndarray
    memory_bound_ms: np.ndarray
    cpu_ms: float
    clock_ms: float

    @property
    def accepted(self) -> float:
        return float(self.lists[0].length - self.forwards.mean())


def measured(makers: Makers, method: Method, batch: int, repeats: int,
             scheduler: DraftDepth | None = None) -> Measured:
    """Lists of all users in batches; times are medians of the repeats."""
    queries, search = makers.world.queries(method.drafter), makers.make(method, scheduler)
    search.search(queries[:batch])  # compiled and warm
    times: dict[str, list[float]] = {"processor": [], "seconds": []}
    for _ in range(repeats):
        found, took = timed(lambda: [search.search(queries[at:at + batch])
                                     for at in range(0, len(queries), batch)])
        times = {name: times[name] + one for name, one in took.items()}
    joined = [np.concatenate([getattr(one, name) for one in found])
              for name in ("leaves", "scores", "forwards", "queries")]
    return Measured(tuple(found), *joined, np.concatenate([search_ms(one) for one in found]),
                    *(1e3 * statistics.median(times[name]) / len(queries)
                      for name in ("processor", "seconds")))


def same(found: Measured, plain: Measured) -> tuple[float, int]:
    """Share of users whose lists are the plain ones, and how many of them have another order among items
    whose scores are nearer than ``NEAR``.
    """
    equal = (found.leaves == plain.leaves).all(1)
    near = np.zeros(len(equal), np.int64)
    for user in np.flatnonzero(~equal):
        other = found.leaves[user] != plain.leaves[user]
        apart = np.abs(found.scores[user] - plain.scores[user])
        gaps = np.abs(np.diff(plain.scores[user], prepend=np.inf, append=np.inf))
        tied = np.minimum(gaps[:-1], gaps[1:]) < NEAR
        tied[-1] = True  # it may be tied with the first one that is left out
        near[user] = (apart < NEAR).all() and (tied | ~other).all()
    return float((equal | (near > 0)).mean()), int(near.sum())
