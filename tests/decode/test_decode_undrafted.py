"""Models that cannot verify drafts run through their own cache, with the text of ``generate``."""

import logging
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers as hf
from decode_models import GROUPED, SIZES, VOCABULARY, assert_written, oracle, prompts, tiny, write
from decode_models import generate_now as generate
from rich.console import Console
from state_models import ARCHITECTURES_WITHOUT_TREES, tiny_without_trees
from test_check import _save

from dare_job.bench.sweep import models
from dare_job.config.settings import JobConfig
from dare_job.decode.beam.engine import BeamEngine
from dare_job.decode.engine.engine import Engine
from dare_job.decode.engine.generation_config import read_rules
from dare_job.decode.model import own_cache
from dare_job.decode.model.chain import ChainTarget
from dare_job.decode.model.prepacked import PrepackedLinear
from dare_job.decode.model.target import Target
from dare_job.decode.model.undrafted import ALONE, EQUAL, PADDED, UndraftedTarget, any_target
from dare_job.decode.request import Request
from dare_job.decode.sampling.engine import Sampling, SamplingEngine
from dare_job.decode.settings import Beams, EngineSettings, Warp
from dare_job.errors import ModelError
from dare_job.evaluate import model_facts
from dare_job.evaluate.check import run_check
from dare_job.generate import loading

_FAST = {"mamba2", "rwkv", "llama4_chunks"}
NAMES = [name if name in _FAST else pytest.param(name, marks=pytest.mark.release)
         for name in ARCHITECTURES_WITHOUT_TREES]
# In steps of several rows, Rwkv of transformers mixes the rows, and XLNet fails.
BATCHES = {"rwkv": ALONE, "recurrent_gemma": EQUAL, "minimax": EQUAL, "gpt_neo_local": EQUAL, "doge": EQUAL,
           "llama4_chunks": EQUAL, "xlnet": ALONE, "inkling": EQUAL, "qwen4_exp": EQUAL}


def _undrafted(name: str) -> UndraftedTarget:
    return UndraftedTarget(tiny_without_trees(name), "a test")


def _expected(target: Target, texts: list[np.ndarray], **options) -> list[np.ndarray]:
    written = []
    for text in texts:
        with target.as_transformers() as model:
            written.append(generate(model, text, **options))
    return written


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("name", NAMES)
def test_text_of_generate(name):
    target = _undrafted(name)
    texts = prompts((5, 17, 1, 17, 9, 22, 9))
    expected = _expected(target, texts)
    assert len({token for text in expected for token in text.tolist()}) > 5
    results = write(target, texts, oracle(expected), nodes=16)
    assert_written(results, expected)
    assert all(result.target_steps == len(text) - 1 and not result.accepted_tokens
               for result, text in zip(map(results.get, range(len(texts))), expected, strict=True))
    assert target.batches == BATCHES.get(name, PADDED)


def test_rows_share_forward_passes():
    target, texts, passes = _undrafted("mamba2"), prompts((5, 17, 9, 11)), []
    forward = target.model.forward
    target.model.forward = lambda *args, **kwargs: passes.append(1) or forward(*args, **kwargs)
    results = write(target, texts, batch_size=2, max_new_tokens=10)
    assert len(passes) == 2 * 10 and all(len(result.token_ids) == 10 for result in results.values())


@pytest.mark.slow
def test_rows_end_at_different_times():
    target, texts = _undrafted("jamba"), prompts((5, 17, 9, 11, 3))
    expected = _expected(target, texts)
    target.generation_config.eos_token_id = [int(expected[0][6]), int(expected[2][20])]
    target.generation_config.repetition_penalty = 1.3
    expected = _expected(target, texts)
    assert len({len(text) for text in expected}) > 1
    for batch_size in (1, 2, 5):
        assert_written(write(target, texts, batch_size=batch_size), expected)


