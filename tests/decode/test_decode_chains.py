"""Models whose layers keep states verify chains of drafts, with the text of ``generate``."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import pytest
import torch
import transformers
from decode_models import VOCABULARY, assert_written, oracle, prompts, tiny, write
from decode_models import generate_now as generate
from packaging import version
from state_models import STATEFUL, tiny_without_trees

from dare_job.decode.draft.model import ModelDrafter
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine import latency_probe
from dare_job.decode.engine.chains import best_chains
from dare_job.decode.engine.draft_budget import AdaptiveBudget
from dare_job.decode.engine.engine import Engine
from dare_job.decode.engine.latency import LatencyCurve
from dare_job.decode.model import chain, recurrence
from dare_job.decode.model.chain import ChainTarget
from dare_job.decode.model.state_cache import StateCache
from dare_job.decode.model.support import DraftError
from dare_job.decode.model.target import Target
from dare_job.decode.model.undrafted import any_target
from dare_job.decode.request import Request
from dare_job.decode.sampling.engine import Sampling, SamplingEngine
from dare_job.decode.settings import EngineSettings, Warp
from dare_job.errors import ConfigError
from pools.draft import DraftSettings
from pools.index import Index
from pools.tree import ROOT, SOURCE_MODEL, DraftBatch

pytestmark = pytest.mark.skipif(version.parse(transformers.__version__) < version.parse("5.21"),
                                reason="transformers before 5.21 keeps states in another form")
_FAST = {"mamba2"}
WITHOUT_CHAINS = {"rwkv", "minimax"}


def _chains(fast: set[str]) -> list:
    return [name if name in fast else pytest.param(name, marks=pytest.mark.release)
            for name in STATEFUL if name not in WITHOUT_CHAINS]


@lru_cache(maxsize=1)
def _target(name: str) -> tuple[ChainTarget, list[np.ndarray]]:
    """Return a target, and the texts of ``generate`` after ``prompts()``."""
    target = any_target(tiny_without_trees(name))
    assert target.drafts == "chain"
    expected = []
    for text in prompts():
        with target.as_transformers() as model:
            expected.append(generate(model, text))
    return target, expected


@pytest.mark.parametrize("name", _chains(_FAST))
def test_text_of_generate(name):
    target, expected = _target(name)
    assert len({token for text in expected for token in text.tolist()}) > 5
    for batch_size, nodes in ((1, 0), (1, 16), (3, 12)):
        results = write(target, prompts(), oracle(expected), nodes=nodes, batch_size=batch_size)
        assert_written(results, expected)
        assert (sum(result.accepted_tokens for result in results.values()) >= 50) == (nodes > 0)


@pytest.mark.parametrize("name", _chains({"lfm2"}))
def test_repeated_text_takes_fewer_forward_passes(name):
    target, expected = _target(name)
    own = [(Index.build([text], kind="own"),) for text in expected]
    changed = [np.where(np.arange(len(text)) == 13, (text + 1) % VOCABULARY, text) for text in expected]
    # Forward passes if previous text is a draft; if it is verified with the prompt; if it differs in a token.
    for pools, previous, nodes, most in ((own, None, 16, 0.4 * 40), (None, expected, 0, 1),
                                         (None, changed, 0, 40 - 13)):
        with _counted(target) as passes:
            requests = [Request(i, prompt, pools[i] if pools else (),
                                previous_ids=previous[i] if previous else None)
                        for i, prompt in enumerate(prompts())]
            settings = EngineSettings(max_new_tokens=40, batch_size=1, nodes=nodes, score="always")
            engine = Engine(target, settings, RetrievalDrafter(DraftSettings(depth=8)))
            results = {result.id: result for result in engine.run(requests)}
        assert_written(results, expected)
        # Qwen4-exp verifies nothing after a prompt that is shorter than its n-grams.
        short = [i for i, prompt in enumerate(prompts()) if not target.max_submitted(len(prompt))]
        assert len(passes) <= most * (len(expected) - len(short)) + 40 * len(short)
        if previous:
            assert all(results[i].reused_tokens == 40 - most for i in results if i not in short)


@contextmanager
def _counted(target: ChainTarget) -> Iterator[list]:
    """Record a target's forward passes."""
    passes, forward = [], target.model.forward
    target.model.forward = lambda *args, **kwargs: passes.append(1) or forward(*args, **kwargs)
    try:
        yield passes
    finally:
        del target.model.forward


@pytest.mark.parametrize("name", ["mamba", *(
    pytest.param(name, marks=pytest.mark.release) for name in ("qwen3_next", "inkling"))])
