"""Replay at full cost: texts written again with every forward run at its real price.

Weights are random, so which nodes pass follows recorded text (``recorded``); drafting, forwards, verification
and keeping what passed are those of the job. Beside it, on the same prompts and as many tokens: the engine's
own plain decoding, ``generate`` and ``generate_batch`` of transformers.
"""

import time
from dataclasses import dataclass, replace

import numpy as np

from dare_job.bench.gpu import peers
from dare_job.bench.gpu.budget import Budget, release, wait
from dare_job.bench.gpu.curves import step_ms
from dare_job.bench.gpu.power import Meter
from dare_job.bench.gpu.recorded import RecordedDrafter, RecordedTarget, follow
from dare_job.bench.gpu.texts import Recorded
from dare_job.decode import Engine, EngineSettings, Request, Target
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.tree import build
from pools.draft import DraftSettings, warm_up
from pools.index import Index

LABEL = ("replay at full cost: every forward is run, weights are random, and which draft tokens pass follows "
         "recorded text")
NODES = (1, 2, 4, 8, 15, 31, 63)
_DEPTH = 16
_SAMPLE = 12  # texts on which the number of nodes is chosen


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
    prompt, drafter = len(requests[0].prompt_ids), RetrievalDrafter(DraftSettings(depth=_DEPTH))
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


def choose(target: Target, task: Task, batch: int, context: int, most: int, repeats: int) -> tuple[int, dict]:
    """Nodes a row that promise the most tokens a second by the forward's time here, and what they promise."""
    promises = {}
    for nodes in NODES if most > 64 else NODES[1::2]:
        if batch * (nodes + 1) > most:
            break
        ms = step_ms(target, batch, nodes + 1, context, repeats)
        promises[nodes] = round((1 + accepted(task, nodes)) * batch / ms * 1e3, 1)
        release(target.device)
    return max(promises, key=promises.get), promises


def engine_line(target: Target, task: Task, batch: int, nodes: int, meter: Meter) -> dict:
    """Both ways of the engine: the first run records graphs, the second one counts."""
    settings = EngineSettings(max_new_tokens=None, batch_size=batch, nodes=nodes, depth=_DEPTH, score="never")
    if nodes:
        drafter = RecordedDrafter(RetrievalDrafter(DraftSettings(depth=_DEPTH)))
        engine = Engine(RecordedTarget(target, task.requests, task.texts, drafter), settings, drafter)
    else:
        engine = Engine(target, settings)
    first_s, _ = _timed(target, lambda: list(engine.run(task.requests)))
    (seconds, results), joules = meter.joules(
        lambda: _timed(target, lambda: list(engine.run(task.requests))))
    if wrong := [r.error or "another text" for r in results if r.error or nodes and not np.array_equal(
            r.token_ids, task.texts[r.id])]:
        raise RuntimeError(f"{len(wrong)} of {len(results)} texts were not written as recorded: {wrong[0]}")
    steps = sum(result.target_steps for result in results)
    drafting = sum(result.retrieval_ms for result in results) / 1e3
    return {"way": "drafted" if nodes else "plain", "nodes": nodes, **_rates(task, seconds, joules),
            "accepted_per_step": round(sum(r.accepted_tokens for r in results) / max(1, steps), 3),
            "drafting_share": round(drafting / seconds, 4), "first_run_s": round(first_s, 2),
            "graphs": target.static is not None and target.device.type == "cuda"}


def measure(target: Target, recorded: Recorded, batches: tuple, prompt: int, budget: Budget, until: float,
            meter: Meter, small: bool) -> list[dict]:
    """Lines for each batch size; texts are shortened where they would take more than their share of time."""
    task = Task.of(recorded, prompt, target.vocabulary)
    warm_up()  # compiles drafting, where this machine has not yet
    lines, repeats, most = [], 2 if small else 5, 32 if small else 2048
    for place, batch in enumerate(batches):
        share = max(0.0, until - budget.spent) / (len(batches) - place)
        whole = len(task.texts[0])
        part = task.part(max(4, 2 * batch) if batch < 128 else batch, whole)
        context = prompt + whole // 2
        plain_ms = step_ms(target, batch, 1, context, repeats)
        generate_ms = peers.step_ms(target, part, batch)
        # Two plain and two drafted runs (half of a plain one each), and each peer once.
        waves = -(-len(part.requests) // batch)
        tokens = int(min(whole, max(8, 0.5e3 * share / (waves * 3 * plain_ms + 2 * generate_ms))))
        if tokens < whole:
            budget.note(f"batch {batch}: texts shortened from {whole} to {tokens} tokens for want of time")
            part = part.part(len(part.requests), tokens)
        nodes, promises = choose(target, part, batch, context, most, repeats)
        budget.say(f"batch {batch}: {nodes} nodes promise the most tokens/s of {promises}")
        for line in _lines(target, part, batch, nodes, meter):
            lines.append({"batch": batch, "new_tokens": tokens, **line})
            budget.say(f"batch {batch}, {line['way']}: "
                       + (f"{line['tokens_per_s']} tokens/s" if "error" not in line else line["error"]))
            release(target.device)
    return lines


def _lines(target: Target, task: Task, batch: int, nodes: int, meter: Meter):
    yield engine_line(target, task, batch, 0, meter)
    yield engine_line(target, task, batch, nodes, meter)
    once = task.part(batch, len(task.texts[0]))
    for way, call in (("generate", peers.generate), ("generate_batch", peers.generate_batch)):
        release(target.device)
        try:
            seconds, joules = call(target, once, meter)
        except Exception as error:  # a peer that does not run here is reported, and costs nothing else
            yield {"way": way, "error": f"{type(error).__name__}: {error}".split("\n")[0][:300]}
            continue
        yield {"way": way, "nodes": 0, **_rates(once, seconds, joules)}


def _rates(task: Task, seconds: float, joules: float | None) -> dict:
    return {"texts": len(task.texts), "seconds": round(seconds, 3),
            "tokens_per_s": round(task.tokens / seconds, 1),
            "joules_per_token": None if joules is None else round(joules / task.tokens, 4)}


def _timed(target: Target, call) -> tuple[float, object]:
    wait(target.device)
    started = time.perf_counter()
    result = call()
    wait(target.device)
    return time.perf_counter() - started, result
