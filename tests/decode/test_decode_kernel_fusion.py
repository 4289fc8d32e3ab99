"""Kernel fusion: same logits with compiled operations, and the model's own code afterwards."""

import os
import shutil

import numpy as np
import pytest
import torch
import torch._inductor.config
from decode_models import VOCABULARY, generate, oracle, prompts, tiny, write
from tape import Recorder

from dare_job.decode.model.paged import fusion
from dare_job.decode.model.paged.forward import PagedForward
from dare_job.decode.model.paged.fusion import fused
from dare_job.decode.model.target import Target

COMPILER = shutil.which(os.environ.get("CXX", "g++"))


@pytest.fixture(autouse=True)
def fresh():
    """Clear the caches of compiled functions."""
    for known in (fusion._compiled, fusion._can_compile):
        known.cache_clear()
    torch._dynamo.reset()
    yield
    for known in (fusion._compiled, fusion._can_compile):
        known.cache_clear()


@pytest.fixture
def traced(monkeypatch):
    """Return the functions that torch compiles; they are traced and run without generating C++."""
    given, compile_ = [], torch.compile
    monkeypatch.setattr(fusion.torch, "compile", lambda function: (
        given.append(function), compile_(function, backend="aot_eager"))[1])
    return given


def uneven(name: str, **changes):
    """Return a tiny model whose norms have different weights."""
    model = tiny(name, **changes)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.normal_(1, 0.3)
    return model


def logits(model, length: int = 9) -> torch.Tensor:
    ids = np.random.default_rng(length).integers(0, VOCABULARY, (2, length))
    with torch.inference_mode():
        return model(input_ids=torch.from_numpy(ids), use_cache=False).logits


def replaced(model) -> dict:
    """Return the replaced forward functions of a model, and the rotary function of its Python module."""
    own = {name: module.forward for name, module in model.named_modules() if "forward" in vars(module)}
    return own | {scope.__name__: getattr(scope, fusion._ROTARY) for scope in fusion._compilable(model)[1]}


@pytest.mark.parametrize("name", [
    "llama", "gpt2", *(pytest.param(name, marks=pytest.mark.release)
                       for name in ("qwen3", "mistral-window", "gemma3", "phi3"))])
def test_the_fused_model_has_the_logits_of_the_model(name, traced):
    model = uneven(name)
    modules, scopes = fusion._compilable(model)
    assert bool(modules) == bool(scopes) == (name != "gpt2"), "another part of it is compiled than was"
    before, expected = replaced(model), [logits(model, length) for length in (9, 1, 23)]
    with fused(model):
        assert all("forward" in vars(module) for module in modules)
        found = [logits(model, length) for length in (9, 1, 23)]
    for ours, plain in zip(found, expected, strict=True):
        assert torch.allclose(ours, plain, atol=1e-5, rtol=1e-5)
    kinds = {type(module).forward for module in modules} | {fusion._probe}
    assert kinds <= set(traced) and len(traced) == len(set(traced)) == len(kinds) + len(scopes)
    assert replaced(model) == before
    assert torch.equal(logits(model), expected[0])


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
def test_compiled_code_has_the_same_logits():
    """As on a GPU, where torch generates Triton instead of C++."""
    model = uneven("llama", num_hidden_layers=1)
    expected = logits(model)
    # Without this, torch compiles a program for each kind of vector instructions to see which ones work.
    with torch._inductor.config.patch("cpp.vec_isa_ok", True), fused(model):
        assert any("forward" in vars(module) for module in model.modules()), "nothing was compiled"
        assert torch.allclose(logits(model), expected, atol=1e-5, rtol=1e-5)


def test_recorded_with_compiled_parts_the_texts_are_the_same(traced, monkeypatch):
    recorder, model, texts = Recorder(monkeypatch), tiny("llama"), prompts()
    expected = [generate(model, text) for text in texts]
    target = Target(model, paged=False)
    target.paged = PagedForward(model, target.traits, record=True, fuse=True)
    compiled, run = [], target.paged._run
    target.paged._run = lambda *args: (compiled.append("forward" in vars(model.model.norm)), run(*args))[1]
    results = write(target, texts, oracle(expected), nodes=4)
    assert all(np.array_equal(results[row].token_ids, text) for row, text in enumerate(expected))
    assert target.paged is not None and recorder.tapes and compiled and all(compiled)
    assert "forward" not in vars(model.model.norm), "prompts run the model's own code"


def test_a_model_is_restored_if_its_forward_fails(traced):
    model = tiny("llama")
    before = replaced(model)
    with pytest.raises(ZeroDivisionError), fused(model):
        assert replaced(model) != before
        raise ZeroDivisionError
    assert replaced(model) == before


def test_replaced_forward_functions_are_not_changed(traced):
    model = tiny("llama")
    norm = model.model.norm
    norm.forward = own = lambda states: 2 * states
    with fused(model):
        assert norm.forward is own and "forward" in vars(model.model.layers[0].input_layernorm)
    assert norm.forward is own


def test_without_a_compiler_the_model_runs_its_own_code(monkeypatch, caplog):
    def fails(function):
        raise RuntimeError("Failed to find C compiler\nand a trace")

    monkeypatch.setattr(fusion.torch, "compile", fails)
    model = tiny("llama")
    before, expected = replaced(model), logits(model)
    for _ in range(2):
        with fused(model):
            assert replaced(model) == before and torch.equal(logits(model), expected)
    message = "cannot compile for cpu (Failed to find C compiler): using the model's own code"
    assert caplog.text.count(message) == 1
