"""Merged projections: the same logits, by fewer products, with weights that take no memory of their own."""

import numpy as np
import pytest
import torch
from decode_models import ARCHITECTURES, VOCABULARY, assert_written, generate, oracle, prompts, tiny, write

from dare_job.decode.model import target as targets
from dare_job.decode.model.merged import Gated, MergedProjections
from dare_job.decode.model.paged import fusion
from dare_job.decode.model.target import Target

MERGED = {"llama": 8, "qwen2": 8, "qwen3": 8, "gemma2": 12, "gemma3": 12, "phi": 6, "opt": 6, "phi3": 0,
          "gpt2": 0, "starcoder2": 6, "mixtral": 6, "granite": 8}
# Their attention cannot be replaced (docs/explanation/architecture.md, "On a GPU").
WITHOUT_PAGES = {"gemma2", "gpt_oss", "gpt_neo", "xglm", "falcon", "bloom", "mpt", "falcon_alibi",
                 "deepseek_v32"}


def logits(model, length: int = 9) -> torch.Tensor:
    ids = np.random.default_rng(length).integers(0, VOCABULARY, (2, length))
    with torch.inference_mode():
        return model(input_ids=torch.from_numpy(ids), use_cache=False).logits


@pytest.mark.parametrize("name", MERGED)
def test_merged_projections_compute_the_same(name):
    model = tiny(name)
    expected, before = logits(model), sum(weight.nbytes for weight in model.parameters())
    merged = MergedProjections(model)
    assert len(merged) == MERGED[name]
    assert torch.allclose(logits(model), expected, atol=1e-5, rtol=1e-5)
    assert sum(weight.nbytes for weight in model.parameters()) == before
    with merged.off():
        assert not any("forward" in vars(module) for module in model.modules())
        assert torch.allclose(logits(model), expected, atol=1e-5, rtol=1e-5)
    assert len(merged) == sum("forward" in vars(module) for module in model.modules())


def test_a_weight_is_a_view_of_the_merged_one():
    model = tiny("qwen2")
    attention = model.model.layers[0].self_attn
    MergedProjections(model)
    storages = {layer.weight.untyped_storage().data_ptr()
                for layer in (attention.q_proj, attention.k_proj, attention.v_proj)}
    assert len(storages) == 1
    before = logits(model)
    with torch.no_grad():
        attention.k_proj.weight.zero_()
    assert not torch.allclose(logits(model), before)


def test_a_merged_model_is_saved_with_its_own_weights(tmp_path):
    model = tiny("qwen2")
    expected = {name: weight.clone() for name, weight in model.state_dict().items()}
    MergedProjections(model)
    model.save_pretrained(tmp_path)
    saved = type(model).from_pretrained(tmp_path).state_dict()
    assert saved.keys() == expected.keys() and all(torch.equal(saved[name], expected[name]) for name in saved)


def test_a_layer_called_alone_or_with_other_values_computes_its_own_product():
    model = tiny("qwen2")
    attention = model.model.layers[0].self_attn
    values, others = torch.randn(2, 1, 3, 32)
    layers = (attention.q_proj, attention.k_proj, attention.v_proj)
    with torch.inference_mode():
        expected = [[layer(each) for layer in layers] for each in (values, others)]
        MergedProjections(model)
        assert torch.allclose(layers[1](values), expected[0][1], atol=1e-6)  # nothing was computed before
        assert torch.allclose(layers[0](values), expected[0][0], atol=1e-6)
        assert torch.allclose(layers[2](others), expected[1][2], atol=1e-6)
        assert torch.allclose(layers[2](values), expected[0][2], atol=1e-6)
        assert torch.allclose(layers[2](values), expected[0][2], atol=1e-6)  # a second time


def test_a_feed_forward_that_computes_more_is_not_merged():
    model = tiny("gemma3n", activation_sparsity_pattern=[0.9] * 4)
    merged = MergedProjections(model)
    assert not any(isinstance(vars(module).get("forward"), Gated) for module in model.modules())
    assert any(isinstance(vars(module).get("forward"), Gated) for module in tiny_merged("gemma3n").modules())
    assert len(merged) > 0


def tiny_merged(name: str):
    model = tiny(name)
    MergedProjections(model)
    return model


def test_quantized_and_replaced_layers_are_left_alone():
    model = tiny("llama")
    attention = model.model.layers[0].self_attn
    attention.q_proj.forward = attention.q_proj.forward
    model.model.layers[1].self_attn.k_proj.weight.requires_grad_(False).data = (
        model.model.layers[1].self_attn.k_proj.weight.data.bfloat16())
    assert len(MergedProjections(model)) == 2  # the feed-forwards


def test_feed_forwards_are_compiled_with_merged_projections(monkeypatch):
    model, compiled = tiny_merged("llama"), []
    monkeypatch.setattr(fusion, "_can_compile", lambda device: True)
    monkeypatch.setattr(fusion, "_compiled", lambda function: compiled.append(function) or function)
    before, expected = {module: vars(module).get("forward") for module in model.modules()}, logits(model)
    with fusion.fused(model):
        assert torch.allclose(logits(model), expected)
    assert Gated.__call__ in compiled
    assert {module: vars(module).get("forward") for module in model.modules()} == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_texts_over_pages_with_merged_projections_are_those_of_generate(name, monkeypatch):
    model, texts = tiny(name), prompts()
    expected = [generate(model, text) for text in texts]
    merged = MergedProjections(model)
    monkeypatch.setattr(targets, "PrepackedLayers", lambda model: merged)
    target = Target(model, paged=True)
    assert (target.paged is None) == (name in WITHOUT_PAGES)
    assert_written(write(target, texts, oracle(expected)), expected)
    assert (target.paged is None) == (name in WITHOUT_PAGES)
