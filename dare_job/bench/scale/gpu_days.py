"""GPU-days of a night on paper: recorded texts written again, forwards as a computed curve has them."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dare_job.bench import decode_overhead
from dare_job.decode.engine.draft_budget import max_row_nodes
from dare_job.decode.model.target import Target
from dare_job.evaluate.replay import budgets, latency
from dare_job.evaluate.replay import latency as replay_latency
from dare_job.evaluate.replay.sources import Corpus
from dare_job.models.files import resolve
from pools.draft import DraftSettings
from pools.index import Index

DAY_S = 86_400
_ROWS = (1, 32)  # between which the time outside the forward is a line


@dataclass(frozen=True)
class Night:
    """Texts there are, the share of them that is stale, tokens of a text and of its prompt."""

    texts: int
    stale: float
    tokens: int
    prompt: int


def host() -> dict[str, tuple[float, float]]:
    """Microseconds outside the forward by way of decoding, measured here: of a step, and of each row."""
    target = Target.load(resolve("embedded"))
    target.generation_config.eos_token_id = None
    options = argparse.Namespace(model="embedded", new_tokens=80, repeats=3, threads=1)
    found = {}
    for way, nodes in (("plain", "0"), ("dare", "16")):
        one, many = (decode_overhead.measure(target, rows, nodes, options)["outside_us"] for rows in _ROWS)
        row = (many - one) / (_ROWS[1] - _ROWS[0])
        found[way] = one - row * _ROWS[0], row
    return found


def gpu_days(night: Night, name: str, corpus: Corpus, batches: Sequence[int],
             outside: dict[str, tuple[float, float]]) -> list[dict]:
    """GPU-days of all texts, plain and with drafts, at each batch size; hours of the stale ones.

    Forwards and drafting alone, and with all that a step takes outside its forward (``host``).
    """
    device, model = replay_latency.FILES[name]
    curve = latency.Curve.of(replay_latency.document(device, model)["latency_ms"], name)
    near, settings = [(Index.build(corpus.rest),)] * len(corpus.test), DraftSettings(threads=1)
    budgets.fixed(corpus.test[:2], near[:2], 1, 2, settings)  # compiled
    rows = []
    for batch in batches:
        prompt_s = replay_latency.forward_ms(device, model, batch, night.prompt, 0) / batch / 1e3
        ways = {"plain": budgets.fixed(corpus.test, near, batch, 0, settings),
                "dare": budgets.scheduled(corpus.test, near, batch, max_row_nodes(batch), settings, curve)}
        days, hosted = {}, {}
        for way, steps in ways.items():
            written = steps.tokens.sum()
            alone_s = written / steps.tokens_per_s(curve)
            outside_s = (outside[way][0] + outside[way][1] * steps.rows).sum() / 1e6
            both = np.array([alone_s, alone_s - steps.beside_ms.sum() / 1e3 + outside_s])
            days[way], hosted[way] = night.texts * (prompt_s + night.tokens * both / written) / DAY_S
        dare = ways["dare"]
        rows.append({
            "curve": name, "batch": batch,
            "accepted a step": round(float(dare.tokens.sum() / dare.rows.sum() - 1), 2),
            "nodes a row": round(float(dare.nodes.sum() / dare.rows.sum()), 1),
            "prompts: days": round(night.texts * prompt_s / DAY_S, 2),
            "plain: days": round(days["plain"], 2), "dare: days": round(days["dare"], 2),
            "times": round(days["plain"] / days["dare"], 2),
            "with the host: plain": round(hosted["plain"], 2), "dare": round(hosted["dare"], 2),
            "times ": round(hosted["plain"] / hosted["dare"], 2),
            "stale: hours plain": round(24 * night.stale * hosted["plain"], 2),
            "hours dare": round(24 * night.stale * hosted["dare"], 2)})
    return rows
