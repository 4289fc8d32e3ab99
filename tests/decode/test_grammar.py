"""Texts held to a form: those of ``generate`` under the same masks, whatever drafts there are."""

import json
import re
from collections import Counter

import numpy as np
import pytest
import torch
from grammar_models import (
    ENDS,
    FORMS,
    NEW,
    TOKENIZER,
    VOCABULARY,
    allowed,
    generate,
    grammar,
    llguidance,
    model,
    prompts,
    table,
    target,
)
from state_models import STATEFUL

from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine.draft_budget import AdaptiveBudget
from dare_job.decode.engine.engine import Engine
from dare_job.decode.engine.grammar import Grammar, definition
from dare_job.decode.engine.latency import LatencyCurve
from dare_job.decode.engine.stop_strings import stop_strings
from dare_job.decode.model.target import Target
from dare_job.decode.model.undrafted import any_target
from dare_job.decode.request import Request
from dare_job.decode.sampling.engine import Sampling, SamplingEngine
from dare_job.decode.settings import EngineSettings
from dare_job.evaluate.oracle import OracleDrafter
from dare_job.generate import baseline
from pools.draft import DraftSettings
from pools.index import Index


def run(form, drafter=None, of=None, ends=tuple(ENDS), previous=None, pools=(), **settings):
    """Results by row; ``form``: of all rows, or a list."""
    forms = form if isinstance(form, list) else [form] * len(prompts())
    settings = {"max_new_tokens": NEW, "batch_size": 4, "nodes": 16 if drafter else 0, "score": "always",
                **settings}
    engine = Engine(of or target(), EngineSettings(**settings), drafter)
    return {result.id: result for result in engine.run(
        Request(row, prompt, pools, previous_ids=None if previous is None else previous[row],
                grammar=forms[row] and grammar(forms[row], ends))
        for row, prompt in enumerate(prompts()))}


def assert_same(results, expected):
    for row, text in enumerate(expected):
        assert results[row].error is None, results[row].error
        assert results[row].token_ids.tolist() == text.tolist(), TOKENIZER.decode(text)
        reason = "eos" if text[-1] in ENDS else "length"
        assert results[row].finish_reason == reason


def retrieval() -> RetrievalDrafter:
    return RetrievalDrafter(DraftSettings(depth=12))


def text_of(tokens) -> str:
    return TOKENIZER.decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize("form", FORMS)
def test_strict_texts_are_those_of_generate(form):
    expected = [generate(form, prompt) for prompt in prompts()]
    free = [generate(form, prompt, logits_processor=[]) for prompt in prompts()]
    others = [*expected[1:], expected[0]]
    mixed = [(text, others[row], free[row], text[:3], np.append(text[:5], text), None)[row % 6]
             for row, text in enumerate(expected)]
    pool = Index.build([text.astype(np.int32) for text in (*expected[:3], *free)])
    assert_same(run(form), expected)
    for batch_size in (1, 4):
        oracle = OracleDrafter(dict(enumerate(expected)), VOCABULARY, seed=batch_size)
        assert_same(run(form, oracle, batch_size=batch_size), expected)
        wrong = OracleDrafter(dict(enumerate(free)), VOCABULARY)
        assert_same(run(form, wrong, batch_size=batch_size), expected)
        results = run(form, retrieval(), batch_size=batch_size, previous=mixed, pools=(pool,))
        assert_same(results, expected)
        assert results[0].reused_tokens >= len(expected[0]) - 1 > results[2].reused_tokens


def test_finished_texts_have_the_form_and_no_other_text_ends():
    for form, (kind, value) in FORMS.items():
        ended = [result for result in run(form, retrieval()).values() if result.finish_reason == "eos"]
        assert ended or form == "loop", form
        for result in ended:
            text = text_of(result.token_ids)
            if kind == "json":
                json.loads(text)
            else:
                assert text in value if kind == "choices" else re.fullmatch(value, text)


@pytest.mark.parametrize("changes", [{"repetition_penalty": 1.3}, {"repetition_penalty": 0.8},
                                     {"max_new_tokens": 9}, {"max_new_tokens": 1}])
def test_settings_of_decoding_apply(changes):
    expected = [generate("film", prompt, **changes) for prompt in prompts()]
    previous = [generate("film", prompt) for prompt in prompts()]
    assert_same(run("film", retrieval(), previous=previous, **changes), expected)
    assert_same(run("film", **changes), expected)


def test_processors_of_the_generation_config_apply_first():
    made = Target(model(), check=False)
    made.generation_config.bad_words_ids = [[TOKENIZER.convert_tokens_to_ids("d")]]
    made.generation_config.no_repeat_ngram_size = 4
    expected = [generate("regex", prompt, made) for prompt in prompts()]
    assert_same(run("regex", retrieval(), made), expected)


