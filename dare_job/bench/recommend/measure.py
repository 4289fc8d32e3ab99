"""One way of searching, run over all users: lists, what they took, and whether they are the plain ones."""

import statistics
import time
from dataclasses import dataclass

import numpy as np

from dare_job.bench.recommend import curve
from dare_job.bench.recommend.methods import Makers, Method
from dare_job.decode.beam.top_k.scheduler import Scheduler
from dare_job.decode.beam.top_k.search import Lists

NEAR = 1e-4  # nats: scores that float32 cannot tell apart behind another grouping of the same sums


@dataclass(frozen=True)
class Measured:
    """Of all users: lists (R, K), scores, forwards and queries (R,), what memory-bound forwards would take,
    the processor's time and the clock's, in milliseconds a user.
    """

    lists: tuple[Lists, ...]
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
             scheduler: Scheduler | None = None) -> Measured:
    """Lists of all users in batches; times are medians of the repeats."""
    queries, search = makers.world.queries(method.drafter), makers.make(method, scheduler)
    search.search(queries[:batch])  # compiled and warm
    times, clock = [], []
    for _ in range(repeats):
        begun, at_clock = time.process_time(), time.perf_counter()
        found = [search.search(queries[at:at + batch]) for at in range(0, len(queries), batch)]
        times.append(1e3 * (time.process_time() - begun) / len(queries))
        clock.append(1e3 * (time.perf_counter() - at_clock) / len(queries))
    joined = [np.concatenate([getattr(one, name) for one in found])
              for name in ("leaves", "scores", "forwards", "queries")]
    return Measured(tuple(found), *joined, np.concatenate([curve.search_ms(one) for one in found]),
                    statistics.median(times), statistics.median(clock))


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
