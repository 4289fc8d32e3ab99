"""One way of searching, run over all users: top-K items, costs, and comparisons with plain search and with
``generate`` of transformers.

The memory-bound cost is by data sheets, one user at a time: the target is charged as Mistral-7B, a draft
model as LLaMA-68M, which AtSpeed drafts with, both in bfloat16 on an H100 by
``dare_job.bench.roofline``. A forward pass reads every weight once, so up to some 300 tokens cost as
much as one. Choosing beams, and drafters without a model, are free.
"""

import statistics
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from dare_job.bench.recommend.methods import PLAIN, Makers, Method
from dare_job.bench.recommend.world import World
from dare_job.bench.roofline import H100, MISTRAL, Model, forward_ms
from dare_job.decode.trie_search.draft_depth import DraftDepth
from dare_job.decode.trie_search.search import TopKResult
from dare_job.evaluate.measured import timed

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
    """Results and costs of searching for R users.

    Attributes
    ----------
    length
        Levels of an id.
    leaves, scores : (R, K)
        Leaves of the recommended ids, and their scores.
    forwards, queries, memory_bound_ms : (R,)
        Forward passes, queries and memory-bound milliseconds of each user.
    cpu_ms, clock_ms
        Processor and wall-clock milliseconds per user.
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
            depth: DraftDepth | None = None) -> Measured:
    """Search for all users in batches; times are medians of the repeats."""
    queries, search = makers.world.queries(method.drafter), makers.make(method, depth)
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


def compare_with_generate(makers: Makers, k: int, users: int, batch: int) -> dict:
    """Milliseconds per user of plain search and of ``generate`` of transformers with a prefix callback.

    Processor time on a CPU and wall-clock time on a GPU. same_items: users whose items are the same in both.
    """
    world, queries = makers.world, makers.world.queries()[:users]
    search, length = makers.make(Method(PLAIN, k=k)), world.catalogue.trie.length

    def ms(call) -> tuple[list, float]:
        result, seconds, processor = timed(call, world.target.device)
        return result, 1e3 * (seconds if world.target.device.type == "cuda" else processor) / users

    search.search(queries)
    batched, batched_ms = ms(lambda: [search.search(queries[at:at + batch]) for at in range(0, users, batch)])
    single, single_ms = ms(lambda: [search.search([query]) for query in queries])
    following, leaf_of = _following(world)
    with world.target.as_transformers() as model, torch.inference_mode():
        paths, generate_ms = ms(lambda: [_generate(model, list(query.prompt), k, length, following)
                                         for query in queries])
    equal = sum([leaf_of[path] for path in user_paths] == result.leaves[0].tolist()
                for user_paths, result in zip(paths, single, strict=True))
    unchanged = np.array_equal(*(np.concatenate([result.leaves for result in results])
                                 for results in (batched, single)))
    return {"k": k, "users": users, "generate_ms": generate_ms, "search_ms": batched_ms, "batch": batch,
            "search_alone_ms": single_ms, "speedup": generate_ms / single_ms,
            "speedup_batched": generate_ms / batched_ms, "same_items": equal,
            "batches_change_nothing": unchanged}


def _following(world: World) -> tuple[dict, dict]:
    """Tokens after each prefix, and the leaf of each whole id."""
    trie = world.catalogue.trie
    tokens = trie.paths(np.arange(trie.leaves)) + np.array(world.recommender.first_code_token)
    following: dict[tuple, set] = {}
    for path in tokens.tolist():
        for level in range(len(path)):
            following.setdefault(tuple(path[:level]), set()).add(path[level])
    ordered = {prefix: sorted(allowed) for prefix, allowed in following.items()}
    return ordered, {tuple(path): leaf for leaf, path in enumerate(tokens.tolist())}


def _generate(model, prompt: list[int], k: int, length: int, following: dict) -> list[tuple]:
    ids = torch.tensor([prompt], device=model.device)
    paths = model.generate(
        ids, attention_mask=torch.ones_like(ids), num_beams=k, num_return_sequences=k, max_new_tokens=length,
        length_penalty=0.0, do_sample=False,
        prefix_allowed_tokens_fn=lambda _, tokens: following[tuple(tokens[len(prompt):].tolist())])
    return [tuple(path) for path in paths[:, len(prompt):].tolist()]
