"""Verifiers that are plugged in: the engine holds them to the limits of the built-in rules."""

import numpy as np
import pytest
import torch
from decode_models import VOCABULARY, generate, oracle, prompts, tiny
from transformers import GenerationConfig

from dare_job import NodeVerification, Tree, Verifier, VerifyContext
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.model.tree import build
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.decode.verify import plugin as plugin_
from dare_job.decode.verify import rules
from dare_job.decode.verify.relaxed_compiled import thresholds
from dare_job.errors import ConfigError
from pools.tree import DraftBatch

MODEL, TEXTS, NEW = tiny("llama", seed=1), prompts(), 40
PLAIN = [generate(MODEL, prompt) for prompt in TEXTS]
LOOSE = EngineSettings(rule="relaxed", k=30, p=0.003, max_new_tokens=NEW, batch_size=3, nodes=12, depth=6,
                       score="always")


class Strict:
    lossless = True

    def __call__(self, scores: torch.Tensor, tree: Tree, context: VerifyContext) -> NodeVerification:
        assert torch.equal(context.argmax, scores.argmax(-1))
        return NodeVerification(context.argmax, tree.tokens == context.argmax[tree.parents],
                                torch.ones(len(tree), dtype=torch.bool))


class Relaxed:
    lossless = False

    def __call__(self, scores, tree, context):
        return rules.verify_relaxed(scores, tree, conditions=thresholds(LOOSE),
                                    eos=torch.zeros(0, dtype=torch.long))


class Anything:
    """Accepts every token, and checks what the engine promises."""

    def __init__(self, lossless=False):
        self.lossless, self.starts = lossless, []

    def __call__(self, scores, tree, context):
        assert scores.isfinite().any(-1).all() and not scores.isnan().any()
        assert scores.dtype == torch.float32 and not (scores == torch.inf).any()
        for row, start in enumerate(tree.starts[:-1]):
            text = context.tokens[row, : context.lengths[row]]
            assert text[-1] == tree.tokens[start] and 0 < context.prompts[row] <= len(text)
            self.starts.append((int(context.prompts[row]), len(text)))
        everything = torch.ones(len(tree), dtype=torch.bool)
        return NodeVerification(context.argmax, everything, everything)


def write(plugin, settings=LOOSE, limits=(None,) * 7, strict=(), model=MODEL, expected=PLAIN, paged=False):
    old = [np.where(np.arange(len(text)) % 9 == 4, (text + 3) % VOCABULARY, text) for text in expected]
    drafter = oracle(expected, error_rate=0.3)
    engine = Engine(Target(model, check=False, paged=paged), settings, drafter, verify_plugin=plugin)
    requests = (Request(row, TEXTS[row], previous_ids=old[row] if row % 2 else None,
                        max_relaxed_tokens=limits[row], strict=row in strict) for row in range(7))
    return {result.id: result for result in engine.run(requests)}


def assert_equal(results, expected):
    for row in range(7):
        for field in ("token_ids", "relaxed", "step_tokens", "finish_reason", "tokens_past_limit"):
            assert np.array_equal(getattr(results[row], field), getattr(expected[row], field)), (row, field)


def test_a_plug_in_with_a_built_in_rule_gives_its_texts():
    built_in = write(None)
    assert sum(result.relaxed_tokens for result in built_in.values()) > 5
    assert_equal(write(Relaxed()), built_in)
    limits = (None, 0, 7, 13, 1, 39, 25)
    assert_equal(write(Relaxed(), limits=limits, strict=(0, 3)), write(None, limits=limits, strict=(0, 3)))


def test_over_pages_a_plug_in_gets_the_logits_that_it_gets_without():
    assert_equal(write(Relaxed(), paged=True), write(Relaxed()))


def test_tokens_of_a_plug_in_have_scores_even_where_the_output_head_is_smaller():
    seen = []

    class Close(Strict):
        def __call__(self, scores, tree, context):
            seen.append(int(tree.tokens.max()))
            scores[tree.parents, tree.tokens]  # noqa: B018
            return super().__call__(scores, tree, context)

    tree = build(np.array([8]), DraftBatch.of([[9, 3]], [[-1, -1]]), np.array([5]))
    scores, eos = torch.zeros(3, 5), torch.zeros(0, dtype=torch.long)
    scores[0, 4] = scores[0, 3] = 1.0
    context = np.array([[1, 8]], np.int32), np.array([2]), np.array([1])
    result = plugin_.verify(Close(), scores, tree, None, eos, context)
    assert seen == [4] and result.counts[0] == 1 and result.tokens[0, 0] == 3


