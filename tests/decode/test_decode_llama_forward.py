"""Forward passes of Llama-like models on a CPU: the logits of transformers, or not used at all."""

import numpy as np
import pytest
import torch
from decode_models import assert_written, generate, oracle, prepacks, prompts, tiny, write
from transformers import LlamaForCausalLM

from dare_job.decode.model import llama_forward, prepacked, selfcheck
from dare_job.decode.model.llama_forward import LlamaForward, Unsupported
from dare_job.decode.model.target import Target

LIKE_LLAMA = ("llama", "qwen2", "qwen3", "mistral")


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("linear", ["compiled", "oneDNN", "oneDNN, a single query left to torch"])
@pytest.mark.parametrize("name", LIKE_LLAMA)
def test_texts_are_those_of_generate(name, linear, monkeypatch):
    monkeypatch.setattr(llama_forward, "is_fast", lambda dtype: linear == "compiled")
    monkeypatch.setattr(llama_forward, "CACHED_BYTES", prepacked.CACHED_BYTES if "single" in linear else 0)
    model, texts = tiny(name), prompts()
    expected = [generate(model, text) for text in texts]
    target = Target(model)
    assert target.llama is not None and target.linear_layers is None
    for nodes in (0, 12):
        assert_written(write(target, texts, oracle(expected), nodes=nodes), expected)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("name", LIKE_LLAMA)
def test_logits_are_those_of_the_model(name, dtype, tolerance, compiled, monkeypatch):
    monkeypatch.setattr(llama_forward, "is_fast", lambda dtype: compiled)
    model = tiny(name, dtype=dtype)
    ids = torch.randint(2, 100, (2, 20))
    with torch.inference_mode():
        expected = model(input_ids=ids).logits
        target = Target(model)
        with target.as_transformers() as unchanged:
            assert torch.equal(unchanged(input_ids=ids).logits, expected)
        cache = target.new_cache(2)
        ours = target.prefill(cache, np.arange(2), ids.numpy(), np.full(2, 20))
    assert (target.llama is not None) == (compiled or prepacks(dtype))
    assert (ours - expected[:, -1]).abs().max() <= tolerance * expected.std()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("tied", [False, True])
def test_the_models_own_weights_are_freed_and_come_back_for_comparison(tied, compiled, monkeypatch):
    monkeypatch.setattr(llama_forward, "is_fast", lambda dtype: compiled)
    monkeypatch.setattr(llama_forward, "CACHED_BYTES", 0)
    model, texts = tiny("llama", tie_word_embeddings=tied), prompts()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    expected = [generate(model, text) for text in texts]
    target = Target(model)
    target.release_weights()
    assert target.logit_columns == target.vocabulary == len(weights["lm_head.weight"])
    freed = [name for name, value in model.state_dict().items() if not value.numel()]
    assert len(freed) == 2 * 7 + (2 * compiled if tied else 1)  # tied: embedding and head
    assert_written(write(target, texts, oracle(expected)), expected)
    for _ in range(2):
        with target.as_transformers() as unchanged:
            with target.as_transformers():
                pass
            assert all(torch.equal(value, weights[name]) for name, value in unchanged.state_dict().items())
        assert all(not model.state_dict()[name].numel() for name in freed)


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "mistral-window", "mixtral"])
def test_other_models_run_their_own_code(name):
    target = Target(tiny(name))
    assert target.llama is None and target.linear_layers is not None


class OwnLlama(LlamaForCausalLM):
    """Code that may do more than transformers', for some prompts only."""


@pytest.mark.parametrize("change", [
    lambda model: setattr(model.config, "hidden_act", "relu") or setattr(
        model.model.layers[1].mlp, "act_fn", torch.nn.ReLU()),
    lambda model: model.lm_head.register_forward_hook(lambda *call: call[-1] / 2),
    lambda model: setattr(model.lm_head, "forward", lambda values: values),
    lambda model: setattr(model, "__class__", OwnLlama),
    lambda model: model.half()], ids=["activation", "hook", "replaced", "code of its own", "float16"])
def test_a_model_with_llamas_parts_that_computes_something_else_runs_its_own_code(change):
    model = tiny("llama")
    change(model)
    assert Target(model, check=False).llama is None


@pytest.mark.parametrize(("equal", "used"), [([False, False, True], True), ([False] * 3, False)])
def test_one_of_three_texts_must_have_the_models_logits(equal, used, monkeypatch, caplog):
    target, answers = Target(tiny("llama"), check=False), iter(equal)
    monkeypatch.setattr(selfcheck, "_equal_logits", lambda *args: next(answers))
    assert (selfcheck.llama_forward(target) is not None) == used
    assert ("continuing with its own code, slower" in caplog.text) != used


def test_too_large_models_and_builds_without_the_operator_are_refused(monkeypatch):
    monkeypatch.setattr(llama_forward, "MAX_BYTES", 1000)
    with pytest.raises(Unsupported, match="size"):
        LlamaForward(tiny("llama"))
    monkeypatch.undo()
    monkeypatch.setattr(llama_forward, "is_fast", lambda dtype: False)
    monkeypatch.setattr(prepacked, "TYPICAL_ROWS", "none")  # makes the operator fail, as on another build
    assert Target(tiny("llama")).llama is None
