"""Prepacked linear layers, of models without a ``LlamaForward``: same results, and only where supported."""

import copy

import pytest
import torch
from decode_models import assert_written, generate, oracle, prepacks, prompts, tiny, write

from dare_job.decode.model import prepacked
from dare_job.decode.model.target import Target


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("linear", ["compiled", "oneDNN", "oneDNN, a single query left to torch"])
def test_prepacked_layers_compute_the_same_regardless_of_rows(dtype, tolerance, linear, monkeypatch):
    compiled, cached = linear == "compiled", "single" in linear
    monkeypatch.setattr(prepacked, "is_fast", lambda dtype: compiled)
    monkeypatch.setattr(prepacked, "CACHED_BYTES", prepacked.CACHED_BYTES if cached else 0)
    layer = torch.nn.Linear(96, 56).to(dtype)
    packed = prepacked.PrepackedLayers(layer)
    if not compiled and not prepacks(dtype):
        assert len(packed) == 0 and "forward" not in vars(layer)
        return
    assert len(packed) == 1
    values = torch.randn(2, 40, 96, dtype=dtype)
    with torch.inference_mode():
        for some in (values[:, :17], values[:, ::3], values.transpose(0, 1), values[0, :1]):
            ours = layer(some)
            with packed.off():
                plain = layer(some)
            assert ours.shape == plain.shape
            assert torch.allclose(ours, plain, atol=tolerance, rtol=tolerance)
        whole = layer(values[:1])
        assert all(torch.equal(layer(values[:1, :n]), whole[:, :n]) for n in range(2 if cached else 1, 40))


def test_the_target_prepacks_its_model_except_for_comparison():
    model = tiny("mistral-window", tie_word_embeddings=True)
    linear = [module for module in model.modules() if type(module) is torch.nn.Linear]
    target = Target(model)
    assert len(target.linear_layers) == len(linear) and all("forward" in vars(layer) for layer in linear)
    with target.as_transformers():
        assert not any("forward" in vars(layer) for layer in linear)
    again = Target(model)
    assert len(again.linear_layers) == len(linear)
    with target.as_transformers():
        assert not any("forward" in vars(layer) for layer in linear)
    assert all("forward" in vars(layer) for layer in linear)


def test_unsupported_layers_are_unchanged(monkeypatch):
    model, texts = tiny("mistral-window"), prompts()
    expected = [generate(model, text) for text in texts]
    monkeypatch.setattr(prepacked, "MAX_BYTES", 1000)
    target = Target(model)
    assert len(target.linear_layers) == 0
    assert_written(write(target, texts, oracle(expected)), expected)
    monkeypatch.undo()
    monkeypatch.setattr(prepacked, "is_fast", lambda dtype: False)
    monkeypatch.setattr(prepacked, "TYPICAL_ROWS", "none")  # makes the operator fail, as on another build
    assert len(prepacked.PrepackedLayers(model)) == 0
    monkeypatch.undo()
    layer = torch.nn.Linear(4, 4)
    layer.forward = lambda values: values
    assert len(prepacked.PrepackedLayers(layer)) == 0 and layer(1) == 1
    assert len(prepacked.PrepackedLayers(torch.nn.Linear(4, 4).half())) == 0


def test_a_prepacked_model_can_be_copied():
    model = tiny("mistral-window")
    Target(model)
    ids = torch.arange(2, 12)[None]
    with torch.inference_mode():
        wanted = model(input_ids=ids).logits
        other = copy.deepcopy(model)
        assert torch.equal(other(input_ids=ids).logits, wanted)
        other.lm_head.weight.data.zero_()  # an independent model
        assert len(prepacked.PrepackedLayers(other)) and not other(input_ids=ids).logits.any()
        assert torch.equal(model(input_ids=ids).logits, wanted)


def test_other_replacements_of_forward_stay_and_contexts_nest():
    model = tiny("mistral-window")
    first, second = Target(model), Target(model)
    layer = model.lm_head
    with first.as_transformers():
        with second.as_transformers():
            assert "forward" not in vars(layer)
        assert "forward" not in vars(layer)
    assert isinstance(layer.forward, prepacked.PrepackedLinear)
    layer.forward = theirs = lambda values: values
    with first.as_transformers():
        assert layer.forward is theirs
    assert layer.forward is theirs


@pytest.mark.parametrize("compiled", [True, False])
def test_no_values_give_no_results_and_gradients_are_those_of_torch(compiled, monkeypatch):
    monkeypatch.setattr(prepacked, "is_fast", lambda dtype: compiled)
    layer = torch.nn.Linear(32, 24)
    assert len(prepacked.PrepackedLayers(layer)) == (compiled or prepacks(torch.float32))
    with torch.inference_mode():
        for shape in ((0,), (2, 0)):  # as for an expert without tokens
            assert layer(torch.empty(*shape, 32)).shape == (*shape, 24)
    values = torch.randn(3, 32, requires_grad=True)
    layer(values).sum().backward()
    assert torch.allclose(values.grad, layer.weight.detach().sum(0).expand(3, -1), atol=1e-5)