@pytest.mark.parametrize("fields", [{}, {"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 2},
                                    {"repetition_penalty": 0.8, "suppress_tokens": [5, 7, 11]}], ids=str)
def test_a_lossless_plug_in_gives_greedy_text(fields):
    model = tiny("llama", seed=1)
    model.generation_config = GenerationConfig(pad_token_id=0, **fields)
    expected = [generate(model, prompt) for prompt in TEXTS]
    for plugin in (Strict(), Anything(lossless=True)):
        results = write(plugin, model=model, expected=expected)
        assert all(np.array_equal(results[row].token_ids, text) for row, text in enumerate(expected))
        assert sum(result.accepted_tokens for result in results.values()) > 20
    banned = write(Anything(), model=model, expected=expected)
    assert not {5, 7, 11}.intersection(*(result.token_ids for result in banned.values())) or not fields


def test_strict_rows_and_tokens_past_the_limit_are_greedy_whatever_the_plug_in_says():
    plugin = Anything()
    free = write(plugin)
    assert sum(result.relaxed_tokens for result in free.values()) > 20
    assert {(len(TEXTS[row]), len(TEXTS[row])) for row in range(7)} <= set(plugin.starts)
    limited = write(Anything(), limits=(0, 5, None, 0, 5, None, 5), strict=(2, 5))
    for row in (0, 2, 3, 5):
        assert np.array_equal(limited[row].token_ids, PLAIN[row]), row
    for row in (1, 4, 6):
        text = limited[row].token_ids
        prompt = np.concatenate((TEXTS[row], text[:5]))
        assert np.array_equal(text[5:], generate(MODEL, prompt, max_new_tokens=NEW - 5))


def test_a_text_ends_only_where_the_model_ends_it():
    model, ends = tiny("llama", seed=1), [int(PLAIN[4][20]), 3, 9, 30, 31, 32]
    model.generation_config.eos_token_id = ends
    for row, result in write(Anything(), model=model).items():
        inner = result.token_ids[:-1]
        assert not np.isin(inner, ends).any() and (result.finish_reason == "eos" or len(inner) == NEW - 1)
        if result.finish_reason == "eos":
            assert len(inner) not in result.relaxed, row


def test_non_finite_scores_end_their_row_alone():
    model, bad = tiny("llama", seed=1), VOCABULARY - 1
    with torch.no_grad():
        model.get_input_embeddings().weight[bad] = torch.nan
        model.lm_head.weight[bad].zero_()
    texts = [np.where(text == bad, 5, text).astype(np.int32) for text in TEXTS]
    texts[2] = np.array([5, bad, 7], np.int32)
    drafter = oracle(PLAIN, error_rate=0.3)
    engine = Engine(Target(model, check=False), LOOSE, drafter, verify_plugin=Anything())
    results = {result.id: result for result in engine.run(Request(*row) for row in enumerate(texts))}
    assert "finite" in results.pop(2).error
    assert all(result.error is None and len(result.token_ids) == NEW for result in results.values())


@pytest.mark.parametrize(("change", "message"), [
    (lambda nodes: nodes.passed[:-1], r"passed is torch.bool \(\d+,\) on cpu; it must be a tensor"),
    (lambda nodes: nodes.passed.float(), "passed is torch.float32"),
    (lambda nodes: nodes.passed.numpy(), "passed is ndarray")])
def test_results_of_another_shape_or_type_are_rejected(change, message):
    class Wrong(Strict):
        def __call__(self, scores, tree, context):
            nodes = super().__call__(scores, tree, context)
            return NodeVerification(nodes.argmax, change(nodes), nodes.finite)

    plugin: Verifier = Wrong()
    with pytest.raises(ConfigError, match=f"verifier Wrong: {message}"):
        write(plugin)
