"""Length limit of relaxed verification: later tokens are strict, whatever the step and the batch."""

import dataclasses

import numpy as np
import pytest
import torch
from decode_models import VOCABULARY, generate, prompts, tiny

from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import RULES, EngineSettings
from pools.tree import DraftBatch

MODEL = tiny("llama", seed=1)
TARGET = Target(MODEL, check=False)
TEXTS = prompts()
PLAIN = [generate(MODEL, prompt) for prompt in TEXTS]
LIMITS = (None, 0, 7, 13, 1, 39, 25)
LOOSE = dict(k=30, p=0.003, c=0.05, epsilon=0.003, max_new_tokens=40, nodes=12, depth=6, score="always")
RELAXED = [rule for rule in RULES if rule != "strict"]


class Wandering:
    """Drafts that depend only on a row's last two tokens: chains and siblings, right and wrong, six deep."""

    def draft(self, requests, context, lengths, budgets, depths, min_score=0.0):
        rows, nodes = len(requests), int(budgets.max(initial=0))
        tokens, parents = np.zeros((rows, nodes), np.int32), np.full((rows, nodes), -1, np.int32)
        for r in range(rows):
            text = context[r, len(requests[r].prompt_ids) : lengths[r]]
            ahead = PLAIN[requests[r].id][len(text) :][:6]
            for node in range(nodes):
                right = node < len(ahead) and (int(context[r, lengths[r] - 1]) + node) % 4
                other = (int(context[r, lengths[r] - 1]) * 7 + node * 11) % VOCABULARY
                tokens[r, node], parents[r, node] = ahead[node] if right else other, min(node, 6) - 1
        return DraftBatch(tokens, parents, np.minimum(budgets, nodes).astype(np.int32), None, None)


def write(rule, limits=LIMITS, batch_size=3, rows=range(7), strict=(), **settings):
    engine = Engine(TARGET, EngineSettings(**{**LOOSE, "rule": rule, "batch_size": batch_size, **settings}),
                    Wandering())
    old = [np.where(np.arange(40) % 9 == 4, (text + 3) % VOCABULARY, text) for text in PLAIN]
    requests = (Request(row, TEXTS[row], previous_ids=old[row] if row % 2 else None,
                        max_relaxed_tokens=limits[row], strict=row in strict) for row in rows)
    return {result.id: result for result in engine.run(requests)}


@pytest.fixture(autouse=True)
def ends():
    MODEL.generation_config.eos_token_id = None
    yield
    MODEL.generation_config.eos_token_id = None


def not_argmax(row: int, result) -> list[int]:
    """Return positions in a text that differ from the argmax of a separate forward pass."""
    ids = torch.from_numpy(np.concatenate((TEXTS[row], result.token_ids)).astype(np.int64))[None]
    with torch.inference_mode():
        first = MODEL(ids).logits[0].argmax(-1)[len(TEXTS[row]) - 1 : -1].numpy()
    return np.flatnonzero(first != result.token_ids).tolist()


@pytest.mark.parametrize("rule", RELAXED)
def test_relaxed_tokens_are_counted_with_and_without_limits(rule):
    for limits in ((None,) * 7, LIMITS):
        results = write(rule, limits)
        assert sum(result.relaxed_tokens for result in results.values()) > 5
        for row, result in results.items():
            assert result.relaxed.tolist() == not_argmax(row, result)
            assert result.relaxed_tokens == len(result.relaxed)


@pytest.mark.parametrize("rule", ["relaxed", "top_k", "entropy", *(
    pytest.param(rule, marks=pytest.mark.release) for rule in ("threshold", "literal", "ratio"))])
def test_after_its_limit_a_text_continues_greedily(rule):
    free, changed = write(rule, (None,) * 7), 0
    inner = [len(free[row].relaxed) // 2 for row in range(7)]  # a limit just before a relaxed token
    exact = [int(free[row].relaxed[at]) if at else None for row, at in enumerate(inner)]
    for limits in (LIMITS, exact):
        limited = write(rule, limits)
        for row, limit in enumerate(limits):
            text = limited[row].token_ids
            if limit is None:
                assert np.array_equal(text, free[row].token_ids) and limited[row].tokens_past_limit == 0
                continue
            assert limited[row].tokens_past_limit == len(text) - limit
            assert not any(limited[row].relaxed >= limit)
            prompt = np.concatenate((TEXTS[row], text[:limit]))
            assert np.array_equal(text[limit:], generate(MODEL, prompt, max_new_tokens=40 - limit))
            changed += not np.array_equal(text, free[row].token_ids)
    assert np.array_equal(write(rule, (0,) * 7)[2].token_ids, PLAIN[2])
    assert changed >= 6


@pytest.mark.parametrize("rule", ["relaxed", "ratio", *(
    pytest.param(rule, marks=pytest.mark.release) for rule in ("top_k", "entropy"))])
def test_a_row_with_a_limit_does_not_depend_on_its_batch(rule):
    alone = {row: write(rule, batch_size=1, rows=[row])[row] for row in range(7)}
    for batch_size, order in ((2, range(7)), (5, (6, 3, 1, 0, 5, 2, 4)), (7, range(7))):
        for row, result in write(rule, batch_size=batch_size, rows=order).items():
            for field in ("token_ids", "relaxed", "step_tokens", "tokens_past_limit"):
                assert np.array_equal(getattr(result, field), getattr(alone[row], field)), field


def test_rows_that_end_before_their_limit_and_strict_rows_are_unchanged():
    eos = int(write("top_k", (None,) * 7)[4].token_ids[5])
    MODEL.generation_config.eos_token_id = [eos]
    free = write("top_k", (None,) * 7, strict=(0, 3))
    for row, result in write("top_k", (40,) * 7, strict=(0, 3)).items():
        for field in dataclasses.fields(result):
            if not field.name.endswith("_ms"):
                assert np.array_equal(getattr(result, field.name), getattr(free[row], field.name)), field.name
        assert result.tokens_past_limit == 0
    assert len(free[4].token_ids) <= 6
    MODEL.generation_config.eos_token_id = None
    assert np.array_equal(write("top_k", (20,) * 7, strict=(3,))[3].token_ids, PLAIN[3])


def test_the_strict_rule_ignores_limits(monkeypatch):
    engine = Engine(TARGET, EngineSettings(rule="strict"))
    masks, of_rows = [], engine._strict_nodes
    monkeypatch.setattr(engine, "_strict_nodes", lambda *given: masks.append(of_rows(*given)) or masks[-1])
    engine.drafter = Wandering()
    results = {r.id: r for r in engine.run(Request(row, text, max_relaxed_tokens=3, max_new_tokens=40)
                                           for row, text in enumerate(TEXTS))}
    assert masks and all(mask is None for mask in masks)
    assert all(np.array_equal(results[row].token_ids, text) for row, text in enumerate(PLAIN))
