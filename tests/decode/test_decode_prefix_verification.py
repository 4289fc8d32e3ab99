"""Prefix verification of previous texts: strict text stays greedy, whatever the previous text."""

import numpy as np
import pytest
import torch
from decode_models import VOCABULARY, architectures, assert_written, generate, oracle, prompts, tiny
from transformers import GenerationConfig

from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine import prefill
from dare_job.decode.engine.engine import Engine
from dare_job.decode.engine.prefill import ReuseEstimator
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import RULES, EngineSettings
from dare_job.errors import ConfigError
from pools.draft import DraftSettings
from pools.index import Index

TEXTS = prompts()
RELAXED = [rule for rule in RULES if rule != "strict"]


def previous_texts(text: np.ndarray, rng) -> dict[str, np.ndarray]:
    """Return previous texts for ``text`` (40 tokens), by the kind of change."""
    def other(*places: int) -> np.ndarray:
        changed = text.copy()
        changed[list(places)] = (changed[list(places)] + 7) % VOCABULARY
        return changed

    return {
        "same": text, "prefix": text[:13], "first": other(0), "several": other(5, 6, 21), "last": other(39),
        "insertion": np.insert(text, 11, rng.integers(0, VOCABULARY, 3)),
        "deletion": np.delete(text, [9, 10]),
        "empty": text[:0], "longer": np.concatenate((text, rng.integers(0, VOCABULARY, 60))),
        "too large": np.insert(text, 17, VOCABULARY), "negative": np.insert(text, 8, -1), "none": None,
    }


def write(target, texts, old, drafter=None, **settings):
    engine = Engine(target, EngineSettings(**{"max_new_tokens": 40, "score": "always", **settings}), drafter)
    requests = (Request(row, text, previous_ids=old[row]) for row, text in enumerate(texts))
    return {result.id: result for result in engine.run(requests)}


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("name", architectures("llama", "mistral-window", "gpt2"))
def test_strict_equals_generate_whatever_the_previous_text(name):
    model, rng = tiny(name), np.random.default_rng(1)
    plain = [generate(model, prompt) for prompt in TEXTS]
    kinds = list(previous_texts(plain[0], rng))
    cases = [(row, kind) for kind in kinds for row in (0, 3)]
    rng.shuffle(cases)
    cases = [(int(row), kind) for row, kind in cases]
    old = [previous_texts(plain[row], np.random.default_rng(row))[kind] for row, kind in cases]
    texts, expected = [TEXTS[row] for row, _ in cases], [plain[row] for row, _ in cases]
    target = Target(model, check=False)
    for batch_size, nodes in ((6, 0), (4, 9)):
        drafter = oracle(expected, seed=nodes) if nodes else None
        results = write(target, texts, old, drafter, batch_size=batch_size, nodes=nodes)
        assert_written(results, expected)
        for row, (_, kind) in enumerate(cases):
            kept = {"same": 39, "prefix": 13, "first": 0, "several": 5, "last": 39, "longer": 39,
                    "empty": 0, "none": 0, "too large": 17, "negative": 8}.get(kind)
            result = results[row]
            assert kept is None or result.reused_tokens == kept, kind
            assert result.step_tokens[0] == result.reused_tokens + 1
            assert result.step_tokens.sum() == len(result.token_ids)
            if not nodes:
                assert result.accepted_tokens == 0
                assert result.target_steps == 39 - result.reused_tokens


def test_end_of_text_in_previous_text():
    model = tiny("llama", seed=1)
    text = generate(model, TEXTS[3])
    eos = int(next(token for token in text[5:] if token not in text[:5]))
    end = text.tolist().index(eos)
    model.generation_config.eos_token_id = [eos]
    target = Target(model, check=False)
    late = np.concatenate((text[:end], [eos], text[:9]))  # tokens after the end of text are ignored
    early = np.concatenate((text[:3], [eos], text[3:]))
    without = text[:end]
    results = write(target, [TEXTS[3]] * 3, [late, early, without])
    for row, (scored, steps) in enumerate(((end + 1, 0), (3, end - 3), (end, 0))):
        assert results[row].token_ids.tolist() == text[: end + 1].tolist()
        assert results[row].finish_reason == "eos"
        assert (results[row].reused_tokens, results[row].target_steps) == (scored, steps)
    longer = generate(model, TEXTS[3], min_new_tokens=end + 4)
    results = write(target, [TEXTS[3]] * 3, [late, early, without], min_new_tokens=end + 4)
    assert_written(results, [longer] * 3)


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_previous_text_does_not_exceed_the_limit(limit):
    model = tiny("gpt2", seed=1)
    text = generate(model, TEXTS[1])
    result = write(Target(model, check=False), [TEXTS[1]], [text], max_new_tokens=limit)[0]
    assert np.array_equal(result.token_ids, text[:limit]) and result.finish_reason == "length"
    assert (result.reused_tokens, result.target_steps) == (limit - 1, 0)


