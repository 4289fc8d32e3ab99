"""Quantized checkpoints: recognized by the configuration; on a CPU, texts are those of ``generate``."""

import importlib.util
import json

import numpy as np
import pytest
import torch
import transformers as hf
from decode_models import generate_now, prompts, tiny, write
from safetensors.torch import load_file, save_file

from dare_job.decode.model import quantized
from dare_job.decode.model.target import Target
from dare_job.errors import ModelError

SIZES = dict(hidden_size=64, intermediate_size=128, num_attention_heads=4)
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def _config(settings: dict):
    config = hf.LlamaConfig()
    config.quantization_config = settings
    return config


@pytest.mark.parametrize("settings, label, packages", [
    ({"quant_method": "awq", "bits": 4}, "AWQ", ["gptqmodel"]),
    ({"quant_method": "gptq", "bits": 4}, "GPTQ", ["gptqmodel", "optimum"]),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes", ["bitsandbytes"]),
    ({"load_in_8bit": True}, "bitsandbytes", ["bitsandbytes"]),
    ({"quant_method": "compressed-tensors"}, "compressed-tensors", ["compressed-tensors"]),
    ({"quant_method": "torchao"}, "torchao", ["torchao"]),
    ({"quant_method": "fbgemm_fp8"}, "FP8 of FBGEMM", ["fbgemm-gpu"])])
def test_a_missing_library_is_named(monkeypatch, settings, label, packages):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError) as caught:
        quantized.require(_config(settings), CPU, "folder")
    assert str(caught.value).startswith(f"folder is quantized ({label}), which needs {packages[0]}")
    assert f"pip install {' '.join(packages)} on the driver" in str(caught.value)


def test_what_no_cpu_can_run_is_refused(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    with pytest.raises(ModelError, match="FP8 of FBGEMM.*which no CPU can run: use a GPU"):
        quantized.require(_config({"quant_method": "fbgemm_fp8"}), CPU, "folder")


def test_an_unknown_method_is_refused():
    with pytest.raises(ModelError, match=r"folder is quantized \(new\) and cannot be loaded on cpu: Unknown"):
        quantized.require(_config({"quant_method": "new"}), CPU, "folder")


def test_what_check_says():
    assert quantized.describe(hf.LlamaConfig(), CPU) is None
    fp8 = _config({"quant_method": "fp8"})
    assert quantized.describe(fp8, CPU) == (
        "quantized (FP8); on a CPU it is dequantized at loading and needs the memory of unquantized weights")
    assert quantized.describe(fp8, GPU) == "quantized (FP8)"
    nested = hf.Gemma3Config(text_config={"quantization_config": {"quant_method": "awq"}})
    assert quantized.describe(nested, GPU) == "quantized (AWQ)"


def _fp8(folder):
    """Save a model with weights in eight bits; return the weights that they stand for."""
    tiny("llama", **SIZES).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    exact = dict(weights)
    for name in [name for name in weights if name.endswith("_proj.weight")]:
        scale = weights[name].abs().max() / 448
        weights[name] = (weights[name] / scale).to(torch.float8_e4m3fn)
        exact[name] = weights[name].float() * scale
        weights[f"{name}_scale_inv"] = scale.reshape(1, 1)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    _quantize(folder, {"quant_method": "fp8", "activation_scheme": "dynamic",
                       "weight_block_size": [128, 128]})
    return exact


def _quantize(folder, settings: dict):
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, "quantization_config": settings}))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fp8_on_a_cpu_is_dequantized(tmp_path, dtype):
    exact = _fp8(tmp_path)
    model = Target.load(tmp_path, dtype, "cpu").model
    assert {weight.dtype for weight in model.parameters()} == {getattr(torch, dtype)}
    assert not quantized.runs_quantized(model)
    if dtype == "float32":
        assert all(torch.allclose(weight, exact[name], atol=1e-6)
                   for name, weight in model.state_dict().items())


def test_mxfp4_on_a_cpu_is_dequantized(tmp_path):
    tiny("gpt_oss", hidden_size=64, intermediate_size=64).save_pretrained(tmp_path)
    weights, random = load_file(tmp_path / "model.safetensors"), torch.Generator().manual_seed(0)
    for name in [name for name in weights if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = weights.pop(name).shape
        shape = experts, outputs, inputs // 32
        weights[f"{name}_blocks"] = torch.randint(256, (*shape, 16), generator=random, dtype=torch.uint8)
        weights[f"{name}_scales"] = torch.randint(120, 124, shape, generator=random, dtype=torch.uint8)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    _quantize(tmp_path, {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]})
    model = Target.load(tmp_path, "float32", "cpu").model
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("kind", ["bitsandbytes-4", "bitsandbytes-8", "torchao", "torchao-activations"])
def test_quantized_weights_on_a_cpu(tmp_path, kind):
    """The engine uses no code of its own for quantized layers, and does not take rounding for a fault."""
    library = kind.partition("-")[0]
    pytest.importorskip(library, reason=f"needs the package {library}, which no extra installs")
    if library == "bitsandbytes":
        settings = hf.BitsAndBytesConfig(load_in_4bit=kind.endswith("4"), load_in_8bit=kind.endswith("8"))
    else:
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig

        settings = hf.TorchAoConfig((Int8DynamicActivationInt8WeightConfig if kind.endswith("activations")
                                     else Int8WeightOnlyConfig)())
    tiny("llama", **SIZES).save_pretrained(tmp_path / "whole")
    model = hf.AutoModelForCausalLM.from_pretrained(
        tmp_path / "whole", quantization_config=settings, dtype=torch.float32, device_map={"": "cpu"})
    model.save_pretrained(tmp_path / "quantized")
    target = Target.load(tmp_path / "quantized", "float32", "cpu")
    assert quantized.runs_quantized(target.model) and target.llama is None
    if kind in ("bitsandbytes-4", "torchao"):  # eight-bit activations round differently in each batch
        with target.as_transformers() as original:
            expected = [generate_now(original, prompt, max_new_tokens=12) for prompt in prompts()]
        found = write(target, prompts(), max_new_tokens=12)
        assert all(np.array_equal(found[row].token_ids, text) for row, text in enumerate(expected))
