"""Sampled rows do not depend on their batch, equal strict rows at temperature 0, and inexact settings are
rejected.
"""

from functools import cache

import numpy as np
import pytest
import torch
from decode_models import ARCHITECTURES, VOCABULARY, prompts, tiny

from dare_job.decode.draft.model import ModelDrafter
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.sampling.engine import Sampling, SamplingEngine
from dare_job.decode.settings import EngineSettings, Warp
from dare_job.errors import ConfigError, ModelError
from pools.draft import DraftSettings
from pools.index import Index

TEXTS = prompts()
KINDS = [("llama", ""), ("llama", "retrieval"), ("llama", "3x2"), ("gpt2", "3x2")]


@cache
def models(name: str) -> tuple[Target, Target]:
    """Return a target and a similar draft model."""
    near = tiny(name)
    with torch.no_grad():
        for weight in near.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    return Target(tiny(name)), Target(near)


@pytest.fixture
def pair():
    return models("llama")


def drafter(draft: Target, kind: str):
    if kind == "retrieval":
        return RetrievalDrafter(DraftSettings(threads=1))
    return ModelDrafter(draft, kind) if kind else None


def requests(old=None) -> list[Request]:
    rng = np.random.default_rng(0)
    pool = Index.build([rng.integers(0, VOCABULARY, 300).astype(np.int32)])
    return [Request(f"row {n}", text, (pool,), 8 + 3 * n, None if old is None else old[n])
            for n, text in enumerate(TEXTS)]


def generated(engine: Engine, rows: list[Request]) -> dict:
    return {result.id: result.token_ids.tolist() for result in engine.run(rows)}


def settings(batch: int) -> EngineSettings:
    return EngineSettings(batch_size=batch, nodes=12, depth=4, score="always")


@pytest.mark.parametrize("kind", ["", "retrieval", "3x2"])
def test_texts_over_pages_are_those_without(kind):
    """As on a GPU: target and draft model keep keys and values in pages."""
    found = []
    for paged in (False, True):
        target, draft = (Target(model.model, paged=paged) for model in models("llama"))
        assert (target.paged is not None) == paged
        engine = SamplingEngine(target, settings(3), Sampling(Warp(0.9), seed=5), drafter(draft, kind))
        found.append(generated(engine, requests()))
    assert found[0] == found[1] and len({tuple(text) for text in found[0].values()}) == len(TEXTS)



@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_a_row_depends_on_seed_and_id_only(name, kind):
    target, draft = models(name)

    def texts(batch, rows, seed=3):
        sampling = Sampling(Warp(temperature=0.9), seed)
        return generated(SamplingEngine(target, settings(batch), sampling, drafter(draft, kind)), rows)

    alone = texts(1, requests())
    assert texts(3, requests()) == alone == texts(8, requests()[::-1])
    other = texts(8, requests(), seed=4)
    assert all(other[row] != alone[row] for row in alone)
    assert len({tuple(text[:8]) for text in alone.values()}) == len(TEXTS)


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_temperature_0_equals_the_strict_engine(name, kind):
    target, draft = models(name)
    strict = generated(Engine(target, settings(4)), requests())
    old = [np.array(strict[row.id][:5] + [1, 2], np.int32) for row in requests()]
    sampler = SamplingEngine(target, settings(4), Sampling(Warp(temperature=0)), drafter(draft, kind))
    results = {result.id: result for result in sampler.run(requests(old))}
    assert {row: result.token_ids.tolist() for row, result in results.items()} == strict
    assert all(result.reused_tokens >= 5 and not result.relaxed_tokens for result in results.values())


def test_rows_of_windowed_models_are_independent():
    target = Target(tiny("gemma2"))
    one, many = (generated(SamplingEngine(target, settings(batch), Sampling(seed=1),
                                          ModelDrafter(Target(tiny("gemma2")), "2x2")), requests())
                 for batch in (1, 4))
    assert one == many and "gemma2" in ARCHITECTURES


def test_nonfinite_logits_affect_no_other_row(pair):
    target, draft = pair
    small = tiny("llama")
    with torch.no_grad():
        small.get_input_embeddings().weight[TEXTS[1][0]] = torch.nan
    bad = [n for n, text in enumerate(TEXTS) if TEXTS[1][0] in text]
    broken = SamplingEngine(Target(small, check=False), settings(4), Sampling(seed=2), drafter(draft, "3x2"))
    results = {result.id: result for result in broken.run(requests())}
    assert len(results) == len(TEXTS)
    assert all(results[f"row {n}"].error == "the model's logits are not finite" for n in bad)