def test_what_is_forced_is_drafted_without_any_source():
    expected = [generate("film", prompt) for prompt in prompts()]
    no_drafts = OracleDrafter({}, VOCABULARY)
    results = run("film", no_drafts)
    assert_same(results, expected)
    assert all(result.accepted_tokens > 0.4 * len(result.token_ids) for result in results.values())
    deep = run("film", no_drafts, depth=2)
    assert_same(deep, expected)
    assert max(result.step_tokens.max() for result in deep.values()) == 3


def test_forced_tokens_are_drafted_while_drafting_is_paused():
    costly = LatencyCurve.of({"1": {"1": 1.0, "65": 1000.0}, "4": {"1": 1.0, "65": 1000.0}}, "fictitious")
    budget = AdaptiveBudget(costly, 16)
    engine = Engine(target(), EngineSettings(max_new_tokens=NEW, batch_size=1, nodes=16), retrieval(),
                    draft_budget=budget)
    results = {result.id: result for result in engine.run(
        Request(row, prompt, grammar=grammar("film")) for row, prompt in enumerate(prompts()))}
    assert_same(results, [generate("film", prompt) for prompt in prompts()])
    assert budget.min_score(1) is None or budget._pause  # it does pause
    assert sum(result.accepted_tokens for result in results.values()) > 50


def test_rows_with_and_without_a_form_in_a_batch():
    forms = ["film", None, "regex", "choices", None, "tree"]
    expected = [generate(form, prompt) if form else generate("film", prompt, logits_processor=[])
                for form, prompt in zip(forms, prompts(), strict=True)]
    for batch_size in (1, 4):
        results = run(forms, retrieval(), batch_size=batch_size)
        assert [results[row].token_ids.tolist() for row in range(6)] == [text.tolist() for text in expected]


@pytest.mark.parametrize("rule", ["relaxed", "top_k", "threshold", "ratio", "entropy"])
def test_relaxed_rules_accept_allowed_tokens_only(rule):
    expected = [generate("film", prompt) for prompt in prompts()]
    free = [generate("film", prompt, logits_processor=[]) for prompt in prompts()]
    others = {row: expected[(row + 1) % 6] if row % 2 else free[row] for row in range(6)}
    results = run("film", OracleDrafter(others, VOCABULARY, distractors=6), rule=rule, k=64, p=0.0,
                  epsilon=1e-9, c=1e-3, previous=list(others.values()))
    assert sum(result.relaxed_tokens for result in results.values()) > 3
    for result in results.values():
        for place, token in enumerate(result.token_ids):
            assert allowed("film", result.token_ids[:place])[token]


def pairs_of(prompt) -> dict[tuple[int, int], float]:
    """Probability of the first two tokens of a sampled choice."""
    def after(text) -> dict[int, float]:
        ids = torch.from_numpy(np.concatenate((prompt, text)).astype(np.int64))[None]
        with torch.inference_mode(), target().as_transformers() as made:
            logits = made(ids).logits[0, -1]
        logits = logits.clone()
        logits[torch.from_numpy(~allowed("choices", text))] = -torch.inf
        p = logits.double().softmax(-1)
        return {token: p[token].item() for token in np.flatnonzero(allowed("choices", text)).tolist()}

    return {(first, second): p * q for first, p in after([]).items() for second, q in after([first]).items()}


def test_sampled_texts_have_the_distribution_of_the_model_over_the_allowed_tokens():
    """The first two tokens; a wrong alarm at 5 standard deviations has odds of 1 in 100,000 for 20 pairs."""
    rows, prompt, expected = 3000, prompts()[0], pairs_of(prompts()[0])
    choices = [np.array([*TOKENIZER.encode(text), ENDS[0]], np.int32) for text in FORMS["choices"][1]]
    settings = EngineSettings(max_new_tokens=8, batch_size=100, nodes=8, depth=4)
    engine = SamplingEngine(target(), settings, Sampling(seed=4), retrieval())
    results = list(engine.run(Request(row, prompt, (Index.build(choices),), grammar=grammar("choices"))
                              for row in range(rows)))
    found = Counter(tuple(result.token_ids[:2].tolist()) for result in results)
    assert sum(result.accepted_tokens for result in results) > rows and len(expected) > 2
    assert found.keys() <= expected.keys()
    for pair, p in expected.items():
        assert abs(found[pair] - rows * p) <= 5 * np.sqrt(rows * p * (1 - p)) + 1, pair


def test_passes_over_pages():
    paged = Target(model(), paged=True)
    assert paged.paged is not None
    expected = [generate("film", prompt) for prompt in prompts()]
    assert_same(run("film", OracleDrafter(dict(enumerate(expected)), VOCABULARY), paged), expected)
    assert paged.paged is not None, "it fell back"