def test_previous_texts_are_not_verified():
    target, texts = _undrafted("mamba2"), prompts()
    expected = _expected(target, texts)
    engine = Engine(target, EngineSettings(max_new_tokens=40, batch_size=3, score="always"))
    results = list(engine.run(Request(i, text, previous_ids=expected[i]) for i, text in enumerate(texts)))
    assert_written({result.id: result for result in results}, expected)
    assert all(not result.reused_tokens for result in results)


@pytest.mark.parametrize("name", ["mamba2", pytest.param("recurrent_gemma", marks=pytest.mark.release)])
def test_rows_with_non_finite_logits_fail_alone(name):
    target, bad = _undrafted(name), VOCABULARY - 1
    with torch.no_grad():
        target.model.get_output_embeddings().weight[bad] = 0
    texts = [np.where(text == bad, 5, text).astype(np.int32) for text in prompts()]
    expected = _expected(target, texts)
    assert not any(bad in text for text in expected)
    with torch.no_grad():  # not before loading, where the check would find it
        target.model.get_input_embeddings().weight[bad] = torch.nan
    requests = [Request(i, text) for i, text in enumerate(texts)]
    requests.insert(2, Request(-1, np.array([5, 6, bad, 7, 8], np.int32)))
    results = {r.id: r for r in Engine(target, EngineSettings(max_new_tokens=40, batch_size=3)).run(requests)}
    assert "finite" in results.pop(-1).error
    assert_written(results, expected)


def test_sampled_text_does_not_depend_on_the_batch():
    target, texts = _undrafted("mamba2"), prompts()
    settings = [EngineSettings(max_new_tokens=20, batch_size=size, nodes=8) for size in (1, 3)]
    alone, batched = ({result.id: result.token_ids for result in SamplingEngine(
        target, one, Sampling(Warp(temperature=0.8), seed=3), oracle([])).run(
        Request(i, text) for i, text in enumerate(texts))} for one in settings)
    for row, text in alone.items():
        assert np.array_equal(batched[row], text)


def test_a_warning_names_the_cause_and_the_cost(caplog):
    with caplog.at_level(logging.WARNING):
        target = any_target(tiny_without_trees("doge"))
    assert target.drafts == "none"
    [record] = [record for record in caplog.records if "without drafts" in record.message]
    assert "DogeForCausalLM is decoded without drafts: keep_window_size 2048 limits" in record.message
    assert "Each token takes a forward pass" in record.message


def test_the_cause_quotes_no_error_of_the_models_code():
    target = any_target(tiny_without_trees("minimax"))
    assert (target.drafts, target.reason) == ("none", "it does not run with the usual cache of states")


def test_a_model_with_drafts_is_an_ordinary_target():
    assert type(any_target(tiny("llama"))) is Target


def test_a_model_that_fails_the_check_of_trees_runs_unchanged():
    model = tiny("llama")
    attention, layers = model.config._attn_implementation, model.model
    forward = layers.forward
    layers.forward = lambda *args, attention_mask=None, **kwargs: forward(*args, **kwargs)
    target = any_target(model)
    assert target.drafts == "none" and target.batches == EQUAL  # without its mask, padding changes logits
    assert model.config._attn_implementation == attention
    assert not any(isinstance(vars(module).get("forward"), PrepackedLinear) for module in model.modules())
    texts = prompts((5, 17, 17, 9))
    assert_written(write(target, texts), _expected(target, texts))


def test_a_model_that_has_run_before_keeps_no_state_of_it():
    model, texts = tiny_without_trees("recurrent_gemma"), prompts((5, 17, 9))
    expected = [generate(model, text) for text in texts]
    assert_written(write(UndraftedTarget(model, "a test"), texts), expected)


def test_rows_of_a_model_whose_rows_mix_are_decoded_alone(monkeypatch):
    """A fault in dropping rows is found at loading."""
    right = own_cache._select
    monkeypatch.setattr(own_cache, "_select", lambda value, index, rows: right(value, index * 0, rows))
    assert _undrafted("mamba2").batches == ALONE