@pytest.mark.parametrize("vocabulary", [100, 140])
def test_a_draft_model_of_another_width_drafts_what_it_can(pair, vocabulary):
    """The sampling engine tells the drafter the target's vocabulary size."""
    target, _ = pair
    draft = Target(tiny("llama", vocab_size=vocabulary))
    strict = generated(Engine(target, settings(4)), requests())
    for engine in (Engine(target, settings(4), ModelDrafter(draft, "3x2", target.vocabulary)),
                   SamplingEngine(target, settings(4), Sampling(Warp(0)), ModelDrafter(draft, "3x2"))):
        assert generated(engine, requests()) == strict
    assert any(max(text) >= 100 for text in strict.values())


def test_unknown_names_are_rejected():
    with pytest.raises(ConfigError, match="unknown verification rule 'best': use speculative"):
        Sampling(rule="best").require((2,))
    with pytest.raises(ConfigError, match="unknown draft distribution 'best': use iid"):
        Sampling(distribution="best").require((2,))


@pytest.mark.parametrize(("rule", "batch", "count"), [
    ("rrs", 8, 16), *(pytest.param(*each, marks=pytest.mark.release)
                      for each in (("rrs", 1, 6), ("traversal", 8, 16), ("greedy", 8, 16)))])
def test_nonfinite_logits_after_a_token_end_the_row(pair, rule, batch, count):
    """The token occurs as often as without drafts and then gives an error; no other row is affected."""
    target, draft = pair
    small = tiny("llama")
    with torch.no_grad():
        small.get_input_embeddings().weight[7] = torch.nan
        small.lm_head.weight.mul_(0.05)  # nearly flat, so that the token occurs soon
    broken = Target(small, check=False)
    rows = [Request(n, TEXTS[0], max_new_tokens=60) for n in range(count)]
    drawn = SamplingEngine(broken, settings(batch), Sampling(seed=2, rule=rule), ModelDrafter(draft, "3x2"))
    results = list(drawn.run(rows))
    ended = [result for result in results if result.error]
    assert len(results) == count and 0 < len(ended) < count
    for result in results:
        tokens = result.token_ids.tolist()
        assert tokens.count(7) == 1 if result.error else 7 not in tokens[:-1]
        assert tokens[-1] == 7 or not result.error  # and no token that was not sampled follows
        assert result.step_tokens.sum() == len(tokens)


@pytest.mark.parametrize(
    ("sampling", "shape", "rule", "message"),
    [
        (
            Sampling(rule="k_seq"),
            "2x2",
            "strict",
            "'k_seq' is not exact for draft distribution 'without_replacement'",
        ),
        (Sampling(rule="spechub", distribution="spechub"), "3x2", "strict",
         "needs exactly 2 candidates, not 3"),
        (Sampling(rule="traversal", distribution="iid"), "3x2", "strict", "may sample a token twice"),
        (Sampling(rule="traversal", distribution="spechub"), "3x2", "strict",
         "needs exactly 2 candidates, not 3"),
        (Sampling(), "4x4", "strict", "draft tree 4x4 has 20 nodes per row, more than decode.nodes = 12"),
        (
            Sampling(),
            "2x2",
            "relaxed",
            "would change the sampled distribution; with sampling, use verify.rule = strict",
        ),
        (Sampling(seed=-1), "2x2", "strict", "seed is -1"),
    ],
)
def test_inexact_combinations_are_rejected(pair, sampling, shape, rule, message):
    target, draft = pair
    with pytest.raises(ConfigError, match=message):
        SamplingEngine(target, EngineSettings(nodes=12, rule=rule), sampling, ModelDrafter(draft, shape))


def test_a_model_penalty_that_overflows_float32_is_rejected():
    small = tiny("llama")
    small.generation_config.repetition_penalty = 1e20
    with pytest.raises(ModelError, match=r"repetition_penalty is 1e\+20.*at least 0.001 and at most 1000"):
        SamplingEngine(Target(small), settings(4), Sampling())
