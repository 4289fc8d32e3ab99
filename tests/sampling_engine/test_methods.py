"""Each method that a run can choose, from the YAML of its settings to texts, with the engine of a worker."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from decode_models import generate, prompts, tiny

from dare_job.config.settings import JobConfig, load
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import BEAM_METHODS, RULES, SAMPLE_METHODS
from dare_job.generate import engines, loading
from pools.index import Index

TEXTS, TOKENS = prompts((5, 12, 7)), 7
MODEL = "drafter: {model: d, tree: 2x2}"
GREEDY = ["decode: {mode: dare}", "decode: {mode: dare, nodes: auto}", "decode: {mode: dare, nodes: 0}",
          "decode: {mode: resd}", "decode: {mode: autoregressive}", f"decode: {{mode: dare}}\n{MODEL}",
          "decode: {mode: dare, score: always}", "decode: {mode: dare, score: never}",
          "decode: {mode: dare, blend_lambda: 4, context: 3, depth: 2}",
          "decode: {mode: sample}\nsample: {temperature: 0}"]
BEAMS = ["", "beam: {width: 3, min_width: 3}", "beam: {width: 3, min_width: 1, threshold: 0.5}",
         "beam: {single_cache: true}", "beam: {layers: 0}", "sample: {top_k: 5, top_p: 0.9}"]


@pytest.fixture(scope="module")
def models():
    """A target, and a copy of it with some noise as the draft model."""
    model, draft = tiny("llama"), tiny("llama")
    with torch.no_grad():
        for weight in draft.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    return Target(model, check=False), Target(draft, check=False)


@pytest.fixture(scope="module")
def greedy(models) -> list[list[int]]:
    return [generate(models[0].model, text, max_new_tokens=TOKENS).tolist() for text in TEXTS]


@pytest.fixture
def texts(tmp_path, monkeypatch, models, greedy):
    """Factory: YAML to texts, generated as a worker does it; rows have pools and their previous text."""
    loaded = SimpleNamespace(target=models[0], numbers=None, learned={})
    monkeypatch.setattr(loading, "load_task_model", lambda task: loaded)
    monkeypatch.setattr(engines, "load_draft_model", lambda task: models[1])
    previous = [np.array([*text[:5], 3, *text[6:]], np.int32) for text in greedy]
    pools = (Index.build(previous),)

    def run(text: str, **plain) -> list[list[int]]:
        (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
        batch = 3 if "mode: sample" in text or "mode: beam" in text else 2  # greedy rows also wait for a slot
        fixed = [] if "nodes: " in text else ["decode.nodes=8"]  # auto measures latency first
        config = load(tmp_path / "job.yaml",
                      [f"decode.max_new_tokens={TOKENS}", f"decode.batch_size={batch}", *fixed])
        task = SimpleNamespace(config=config, threads=1, model=text, draft="d", run_id="run", folder="f")
        requests = [Request(n, prompt, pools, previous_ids=old, key=("user", n))
                    for n, (prompt, old) in enumerate(zip(TEXTS, previous, strict=True))]
        results = {result.id: result for result in loading.make_engine(task, **plain).run(requests)}
        assert not any(result.error for result in results.values())
        return [results[n].token_ids.tolist() for n in range(len(TEXTS))]
    return run


@pytest.mark.parametrize("text", GREEDY)
def test_exact_greedy_methods_write_what_generate_does(texts, greedy, text):
    assert texts(text) == texts(text, mode="autoregressive") == greedy


@pytest.mark.parametrize("drafter", ["", MODEL])
@pytest.mark.parametrize("rule", RULES)
def test_verification_rules(texts, greedy, rule, drafter):
    found = texts(f"verify: {{rule: {rule}, k: 40, p: 0.0, c: 0.01, epsilon: 0.001}}\n{drafter}")
    assert all(len(text) == TOKENS for text in found)
    if rule == "strict":
        assert found == greedy
    else:
        fixed = f"verify: {{rule: {rule}, reproducible: true, length_quantile: null}}\n{drafter}"
        assert texts(fixed) == texts(fixed)


@pytest.mark.fast_cases(20)
@pytest.mark.parametrize("method", SAMPLE_METHODS)
def test_sampling_methods(texts, greedy, method):
    """At temperature 0 all of them write the greedy text; above, the seed decides."""
    rule, distribution = SAMPLE_METHODS[method]
    chain = rule == "speculative" or (rule, distribution) == ("traversal", "iid")
    yaml = (f"decode: {{mode: sample}}\ndrafter: {{model: d, tree: {'1x1' if chain else '2x2'}}}\n"
            f"sample: {{method: {method}, temperature: %s}}\nseed: %s")
    assert texts(yaml % (0, 0)) == greedy
    sampled = texts(yaml % (1, 0))
    assert sampled == texts(yaml % (1, 0)) != texts(yaml % (1, 1))
    assert all(len(text) == TOKENS for text in sampled)


def test_sampling_with_drafts_of_earlier_texts(texts):
    """Warping of each kind; drafts of retrieval have no distribution."""
    for more, decode in (("", ""), (", top_k: 3", ""), (", top_p: 0.5", ""), (", min_p: 0.1", ""),
                         (", logit_bias: {3: -10000}", ""), ("", ", repetition_penalty: 1.3")):
        found = texts(f"decode: {{mode: sample, score: always{decode}}}\nsample: {{temperature: 0.8{more}}}")
        assert all(len(text) == TOKENS for text in found)
        assert "logit_bias" not in more or not any(3 in text for text in found)


@pytest.mark.parametrize("drafter", ["", "drafter: {model: d}"])
@pytest.mark.parametrize(("method", "settings"), [*itertools.product(BEAM_METHODS, ("",)),
                                                  *itertools.product(("iid",), BEAMS[1:])])
def test_beam_methods(texts, method, settings, drafter):
    beam = settings.replace("beam: {", f"beam: {{method: {method}, ")
    if "beam: " not in settings:
        beam = f"{settings}\nbeam: {{method: {method}}}"
    found = texts(f"decode: {{mode: beam}}\n{beam}\n{drafter}")
    assert all(len(text) == TOKENS for text in found)


@pytest.mark.parametrize("drafter", ["", "drafter: {model: d}"])
def test_beam_search_writes_what_generate_does(texts, models, drafter):
    found = texts(f"decode: {{mode: beam}}\nsample: {{temperature: 0}}\nbeam: {{width: 3}}\n{drafter}")
    assert found == [generate(models[0].model, text, max_new_tokens=TOKENS, num_beams=3).tolist()
                     for text in TEXTS]


def test_the_lists_above_are_all_that_can_be_chosen():
    modes = JobConfig.model_fields["decode"].annotation.model_fields["mode"].annotation.__args__
    assert set(modes) == {"dare", "resd", "autoregressive", "sample", "beam"}
    assert len(SAMPLE_METHODS) == 30 and len(BEAM_METHODS) == 4 and len(RULES) == 7