@pytest.mark.parametrize("name", ["paligemma", "cpmant"])
def test_a_model_whose_prompts_are_read_in_both_directions(name):
    """The prompt is read once: a text after it continues causally, as in ``generate``."""
    target, texts = any_target(models.tiny(name)), [text % 70 + 2 for text in prompts((5, 17, 17, 9))]
    assert (target.drafts, target.batches) == ("none", EQUAL)
    assert target.reason.startswith("it reads prompts in both directions")
    expected = _expected(target, texts)
    assert len({token for text in expected for token in text.tolist()}) > 5
    for batch_size in (1, 3):
        assert_written(write(target, texts, batch_size=batch_size), expected)


@pytest.mark.parametrize("config, reason", [
    (hf.BertConfig(**SIZES), "not causal"),
    (hf.Gemma3TextConfig(**GROUPED, head_dim=8, use_bidirectional_attention=True), "not causal")])
def test_masked_models_are_refused(config, reason):
    with pytest.raises(ModelError, match=reason):
        any_target(hf.AutoModelForCausalLM.from_config(config))


def test_encoder_decoders_are_refused():
    config = hf.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4)
    with pytest.raises(ModelError, match="encoder-decoder"):
        any_target(hf.T5ForConditionalGeneration(config))


def test_beams_are_refused():
    with pytest.raises(ModelError, match=r"decode.mode = beam does not support Mamba2ForCausalLM: a test"):
        BeamEngine(_undrafted("mamba2"), EngineSettings(), Beams())


@pytest.mark.parametrize("mode", ["dare", "sample", "resd", "autoregressive"])
def test_the_engine_of_a_run_has_no_drafts(monkeypatch, mode):
    target = _undrafted("mamba2")
    loaded = SimpleNamespace(target=target, numbers=None, learned={})
    monkeypatch.setattr(loading, "load_task_model", lambda task: loaded)
    config = JobConfig.model_validate({"decode": {"mode": mode}})
    engine = loading.make_engine(SimpleNamespace(config=config, threads=1, model="mamba2", draft=""))
    assert engine.drafter is None and engine.draft_budget is None and not engine.settings.nodes
    results = list(engine.run(Request(i, text, max_new_tokens=5) for i, text in enumerate(prompts())))
    assert all(result.error is None for result in results)


def test_check_compares_without_drafts(tmp_path):
    folder, out = _save(tmp_path, model=tiny_without_trees("doge")), StringIO()
    result = run_check(folder, None, 4, max_new_tokens=12, console=Console(file=out, width=400))
    assert result["equal"] and {batch["nodes"] for batch in result["by_batch"]} == {0}
    assert "decoded without drafts (keep_window_size" in out.getvalue()
    token = 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, dimension, bytes
    assert result["memory"]["cache_per_token"] == token
    assert "256 B per token; with " in out.getvalue()


@pytest.mark.parametrize("name", ["jamba", "mamba2", "lfm2"])
def test_the_own_cache_takes_the_memory_of_the_cache_for_chains(name):
    own, chains = _undrafted(name).cache_bytes, ChainTarget(tiny_without_trees(name)).cache_bytes
    assert own == chains


def test_a_model_without_a_cache_says_so():
    target, out = UndraftedTarget(models.tiny("openai-gpt"), "a test"), StringIO()
    facts = model_facts.describe(target, read_rules(target.generation_config), adapted=False)
    model_facts.show(Console(file=out, width=400), facts)
    assert "it keeps no cache" in out.getvalue()


def test_check_compares_chains(tmp_path):
    folder, out = _save(tmp_path, model=tiny_without_trees("mamba2")), StringIO()
    result = run_check(folder, None, 4, max_new_tokens=12, console=Console(file=out, width=400))
    assert result["equal"] and {batch["nodes"] for batch in result["by_batch"]} == {0, 16}
    assert "supported, chains of drafts (its layers keep states)" in out.getvalue()
    memory = result["memory"]
    assert memory["cache_per_token"] == 0 and memory["cache"]["8"] == 8 * memory["cache_per_row"] > 0