def test_models_that_verify_chains():
    chain = any_target(model("mamba2", STATEFUL))
    assert chain.drafts == "chain"
    expected = [generate("film", prompt, chain) for prompt in prompts()]
    assert_same(run("film", retrieval(), chain, previous=expected), expected)


@pytest.mark.parametrize("form", ["film", "regex", "choices"])
def test_a_forced_end_of_text_takes_no_step(form):
    """With one end-of-text token, which the model need not choose."""
    made, ends = Target(model(ends=ENDS[:1]), check=False), tuple(ENDS[:1])
    expected = [generate(form, prompt, made, ends) for prompt in prompts()]
    forced = [row for row, text in enumerate(expected)
              if np.flatnonzero(allowed(form, text[:-1], ends)).tolist() == [ENDS[0]]]
    assert forced
    plain = run(form, None, made, ends)
    assert_same(plain, expected)
    assert_same(run(form, OracleDrafter({}, VOCABULARY), made, ends), expected)
    for row in forced:
        assert plain[row].target_steps == len(expected[row]) - 2 and plain[row].step_tokens[-1] == 2
        assert plain[row].accepted_tokens == 1
    before = run(form, retrieval(), made, ends, previous=[text[:-2] for text in expected])
    assert_same(before, expected)
    assert all(before[row].target_steps == 0 for row in forced)
    assert all(sum(result.step_tokens) == len(result.token_ids) for result in before.values())
    row, text = forced[0], expected[forced[0]]
    for length in (len(text) - 1, len(text)):
        cut = run(form, None, made, ends, max_new_tokens=length)[row]
        assert cut.token_ids.tolist() == text[:length].tolist()
        assert cut.finish_reason == ("eos" if length == len(text) else "length")


def test_stop_strings_and_loops_end_texts():
    stop, numbers = ["am"], np.zeros(VOCABULARY, np.bool_)
    expected = [generate("choices", prompt, stop_strings=stop, tokenizer=TOKENIZER) for prompt in prompts()]
    reasons, texts = set(), []
    for drafter in (None, retrieval()):
        settings = EngineSettings(max_new_tokens=NEW, batch_size=4, nodes=16 if drafter else 0)
        results = list(Engine(target(), settings, drafter, stop=stop_strings(stop, TOKENIZER)).run(
            Request(row, prompt, grammar=grammar("choices")) for row, prompt in enumerate(prompts())))
        for result in results:
            assert result.token_ids.tolist() == expected[result.id].tolist()
        settings = EngineSettings(max_new_tokens=200, batch_size=4, nodes=16 if drafter else 0)
        loops = list(Engine(target(), settings, drafter, numbers=numbers).run(
            Request(row, prompt, grammar=grammar("loop")) for row, prompt in enumerate(prompts())))
        reasons |= {result.finish_reason for result in (*results, *loops)}
        texts.append({result.id: result.token_ids.tolist() for result in loops})
    assert texts[0] == texts[1] and "loop" in reasons


def test_the_baseline_of_generate_has_the_same_texts():
    expected = [generate("film", prompt) for prompt in prompts()]
    requests = [Request(row, prompt, grammar=grammar("film")) for row, prompt in enumerate(prompts())]
    found = baseline.generate_greedy(target(), requests, 4, NEW)  # padded batches, rows of several lengths
    assert [text.tolist() for text in found] == [text.tolist() for text in expected]


def test_a_text_that_the_library_gives_up_fails_alone(monkeypatch):
    class Limited(Grammar):
        def _compile(self):
            limits = llguidance.LLParserLimits(max_lexer_states=1, verbose_errors=False)
            return llguidance.LLMatcher(table(), self._text, log_level=0, limits=limits)

    forms = [Limited(definition(*FORMS["film"]), table()), None, grammar("film")]
    engine = Engine(target(), EngineSettings(max_new_tokens=NEW, batch_size=3, nodes=16), retrieval())
    results = {result.id: result for result in engine.run(
        Request(row, prompts()[row], grammar=form) for row, form in enumerate(forms))}
    assert results[0].finish_reason == "error" and "too many states" in results[0].error
    assert results[2].token_ids.tolist() == generate("film", prompts()[2]).tolist()
    assert results[1].error is None


def test_a_generation_config_against_the_form_fails_the_row():
    made = Target(model(), check=False)
    made.generation_config.min_new_tokens = 30
    results = run("choices", retrieval(), made)
    assert {result.finish_reason for result in results.values()} == {"error"}
    assert "decode.schema and the generation config of the model allow no token in common" in results[0].error