@pytest.mark.parametrize("options", [
    {"repetition_penalty": 1.7}, {"no_repeat_ngram_size": 2}, {"suppress_tokens": [3, 5, 8]},
    {"bad_words_ids": [[7, 9]], "repetition_penalty": 1.2}], ids=str)
def test_the_generation_config_applies_to_previous_text(options):
    model = tiny("qwen2", seed=2)
    plain = generate(model, TEXTS[3])  # without the rule
    model.generation_config = GenerationConfig(pad_token_id=0, **options)
    expected = generate(model, TEXTS[3])
    old = [plain, expected, np.delete(expected, [9, 10])]
    results = write(Target(model, check=False), [TEXTS[3]] * 3, old, batch_size=3)
    assert_written(results, [expected] * 3)
    assert results[1].target_steps == 0 and results[2].reused_tokens >= 9


@pytest.mark.parametrize("name", ["gpt2", "opt", "xglm", "gpt_neo"])
def test_previous_text_at_the_end_of_positions_or_of_a_models_own_mask(name):
    sizes = {"gpt2": {"n_positions": 50}}.get(name, {"max_position_embeddings": 50})
    model = tiny(name, **sizes)
    target = Target(model)
    texts = [TEXTS[3], TEXTS[0], TEXTS[1]]
    rooms = [min(40, (target.traits.max_length or 999) - len(text)) for text in texts]
    expected = [generate(model, text, max_new_tokens=room) for text, room in zip(texts, rooms, strict=True)]
    old = [np.concatenate((text, text)) for text in expected]
    for batch_size in (1, 3):
        results = write(target, texts, old, batch_size=batch_size)
        assert_written(results, expected)
        assert all(result.reused_tokens > 5 for result in results.values())


@pytest.mark.parametrize("name", ["llama", "mistral-window", pytest.param("gpt2", marks=pytest.mark.release)])
@pytest.mark.parametrize("value", [np.nan, pytest.param(np.inf, marks=pytest.mark.release)])
def test_previous_text_with_non_finite_values_does_not_change_texts(name, value):
    model, bad = tiny(name, seed=1), VOCABULARY - 1
    with torch.no_grad():
        model.get_input_embeddings().weight[bad] = value
        model.lm_head.weight[bad].zero_()
    texts = [np.where(text == bad, 5, text).astype(np.int32) for text in TEXTS]
    expected = [generate(model, text) for text in texts]
    assert not any(bad in text for text in expected)
    old = [np.insert(text, 4, bad) if row % 2 else text for row, text in enumerate(expected)]
    for batch_size in (1, 3):
        results = write(Target(model, check=False), texts, old, batch_size=batch_size)
        assert_written(results, expected)
        assert [results[row].reused_tokens for row in range(4)] == [39, 0, 39, 0]


@pytest.mark.parametrize("own", [True, False], ids=["own forward", "transformers"])
def test_logit_memory_limits_reused_tokens_and_forward_sizes(own, monkeypatch):
    """Our own forward pass computes the logits that are needed; transformers' those of whole columns."""
    model = tiny("llama", seed=1)
    expected, target = [generate(model, text) for text in TEXTS], Target(model, check=False)
    target.llama = target.llama if own else None
    shapes = []
    forward = target._forward

    def recorded(*inputs, **options):
        logits = forward(*inputs, **options)
        shapes.append(logits.shape)
        return logits

    monkeypatch.setattr(target, "_forward", recorded)
    monkeypatch.setattr(prefill, "_LOGIT_BYTES", 4 * VOCABULARY * 100)
    whole = write(target, TEXTS, expected, batch_size=7)
    assert_written(whole, expected)
    assert all(result.target_steps == 0 for result in whole.values())
    assert all(rows * columns <= 100 for rows, columns, _ in shapes)
    needed = sum(map(len, expected))
    assert sum(columns for _, columns, _ in shapes) == needed if own else max(shapes)[0] > 1
    monkeypatch.setattr(prefill, "_LOGIT_BYTES", 4 * VOCABULARY * 21)
    part = write(target, TEXTS, expected, batch_size=7)
    assert_written(part, expected)
    assert {result.reused_tokens for result in part.values()} == {20}


def test_rows_of_a_pass_need_little_padding():
    """A row that verifies a long previous text is not read with rows that verify none."""
    target, prompt = Target(tiny("llama"), check=False), np.full(5, 100)
    for submitted, passes in (([0] * 5, 1), ([0, 0, 0, 0, 20], 1), ([0, 0, 0, 0, 90], 2)):
        parts = list(prefill.split_forwards(prompt, np.array(submitted), target))
        assert len(parts) == passes and [row for part in parts for row in range(5)[part]] == list(range(5))


