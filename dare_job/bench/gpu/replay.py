"""Replay at full cost: recorded texts are generated again and every forward pass is run.

Weights are random, so the recorded texts decide which draft tokens are accepted; drafting, forward passes,
verification and the cache are those of the job. Beside it, on the same prompts: the
engine's own autoregressive decoding, ``generate`` and ``generate_batch`` of transformers, and vLLM without
drafts where it is installed. These write as many tokens in each text as the longest one has, and all count.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from dare_job.bench.gpu import peers, vllm_peer
from dare_job.bench.gpu.curves import step_ms
from dare_job.bench.gpu.machine import Budget, Meter, release
from dare_job.bench.gpu.task import DEPTH, RecordedTarget, Task, accepted
from dare_job.bench.gpu.texts import Recorded
from dare_job.bench.roofline import published_ms
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine.draft_budget import AdaptiveBudget, max_row_nodes
from dare_job.decode.engine.engine import Engine
from dare_job.decode.engine.latency import LatencyCurve
from dare_job.decode.model.target import Target
from dare_job.decode.request import Result
from dare_job.decode.settings import EngineSettings
from dare_job.evaluate.measured import timed
from pools.draft import DraftSettings, warm_up

NODES = (1, 2, 4, 8, 15, 31, 63)
_RUNS = 3  # maximum for one engine, if each still records graphs
_VLLM_SHARE = 1 / 3  # of the time of the replay


def label(recorded: Recorded) -> str:
    """What every row of the replay measures."""
    return ("replay at full cost: every forward is run, weights and prompts are random, and which draft "
            f"tokens pass follows {recorded.source}")


def costs(target: Target, batch: int, context: int, max_queries: int, repeats: int) -> dict[int, float]:
    """{queries per row: milliseconds of a step} of this batch size."""
    ms = {}
    for nodes in (0, *NODES) if max_queries > 64 else (0, *NODES[1::2]):
        if nodes and (batch * (nodes + 1) > max_queries or nodes > max_row_nodes(batch, True)):
            break
        ms[nodes + 1] = round(step_ms(target, batch, nodes + 1, context, repeats), 4)
        release(target.device)
    return ms


def engine_row(target: Target, task: Task, batch: int, nodes: int, meter: Meter,
                draft_budget: AdaptiveBudget | None = None) -> dict:
    """One way of the engine: the first run records graphs; the last one, which records none, is timed.

    Raises
    ------
    RuntimeError
        A row fails, or with drafts a text differs from the recorded one.
    """
    settings = EngineSettings(max_new_tokens=None, batch_size=batch, nodes=nodes, depth=DEPTH, score="never")
    if nodes:
        drafter = RetrievalDrafter(DraftSettings(depth=DEPTH))
        recorded = RecordedTarget(target, task.requests, task.texts)
        engine = Engine(recorded, settings, drafter, draft_budget=draft_budget)
    else:
        engine = Engine(target, settings)
    first_s = None
    for _ in range(_RUNS):
        before = _graphs(engine.target.spare_cache)
        (results, seconds, _), joules = meter.joules(
            lambda: timed(lambda: list(engine.run(task.requests)), target.device))
        new_graphs = _graphs(engine.target.spare_cache) - before
        if first_s is not None and not new_graphs:
            break
        first_s = first_s or seconds
    target.spare_cache = None  # frees its memory for the next measurement
    if wrong := [r.error or "another text" for r in results if r.error or nodes and not np.array_equal(
            r.token_ids, task.texts[r.id])]:
        raise RuntimeError(f"{len(wrong)} of {len(results)} texts differ from the recorded ones: {wrong[0]}")
    steps = sum(result.target_steps for result in results)
    drafting = sum(result.retrieval_ms for result in results) / 1e3
    published = {}
    if target.device.type == "cuda" and not draft_budget:
        published = {"published_tokens_per_s": round(published_rate(task, batch, nodes, results), 1)}
    return {"way": "budgeted" if draft_budget else "drafted" if nodes else "plain", "nodes": nodes,
            **_rates(task, task.tokens, seconds, joules), **published,
            "accepted_per_step": round(sum(r.accepted_tokens for r in results) / max(1, steps), 3),
            "drafting_share": round(drafting / seconds, 4), "first_run_s": round(first_s, 2),
            "recorded_meanwhile": new_graphs,
            "graphs": target.paged is not None and target.paged.records}


def published_rate(task: Task, batch: int, nodes: int, results: Sequence[Result]) -> float:
    """Tokens per second by the published line of vLLM on an H100, with the same texts and acceptance.

    All slots are in use, each row has ``nodes`` draft tokens, and a prompt token costs what a query costs.
    """
    steps = sum(result.target_steps for result in results)
    context = sum(result.target_steps * (len(task.requests[result.id].prompt_ids)
                                         + len(task.texts[result.id]) / 2) for result in results) / steps
    prompts = sum(len(request.prompt_ids) for request in task.requests)
    query_ms = published_ms(1, 1) - published_ms(1, 0)
    ms = steps / batch * published_ms(batch, 1 + nodes, context) + query_ms * prompts
    return 1e3 * task.tokens / ms


def _graphs(cache) -> int:
    return len(getattr(cache, "graphs", ()))


def measure(target: Target, recorded: Recorded, batches: tuple, prompt: int, budget: Budget, until: float,
            meter: Meter, small: bool) -> list[dict]:
    """Rows for each batch size; texts are shortened if they would take more than their share of time.

    vLLM, where it is installed, has a third of the time, and what the others leave; ``small``: as long as it
    takes.
    """
    warm_up()  # compiles drafting, where this machine has not yet
    task, parts, rows = Task.of(recorded, prompt, target.vocabulary), {}, []
    python, lacking = vllm_peer.interpreter()
    end = until if lacking or small else until - _VLLM_SHARE * max(0.0, until - budget.spent)
    for number, batch in enumerate(batches):
        share = max(0.0, end - budget.spent) / (len(batches) - number)
        part, found = _measure_batch(target, task, batch, prompt, share, budget, meter, small)
        parts[batch] = part.part(batch, part.longest)
        rows += found
    limit_s = None if small else max(1.0, until - budget.spent)
    seconds, why = ({}, lacking) if lacking else vllm_peer.generate(python, target, parts, limit_s)
    for batch, part in parts.items():
        row = _peer_row("vllm", part, seconds[batch], None) if batch in seconds else _failed("vllm", why)
        rows.append(_told({"batch": batch, **row}, budget))
    return rows


def _measure_batch(target: Target, task: Task, batch: int, prompt: int, share: float, budget: Budget,
                   meter: Meter, small: bool) -> tuple[Task, list[dict]]:
    """Rows of one batch size in ``share`` seconds, and the part of the task that they are about."""
    whole, repeats, max_queries = task.longest, 2 if small else 5, 32 if small else 2048
    part, context = task.part(max(4, 2 * batch), whole), prompt + whole // 2
    plain_ms = step_ms(target, batch, 1, context, repeats)
    generate_ms = peers.step_ms(target, part, batch)
    # Two or three runs of each way of the engine, with drafts in half the time; peers run once.
    waves = -(-len(part.requests) // batch)
    tokens = int(min(whole, max(8, 0.5e3 * share / (waves * 5 * plain_ms + 2 * generate_ms))))
    if tokens < whole:
        budget.note(f"batch {batch}: texts shortened from {whole} to {tokens} tokens for lack of time")
        part = part.part(len(part.requests), tokens)
    step_costs = costs(target, batch, context, max_queries, repeats)
    expected = {queries - 1: round((1 + accepted(task, queries - 1)) * batch / ms * 1e3)
                for queries, ms in step_costs.items() if queries > 1}
    nodes = max(expected, key=expected.get)
    budget.say(f"batch {batch}: {nodes} draft tokens have the highest expected tokens/s of {expected}")
    table = {str(batch): {str(queries): ms for queries, ms in step_costs.items()}}
    draft_budget = AdaptiveBudget(LatencyCurve.of(table, "the curve"), max(expected), target.round_up)
    return part, [_told({"batch": batch, "new_tokens": tokens, **row}, budget)
                  for row in _rows(target, part, batch, nodes, draft_budget, meter)]


def _rows(target: Target, task: Task, batch: int, nodes: int, draft_budget: AdaptiveBudget,
           meter: Meter) -> Iterator[dict]:
    for options in ((0, meter), (nodes, meter), (draft_budget.nodes, meter, draft_budget)):
        yield engine_row(target, task, batch, *options)
        release(target.device)
    once = task.part(batch, task.longest)
    for way, call in peers.WAYS.items():
        try:
            yield _peer_row(way, once, *call(target, once, meter))
        except Exception as error:  # a peer that does not run here is reported and ends nothing
            yield _failed(way, f"{type(error).__name__}: {error}")
        release(target.device)


def _peer_row(way: str, task: Task, seconds: float, joules: float | None) -> dict:
    """Peers write as many tokens in each text as the longest one has, and all count."""
    return {"way": way, "nodes": 0, "new_tokens": task.longest,
            **_rates(task, task.longest * len(task.texts), seconds, joules)}


def _failed(way: str, why: str) -> dict:
    return {"way": way, "error": why.split("\n")[0][:300]}


def _told(row: dict, budget: Budget) -> dict:
    """Return a row after a line about it."""
    budget.say("batch {batch}, {way}: ".format(**row)
               + (row["error"] if "error" in row else f"{row['tokens_per_s']} tokens/s"))
    return row


def _rates(task: Task, tokens: int, seconds: float, joules: float | None) -> dict:
    return {"texts": len(task.texts), "seconds": round(seconds, 3),
            "tokens_per_s": round(tokens / seconds, 1),
            "joules_per_token": None if joules is None else round(joules / tokens, 4)}