def test_previous_texts_of_rows_in_a_batch(name):
    """Prompts of equal length share a forward pass, whatever part of the previous text is right."""
    target, _ = _target(name)
    texts = prompts((9, 9, 14, 9, 5, 14))
    with target.as_transformers() as model:
        expected = [generate(model, text, max_new_tokens=12) for text in texts]
    previous = [np.where(np.arange(12) == 2 * i, 7, text) for i, text in enumerate(expected)]
    previous[1], previous[4] = previous[1][:0], previous[4][:3]
    requests = [Request(i, text, previous_ids=previous[i]) for i, text in enumerate(texts)]
    settings = EngineSettings(max_new_tokens=12, batch_size=4, nodes=4, score="always")
    results = {r.id: r for r in Engine(target, settings, oracle(expected)).run(requests)}
    assert_written(results, expected)
    same = [next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), 11))
            for old, new in zip(previous, expected, strict=True)]
    assert [results[i].reused_tokens for i in range(len(texts))] == same


def test_states_of_previous_text_are_limited(monkeypatch):
    monkeypatch.setattr(chain, "_STATE_BYTES", 2**14)
    target, expected = _target("mamba2")
    most = target.max_submitted(5)
    assert 1 < most < 10
    engine = Engine(target, EngineSettings(max_new_tokens=40, batch_size=3, score="always"))
    results = list(engine.run(Request(i, text, previous_ids=expected[i]) for i, text in enumerate(prompts())))
    assert_written({result.id: result for result in results}, expected)
    assert {result.reused_tokens for result in results} == {most}


def test_rows_end_at_different_times():
    target, expected = any_target(tiny_without_trees("jamba")), []
    target.generation_config.repetition_penalty = 1.2
    target.generation_config.eos_token_id = [7, 11, 13]
    for text in prompts():
        with target.as_transformers() as model:
            expected.append(generate(model, text))
    assert len({len(text) for text in expected}) > 2
    for batch_size in (1, 2, 5):
        assert_written(write(target, prompts(), oracle(expected), batch_size=batch_size), expected)


@pytest.mark.parametrize("name", ["qwen3_next", "lfm2", "mamba2", *(
    pytest.param(name, marks=pytest.mark.release)
    for name in ("falcon_h1", "bamba", "lfm3", "inkling", "qwen4_exp", "recurrent_gemma"))])
def test_bfloat16_is_verified_in_chains(name):
    assert any_target(tiny_without_trees(name, dtype=torch.bfloat16)).drafts == "chain"


class BadDrafts:
    """Drafts a token whose embedding is not finite after two right ones."""

    def __init__(self, texts, bad: int):
        self.texts, self.bad = texts, bad

    def draft(self, requests, context, lengths, budgets, depths, min_score=0.0):
        tokens, sizes = np.zeros((len(requests), 3), np.int32), np.zeros(len(requests), np.int32)
        for row, request in enumerate(requests):
            ahead = self.texts.get(request.id, ())[lengths[row] - len(request.prompt_ids):][:2]
            sizes[row] = min(len(ahead) + 1, budgets[row], depths[row])
            tokens[row, : len(ahead)], tokens[row, len(ahead)] = ahead, self.bad
        parents = np.tile(np.arange(ROOT, 2, dtype=np.int32), (len(requests), 1))
        scores = np.ones(tokens.shape, np.float32)
        return DraftBatch(tokens, parents, sizes, scores, np.full(tokens.shape, SOURCE_MODEL, np.uint8))


@pytest.mark.parametrize("name", ["mamba2", pytest.param("falcon_h1", marks=pytest.mark.release)])
def test_non_finite_rows_and_drafts_fail_alone(name):
    model, bad, expected = tiny_without_trees(name), VOCABULARY - 1, []
    with torch.no_grad():
        model.get_output_embeddings().weight[bad] = 0
    target = any_target(model)
    texts = [np.where(text == bad, 5, text).astype(np.int32) for text in prompts()]
    for text in texts:
        with target.as_transformers() as model:
            expected.append(generate(model, text))
    with torch.no_grad():
        target.model.get_input_embeddings().weight[bad] = torch.nan
    requests = [Request(i, text) for i, text in enumerate(texts)]
    requests.insert(2, Request(-1, np.array([5, 6, bad, 7, 8], np.int32)))
    engine = Engine(target, EngineSettings(max_new_tokens=40, batch_size=3),
                    BadDrafts(dict(enumerate(expected)), bad))
    for _ in range(2):  # the second run reuses the cache of the first
        results = {result.id: result for result in engine.run(requests)}
        assert "finite" in results.pop(-1).error
        assert_written(results, expected)


