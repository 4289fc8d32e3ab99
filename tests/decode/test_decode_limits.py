"""Ends of text, limits, failing rows, and independence of a row from its batch."""

import numpy as np
import pytest
import torch
from decode_models import VOCABULARY, generate, oracle, prompts, tiny, write

from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.errors import ConfigError

MODEL = tiny("llama", seed=1)
TARGET = Target(MODEL, check=False)
TEXTS = prompts()
PLAIN = [generate(MODEL, prompt) for prompt in TEXTS]


@pytest.fixture(autouse=True)
def no_eos():
    MODEL.generation_config.eos_token_id = None


def test_end_of_text_in_the_middle_of_a_branch():
    row = PLAIN[3].tolist()
    eos = next(token for token in row[5:] if token not in row[:5])
    MODEL.generation_config.eos_token_id = [eos]
    cut = row[: row.index(eos) + 1]
    # The oracle continues after the end of text, unlike a greedy text.
    result = write(TARGET, TEXTS[3:4], oracle([row], distractors=1, error_rate=0.0), nodes=40)[0]
    assert result.token_ids.tolist() == cut
    assert result.finish_reason == "eos"
    assert result.target_steps < len(cut) / 2
    assert result.accepted_tokens == len(cut) - 1 - (result.target_steps - 1)
    assert result.step_tokens.sum() == len(cut) and len(result.step_tokens) == result.target_steps + 1


@pytest.mark.parametrize("limit", range(1, 12))
def test_limit_in_the_middle_of_a_branch(limit):
    drafter = oracle(PLAIN, distractors=1, error_rate=0.0)
    for row, result in write(TARGET, TEXTS, drafter, max_new_tokens=limit, nodes=24).items():
        assert np.array_equal(result.token_ids, PLAIN[row][:limit])
        assert result.finish_reason == "length"
        assert result.step_tokens.sum() == limit and result.step_tokens[0] == 1
        assert result.accepted_tokens <= limit - 1 - result.target_steps + 1


def test_a_request_has_its_own_limit():
    engine = Engine(TARGET, EngineSettings(max_new_tokens=30, batch_size=2))
    results = engine.run(Request(i, p, max_new_tokens=i + 1) for i, p in enumerate(TEXTS))
    assert {r.id: len(r.token_ids) for r in results} == {i: i + 1 for i in range(len(TEXTS))}


def test_min_new_tokens_of_the_settings():
    MODEL.generation_config.eos_token_id = [int(text[2]) for text in PLAIN]
    expected = [generate(MODEL, prompt, min_new_tokens=11) for prompt in TEXTS]
    results = write(TARGET, TEXTS, oracle(expected), min_new_tokens=11)
    assert all(np.array_equal(results[row].token_ids, text) for row, text in enumerate(expected))
    assert min(len(text) for text in expected) >= 11


def test_failing_rows_do_not_affect_others():
    bad = {1: np.zeros(0, np.int32), 3: np.full(257, 5), 5: np.array([4, VOCABULARY]), 6: np.array([-1])}
    texts = [bad.get(row, text) for row, text in enumerate(TEXTS)]
    results = write(TARGET, texts, oracle(PLAIN))
    assert [results[row].finish_reason for row in bad] == ["error"] * 4
    assert results[1].error == "the prompt is empty"
    assert "257 tokens" in results[3].error and "max_position_embeddings" in results[3].error
    assert "outside" in results[5].error and "outside" in results[6].error
    for row in set(range(len(texts))) - set(bad):
        assert np.array_equal(results[row].token_ids, PLAIN[row])


def test_non_finite_logits_end_only_their_row():
    forward = TARGET.forward

    def poisoned(cache, tree, lengths):
        logits = forward(cache, tree, lengths)
        logits[tree.tokens == PLAIN[2][4]] = torch.nan
        return logits

    TARGET.forward = poisoned
    try:
        results = write(TARGET, TEXTS, None, batch_size=7)
    finally:
        del TARGET.forward
    assert results[2].finish_reason == "error" and "finite" in results[2].error
    assert len(results[2].token_ids) <= 5 + 1
    untouched = [row for row, text in enumerate(PLAIN) if PLAIN[2][4] not in text]
    assert all(np.array_equal(results[row].token_ids, PLAIN[row]) for row in untouched)


@pytest.mark.parametrize("rule", [pytest.param("strict", marks=pytest.mark.release), "relaxed"])
def test_a_row_does_not_depend_on_its_batch(rule):
    """With a fixed number of nodes, relaxed text is independent of batch and order too."""
    wide = dict(rule=rule, k=4, p=0.01, nodes=12, max_new_tokens=24)
    alone, *together = (write(TARGET, TEXTS, Fixed(), batch_size=size, **wide) for size in (1, 2, 5))
    for results in together:
        for row, result in results.items():
            assert np.array_equal(result.token_ids, alone[row].token_ids)
            assert np.array_equal(result.step_tokens, alone[row].step_tokens)
    if rule == "relaxed":
        assert sum(r.relaxed_tokens for r in alone.values()) > 0


class Fixed:
    """Drafts that depend only on a row's last token: chains and siblings of plausible tokens."""

    def draft(self, requests, context, lengths, budgets, depths, min_score=0.0):
        from pools.tree import DraftBatch

        rows, nodes = len(requests), int(budgets.max(initial=0))
        root = context[np.arange(rows), lengths - 1].astype(np.int64)
        column = np.arange(nodes)
        tokens = ((root[:, None] * 7 + column * 11) % VOCABULARY).astype(np.int32)
        parents = np.tile((column // 3 - 1).astype(np.int32), (rows, 1))
        return DraftBatch(tokens, parents, np.minimum(budgets, nodes).astype(np.int32), None, None)


def test_invalid_settings_are_named():
    for wrong, name in (({"rule": "lenient"}, "verify.rule"), ({"p": 1.0}, "verify.p"),
                        ({"c": 0.0}, "verify.c"), ({"epsilon": 0.0}, "verify.epsilon"),
                        ({"delta": 1.1}, "verify.delta"),
                        ({"batch_size": 0}, "batch_size"), ({"nodes": -1}, "nodes")):
        with pytest.raises(ConfigError, match=name):
            EngineSettings(**wrong)
