"""What the replay writes, and what drafts of it are worth by themselves."""

from dataclasses import dataclass, replace

import numpy as np

from dare_job.bench.gpu.recorded import follow
from dare_job.bench.gpu.texts import Recorded
from dare_job.decode import Request
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.tree import build
from pools.draft import DraftSettings
from pools.index import Index

DEPTH = 16  # longest draft path
_SAMPLE = 12  # texts on which acceptance is counted


@dataclass(frozen=True)
class Task:
    """What is written: prompts and texts of the requests, and the pool of old text."""

    requests: list[Request]
    texts: list[np.ndarray]
    pool: Index

    @classmethod
    def of(cls, recorded: Recorded, prompt: int, vocabulary: int) -> "Task":
        rng, pool = np.random.default_rng(1), Index.build(recorded.old)
        prompts = rng.integers(2, vocabulary, (len(recorded.new), prompt)).astype(np.int32)
        return cls([Request(i, ids, (pool,)) for i, ids in enumerate(prompts)], recorded.new, pool)

    def part(self, count: int, tokens: int) -> "Task":
        """The first ``count`` texts, cut to so many tokens."""
        requests = [replace(request, max_new_tokens=tokens) for request in self.requests[:count]]
        return Task(requests, [text[:tokens] for text in self.texts[:count]], self.pool)

    @property
    def tokens(self) -> int:
        return sum(map(len, self.texts))


def accepted(task: Task, nodes: int) -> float:
    """Accepted tokens a step with so many nodes, counted without a model on a few texts."""
    texts = np.stack(task.texts[:_SAMPLE])
    requests, rows = task.requests[: len(texts)], np.arange(len(texts))
    prompt, drafter = len(requests[0].prompt_ids), RetrievalDrafter(DraftSettings(depth=DEPTH))
    context = np.concatenate((np.stack([request.prompt_ids for request in requests]), texts), 1)
    known, length = np.ones(len(texts), np.int64), texts.shape[1]
    taken = steps = 0
    while len(active := rows[known[rows] < length]):
        ends = known[active] + prompt
        depths = (length - known[active] - 1).astype(np.int32)
        budgets = np.where(depths > 0, nodes, 0).astype(np.int32)
        drafts = drafter.draft([requests[row] for row in active], context[active], ends.astype(np.int32),
                               budgets, depths)
        tree = build(context[active, ends - 1], drafts, depths)
        choices = np.full(len(tree.tokens), -1)
        follow(*tree.host, texts, active, known[active] - 1, choices)
        passed = np.maximum.reduceat(np.where(choices >= 0, tree.host[2], 0), tree.starts[:-1])
        known[active] += passed + 1
        taken, steps = taken + int(passed.sum()), steps + len(active)
    return taken / steps