@pytest.mark.slow
def test_sampled_text_does_not_depend_on_the_batch():
    target, expected = _target("mamba2")
    sampled = []
    for batch_size in (1, 2):
        engine = SamplingEngine(target, EngineSettings(max_new_tokens=12, batch_size=batch_size, nodes=4),
                                Sampling(Warp(temperature=0.5), seed=3),
                                oracle(expected, distractors=0, error_rate=0))
        requests = [Request(i, text) for i, text in enumerate(prompts()[:3])]
        sampled.append({r.id: r for r in engine.run(requests)})
    for row, result in sampled[0].items():
        assert np.array_equal(sampled[1][row].token_ids, result.token_ids)
    assert sum(result.accepted_tokens for result in sampled[0].values()) > 0


@pytest.mark.slow
def test_a_draft_model_has_to_sample_chains():
    target, _ = _target("mamba2")
    draft = Target(tiny("llama"))
    for tree in ("2x1", "1x2"):
        with pytest.raises(ConfigError, match=f"drafter.tree = {tree}: Mamba2ForCausalLM keeps states"):
            SamplingEngine(target, EngineSettings(), Sampling(), ModelDrafter(draft, tree))
    texts, plain = prompts((5, 17, 9)), []
    for drafter in (ModelDrafter(draft, "1x1x1"), None):
        engine = SamplingEngine(target, EngineSettings(max_new_tokens=6, batch_size=2, nodes=3),
                                Sampling(Warp(temperature=0)), drafter)
        plain.append({r.id: r.token_ids for r in engine.run(Request(i, t) for i, t in enumerate(texts))})
    for row in range(3):
        assert np.array_equal(plain[0][row], plain[1][row])


def test_a_draft_budget_plans_chains(monkeypatch):
    target, expected = _target("mamba2")
    settings = EngineSettings(max_new_tokens=40, batch_size=3, nodes=32, depth=6)
    kept, commit = set(), ChainTarget.commit
    monkeypatch.setattr(ChainTarget, "commit", lambda *args: kept.add(args[-1].max().item()) or commit(*args))
    table = latency_probe.measure(target, settings)
    assert {0, 1, 2, 4} <= kept  # of 1, 2, 5 and 9 tokens
    assert set(table) == {"1", "3"} and all(ms > 0 for times in table.values() for ms in times.values())
    cheap = LatencyCurve.of({"1": {"1": 1.0, "9": 1.1}, "3": {"1": 1.0, "9": 1.1}}, "a test")
    engine = Engine(target, settings, oracle(expected), draft_budget=AdaptiveBudget(cheap, 32))
    results = {r.id: r for r in engine.run(Request(i, text) for i, text in enumerate(prompts()))}
    assert_written(results, expected)
    assert sum(result.accepted_tokens for result in results.values()) > 50


def test_wrong_states_are_detected(monkeypatch):
    right = StateCache.commit_states
    monkeypatch.setattr(StateCache, "commit_states", lambda self, counts: right(self, counts * 0))
    with pytest.raises(DraftError, match="logits over a chain differ"):
        ChainTarget(tiny_without_trees("mamba2"))


def test_a_recurrence_without_states_by_token_runs_without_drafts(monkeypatch):
    monkeypatch.setattr(recurrence, "_FORMS", {})
    with pytest.raises(DraftError, match="gives no state after each token"):
        ChainTarget(tiny_without_trees("mamba2"))
    assert any_target(tiny_without_trees("mamba2")).drafts == "none"


def test_the_best_chain_has_the_largest_sum_of_scores():
    rng = np.random.default_rng(0)
    rows, nodes = 50, 9
    parents = np.array([[rng.integers(-1, i) for i in range(nodes)] for _ in range(rows)], np.int32)
    tokens = np.tile(np.arange(nodes, dtype=np.int32), (rows, 1))
    scores, sizes = np.empty((rows, nodes), np.float32), rng.integers(0, nodes + 1, rows).astype(np.int32)
    for r in range(rows):
        for i in range(nodes):
            scores[r, i] = (1 if parents[r, i] < 0 else scores[r, parents[r, i]]) * rng.uniform(0.2, 1)
    chains = best_chains(DraftBatch(tokens, parents, sizes, scores, np.ones((rows, nodes), np.uint8)))
    for r in range(rows):
        paths = [[]]
        for i in range(sizes[r]):
            above = next(path for path in paths if (path[-1] if path else -1) == parents[r, i])
            paths.append([*above, i])
        best = max(paths, key=lambda path: sum(scores[r, i] for i in path))
        assert chains.tokens[r, : chains.sizes[r]].tolist() == best
        assert np.array_equal(chains.scores[r, : chains.sizes[r]], scores[r, best])
        assert (chains.parents[r] == np.arange(-1, nodes - 1)).all()