def test_the_estimator_learns_the_cost_of_a_pass_and_of_steps_of_so_many_rows():
    asked, passes = [], []

    class Recorded(ReuseEstimator):
        def tokens(self, *arguments):
            asked.append(arguments)
            return 10

        def record_prefill(self, seconds, tokens):
            passes.append(tokens)

    target = Target(tiny("llama"), check=False)
    requests = [Request(row, text, previous_ids=text) for row, text in enumerate(prompts([30] * 4))]
    settings = EngineSettings(batch_size=4, max_new_tokens=20)
    list(Engine(target, settings, reuse_estimator=Recorded()).run(requests))
    cost = target.traits.logit_cost
    assert [arguments[2:] for arguments in asked] == [(4, cost)] * 4 and cost > 1
    assert passes == [4 * (30 + cost * 10)]


@pytest.mark.parametrize("kind", ["insertion", "deletion", "several"])
def test_previous_text_drafts_after_a_change(kind):
    """The row's own pool matches again after an insertion, a deletion or a replacement."""
    model, rng = tiny("llama", seed=1), np.random.default_rng(3)
    expected = [generate(model, text) for text in TEXTS]
    changed = [previous_texts(text, rng)[kind] for text in expected]
    target = Target(model, check=False)
    engine = Engine(target, EngineSettings(max_new_tokens=40, score="always", nodes=16),
                    RetrievalDrafter(DraftSettings()))
    requests = (Request(row, text, (Index.build([changed[row]], kind="own"),), previous_ids=changed[row])
                for row, text in enumerate(TEXTS))
    results = {result.id: result for result in engine.run(requests)}
    assert_written(results, expected)
    steps = [results[row].target_steps for row in results]
    assert np.median(steps) <= {"insertion": 9, "deletion": 7, "several": 10}[kind], steps
    assert all(result.reused_tokens >= 5 for result in results.values())


def test_unknown_values_of_score_are_rejected():
    with pytest.raises(ConfigError, match="decode.score"):
        EngineSettings(score="sometimes")


@pytest.mark.parametrize("rule", ["relaxed", "top_k", "ratio", "entropy"])
def test_relaxed_text_with_a_fully_verified_previous_text_is_independent_of_the_batch(rule):
    model = tiny("llama", seed=1)
    target = Target(model, check=False)
    old = [(generate(model, text) + 1) % VOCABULARY for text in TEXTS]
    for row, text in enumerate(TEXTS):
        old[row][:6] = generate(model, text)[:6]
    wide = dict(rule=rule, k=64, p=1e-12, c=1e-9, epsilon=1e-12)
    alone = [write(target, [text], [old[row]], batch_size=1, **wide)[0] for row, text in enumerate(TEXTS)]
    assert sum(result.relaxed_tokens for result in alone) > 10
    for batch_size in (2, 7):
        together = write(target, TEXTS, old, batch_size=batch_size, **wide)
        for row, result in enumerate(alone):
            assert np.array_equal(together[row].token_ids, result.token_ids)
            assert np.array_equal(together[row].relaxed, result.relaxed)


@pytest.mark.parametrize("rule", RELAXED)
def test_strict_rows_among_relaxed_ones(rule):
    model = tiny("llama", seed=1)
    target = Target(model, check=False)
    expected = [generate(model, text) for text in TEXTS]
    old = [np.roll(text, 1) for text in expected]
    settings = EngineSettings(max_new_tokens=40, batch_size=3, rule=rule, k=60, p=1e-6, c=1e-5, epsilon=1e-6,
                              score="always", nodes=16)
    engine = Engine(target, settings, oracle(expected, error_rate=0.0))
    requests = (Request(row, text, previous_ids=old[row], strict=row % 2 == 0)
                for row, text in enumerate(TEXTS))
    results = {result.id: result for result in engine.run(requests)}
    for row, text in enumerate(expected):
        assert np.array_equal(results[row].token_ids, text) == (row % 2 == 0)
        assert (results[row].relaxed_tokens == 0) == (row % 2 == 0)


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("rule", RELAXED)
def test_text_without_a_relaxed_token_is_strict_text(rule):
    """So such a text needs no refresh."""
    model = tiny("llama", seed=1)
    expected = [generate(model, text) for text in TEXTS]
    seen = set()
    for k, p in ((1, 0.1), (2, 0.5), (2, 0.1), (12, 0.001)):
        settings = EngineSettings(max_new_tokens=40, rule=rule, k=k, p=p, c=p, epsilon=p, delta=2 * p)
        engine = Engine(Target(model, check=False), settings, oracle(expected, seed=k))
        for result in engine.run(Request(row, text) for row, text in enumerate(TEXTS)):
            if not result.relaxed_tokens:
                assert np.array_equal(result.token_ids, expected[result.id])
            seen.add(result.relaxed_tokens > 0)
    assert seen == {True, False}
