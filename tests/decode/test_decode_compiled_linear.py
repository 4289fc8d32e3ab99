"""Compiled linear layers: the results of torch's functions, whatever the number of rows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from numba import types
from torch.nn.functional import linear, rms_norm, silu

from dare_job.decode.model import compiled_attention, compiled_linear, llama_forward, vectors
from dare_job.decode.model.compiled_linear import CompiledLinear
from pools.jit import _digest

ROWS = (1, 2, 12, 13, 25)
CASES = {"plain": {}, "norm": {"norm": True}, "gated": {"gated": True}, "added": {"add": True},
         "gated, norm": {"gated": True, "norm": True}, "no bias": {"bias": False}}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("size", [(96, 64), (100, 24), (14, 300)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("case", CASES)
def test_a_layer_computes_what_torchs_functions_do(case, dtype, tolerance, size):
    options = {"norm": False, "gated": False, "add": False, "bias": True} | CASES[case]
    width, inner = size
    weight, scale = (torch.randn(width, inner) / inner**0.5).to(dtype), torch.rand(inner).to(dtype)
    bias = torch.randn(width).to(dtype) if options["bias"] else None
    norm = (scale.float().numpy(), 1e-5) if options["norm"] else None
    layer = CompiledLinear(weight, bias, options["gated"], norm)
    assert torch.equal(layer.to_dense(), weight)
    if not options["gated"]:
        assert torch.equal(layer.features(torch.tensor([0, width - 1, 3])), weight[[0, -1, 3]])
    values = torch.randn(max(ROWS), inner).to(dtype)
    add = torch.randn(max(ROWS), width).to(dtype) if options["add"] else None
    expected = linear(rms_norm(values, (inner,), scale, 1e-5) if norm else values, weight, bias)
    if options["gated"]:
        gate, gated = expected.chunk(2, -1)
        expected = silu(gate) * gated
    expected = expected if add is None else expected + add
    whole = layer(values, add)
    assert whole.dtype == dtype and torch.allclose(whole, expected, atol=tolerance, rtol=tolerance)
    wide = CompiledLinear(weight, bias, options["gated"], norm, torch.float32)
    assert torch.equal(wide(values), layer(values).float())
    for rows in ROWS:
        assert torch.equal(layer(values[:rows], None if add is None else add[:rows]), whole[:rows])


OTHERS = {torch.float32: torch.bfloat16, torch.bfloat16: torch.float32}


@pytest.mark.parametrize("options", [{}, {"gated": True}])
@pytest.mark.parametrize(("dtype", "other"), OTHERS.items())
def test_what_is_added_may_have_another_type(dtype, other, options):
    layer = CompiledLinear(torch.randn(128, 24).to(dtype), **options)
    values = torch.randn(3, 24).to(dtype)
    for add in (torch.randn(3, layer.width).to(dtype), torch.randn(3, layer.width).to(other)):
        assert torch.equal(layer(values, add), layer(values) + add)


@pytest.mark.parametrize(("dtype", "other"), OTHERS.items())
def test_values_of_another_type_or_size_are_refused_as_by_torch(dtype, other):
    layer = CompiledLinear(torch.ones(64, 24, dtype=dtype))
    for values in (torch.ones(2, 24, dtype=other), torch.ones(2, 25, dtype=dtype)):
        with pytest.raises(RuntimeError, match="weights"):
            layer(values)


def test_rows_beyond_a_part_and_values_with_strides():
    weight = torch.randn(64, 2000)
    layer, values = CompiledLinear(weight), torch.randn(2000, 150).T  # a part has 48 rows
    assert not values.is_contiguous()
    assert torch.allclose(layer(values), linear(values, weight), atol=1e-3)


def test_the_gate_is_exact_for_large_and_small_values():
    layer = CompiledLinear(torch.tensor([[1.0], [0.0]]), torch.tensor([0.0, 1.0]), gated=True)
    values = torch.cat((torch.linspace(-120, 120, 10001), torch.tensor([0.0, 1e-30, -1e-30, 1e30, -1e30])))
    expected = silu(values.double())
    assert torch.allclose(layer(values[:, None])[:, 0].double(), expected, rtol=1e-6, atol=1e-33)


def test_bfloat16_rounds_to_the_nearest_even_number():
    weight = torch.tensor([[1.0, 2.0**-9]])
    values = torch.tensor([[1.0, 1.0], [1.0, 2.0], [1.0 + 2.0**-7, 2.0], [1.0, 3.0]])
    layer = CompiledLinear(torch.cat((weight, torch.zeros(1, 2))).bfloat16())
    assert layer(values.bfloat16())[:, 0].tolist() == (values @ weight.T).bfloat16()[:, 0].tolist()


@pytest.mark.parametrize(("threads", "amx", "dtype", "fast"), [
    (1, False, torch.bfloat16, True), (1, True, torch.bfloat16, False), (1, True, torch.float32, True),
    (2, False, torch.float32, False)])
def test_it_is_used_on_one_thread_without_matrix_instructions(threads, amx, dtype, fast, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(vectors, "_FEATURES", {"avx2": True, "fma": True})
    assert vectors.is_fast(dtype) == fast
    monkeypatch.setattr(vectors, "_FEATURES", {"avx2": True})
    assert not vectors.is_fast(dtype)


def test_code_in_the_cache_is_not_used_after_a_change_of_the_vectors():
    for function in (compiled_linear._multiply, compiled_attention._compile(types.float32),
                     llama_forward._normalize, llama_forward._rotate):
        own = Path(function.py_func.__code__.co_filename)
        assert set(function.sources) == {own, Path(vectors.__file__)}
        assert function._cache._cache_file._source_stamp == _digest(function.sources)


AVX2 = """
import numpy as np, torch
from torch.nn.functional import linear, scaled_dot_product_attention
from dare_job.decode.model import compiled_attention, compiled_linear, vectors
torch.set_num_threads(1)
assert vectors.LANES == 8 and vectors.is_fast(torch.float32)
for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
    weight, values = (torch.randn(100, 64) / 8).to(dtype), torch.randn(15, 64).to(dtype)
    result = compiled_linear.CompiledLinear(weight)(values)
    assert torch.allclose(result, linear(values, weight), atol=tolerance, rtol=tolerance)
    query, (keys, entries) = torch.randn(2, 6, 32).to(dtype), torch.randn(2, 2, 3, 21, 32).to(dtype)
    expected = scaled_dot_product_attention(query[:, :, None], keys, entries, enable_gqa=True)[:, :, 0]
    result = compiled_attention.attend(query, keys, entries, None, None, np.arange(3))
    assert torch.allclose(result, expected, atol=tolerance, rtol=tolerance)
code = "".join(compiled_linear._multiply.inspect_asm().values())
assert "ymm" in code and "zmm" not in code
"""


@pytest.mark.slow
@pytest.mark.skipif(not vectors._FEATURES.get("avx2"), reason="a processor with AVX2")
def test_processors_without_avx512_have_shorter_vectors(tmp_path):
    environment = os.environ | {"NUMBA_CPU_NAME": "haswell", "NUMBA_CACHE_DIR": str(tmp_path),
                                "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+bmi,+bmi2"}
    done = subprocess.run([sys.executable, "-c", AVX2], env=environment, capture_output=True, text=True)
    assert not done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("setting", [{"NUMBA_CPU_NAME": "generic"}, {"NUMBA_ENABLE_AVX": "0"}])
def test_it_is_not_used_where_numba_compiles_without_vector_instructions(setting):
    code = ("import torch; from dare_job.decode.model import vectors; torch.set_num_threads(1); "
            "assert vectors.LANES == 8 and not vectors.is_fast(torch.float32)")
    environment = os.environ | setting
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert not done.returncode, done.stderr
