"""One way of searching, run over all users: top-K items, costs, and a comparison with plain search.

The memory-bound cost is by data sheets, one user at a time: the target is charged as Mistral-7B, a draft
model as LLaMA-68M, which AtSpeed drafts with, both in bfloat16 on an H100 by
``dare_job.evaluate.replay.latency``. A forward pass reads every weight once, so up to some 300 tokens cost as
much as one. Choosing beams, and drafters without a model, are free.
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
NEAR = 1e-4  # nats: scores that float32 cannot tell apart when the same sums are grouped differently


@cache
def _ms(target: bool, queries: int) -> float:
    return forward_ms(H100, MISTRAL if target else ATSPEED_DRAFTER, 1, queries, _CONTEXT)


def search_ms(results: TopKResult) -> np.ndarray:
    """Milliseconds float64 (R,) of each user's search alone."""
    return _sum(results.reads, True) + _sum(results.draft_reads, False)


def _sum(reads: np.ndarray, target: bool) -> np.ndarray:
    costs = [[_ms(target, int(queries)) if queries else 0.0 for queries in forward] for forward in reads]
    return np.array(costs).reshape(reads.shape).sum(0)


@dataclass(frozen=True)
class Measured:
    """Of all users: leaves and scores (R, K), forward passes, queries and memory-bound milliseconds (R,).

    length  levels of an id; cpu_ms, clock_ms: processor and wall-clock milliseconds per user
    """

    length: int
    leaves: np.ndarray
    scores: np.ndarray
    forwards: np.ndarray
    queries: np.ndarray
    memory_bound_ms: np.ndarray
    cpu_ms: float
    clock_ms: float

    @property
    def accepted(self) -> float:
        return float(self.length - self.forwards.mean())


def measure(makers: Makers, method: Method, batch: int, repeats: int,
            scheduler: DraftDepth | None = None) -> Measured:
    """Search for all users in batches; times are medians of the repeats."""
    queries, search = makers.world.queries(method.drafter), makers.make(method, scheduler)
    search.search(queries[:batch])  # compiled and warm
    runs = [timed(lambda: [search.search(queries[at:at + batch]) for at in range(0, len(queries), batch)],
                  makers.world.target.device) for _ in range(repeats)]
    results, times = runs[-1][0], [run[1:] for run in runs]
    joined = [np.concatenate([getattr(part, name) for part in results])
              for name in ("leaves", "scores", "forwards", "queries")]
    clock_ms, cpu_ms = (1e3 * statistics.median(each) / len(queries) for each in zip(*times, strict=True))
    return Measured(results[0].length, *joined, np.concatenate([search_ms(part) for part in results]),
                    cpu_ms, clock_ms)


def same(measured: Measured, plain: Measured) -> tuple[float, int]:
    """Share of users whose items are those of plain search, and the number of them that have another order
    among items whose scores differ by less than ``NEAR``.
    """
    equal = (measured.leaves == plain.leaves).all(1)
    near = np.zeros(len(equal), np.int64)
    for user in np.flatnonzero(~equal):
        other = measured.leaves[user] != plain.leaves[user]
        apart = np.abs(measured.scores[user] - plain.scores[user])
        gaps = np.abs(np.diff(plain.scores[user], prepend=np.inf, append=np.inf))
        tied = np.minimum(gaps[:-1], gaps[1:]) < NEAR
        tied[-1] = True  # it may be tied with the first item that is left out
        near[user] = (apart < NEAR).all() and (tied | ~other).all()
    return float((equal | (near > 0)).mean()), int(near.sum())
