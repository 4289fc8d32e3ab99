"""A model in a GGUF file becomes a folder with the same weights, tokens and chat template."""

import json

import gguf
import numpy as np
import pytest
import torch
from decode_models import tiny
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from dare_job.errors import ModelError
from dare_job.models import embedded_path
from dare_job.models.files import resolve

TEMPLATE = "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}{% endfor %}"
PROMPT = "[user]Which films does this person like?"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dare-job" / "gguf"


@pytest.fixture
def original():
    """A small Llama with grouped heads, and the embedded model's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(embedded_path())
    return tiny("llama", vocab_size=len(tokenizer)), tokenizer


@pytest.fixture
def file(original, tmp_path):
    return _written(*original, tmp_path / "small.Q8.gguf")


def _written(model, tokenizer, path, left_out: str = "", kind=gguf.GGMLQuantizationType.F32):
    """Write a model to a GGUF file, without one of its tensors; its matrices in blocks of this kind."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.CONTROL if word in tokenizer.all_special_tokens
                            else gguf.TokenType.NORMAL for word in words])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        place = names.get_name(name, try_suffixes=(".weight",))
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        for part, count in heads.items():
            if f".{part}." in place:  # the order of llama.cpp's rotary embedding
                weight = weight.reshape(count, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
        array = weight.float().numpy().astype(np.float32)
        if array.ndim == 2 and array.shape[1] % 32 == 0 and place != left_out:
            writer.add_tensor(place, gguf.quants.quantize(array, kind), raw_dtype=kind)
        elif place != left_out:
            writer.add_tensor(place, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_weights_tokens_and_template_are_those_of_the_file(original, file, cache):
    folder = resolve(str(file))
    assert folder.parent == cache and folder.name.startswith("small.Q8-")
    model, tokenizer = original
    converted, read = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    text = read.apply_chat_template([{"role": "user", "content": PROMPT[6:]}], tokenize=False)
    assert text == PROMPT
    ids = read(PROMPT, add_special_tokens=False)["input_ids"]
    assert ids == tokenizer(PROMPT, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits, expected = (network(torch.tensor([ids])).logits for network in (converted, model))
    assert torch.allclose(logits, expected, atol=1e-5)
    stamp = (folder / "config.json").stat().st_mtime_ns
    assert resolve(str(file)) == folder and (folder / "config.json").stat().st_mtime_ns == stamp


def test_quantized_weights_are_dequantized_exactly(original, tmp_path):
    model, kind = original[0], gguf.GGMLQuantizationType.Q8_0
    file = _written(*original, tmp_path / "small.gguf", kind=kind)
    place = "model.layers.0.mlp.up_proj.weight"
    blocks = gguf.quants.quantize(model.state_dict()[place].numpy(), kind)
    converted = AutoModelForCausalLM.from_pretrained(resolve(str(file))).state_dict()[place].numpy()
    assert np.array_equal(converted, gguf.quants.dequantize(blocks, kind))
    assert not np.array_equal(converted, model.state_dict()[place].numpy())


def test_transformers_has_no_kernel_for_quantized_blocks_here(original, tmp_path):
    """If this fails, files need not be dequantized any more (docs/decisions, 72)."""
    file = _written(*original, tmp_path / "small.gguf", kind=gguf.GGMLQuantizationType.Q8_0)
    kept = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32,
                                                quantization_config=GgufConfig(dequantize=False))
    assert {weight.dtype for weight in kept.parameters()} == {torch.float32}


def test_a_file_without_one_of_its_weights_is_refused(original, tmp_path, cache):
    """transformers would initialize the weight randomly, and the folder would hold it like the others."""
    file = _written(*original, tmp_path / "short.gguf", left_out="blk.1.attn_q.weight")
    with pytest.raises(ModelError, match=r"short\.gguf lacks .*: model\.layers\.1\.self_attn\.q_proj"):
        resolve(str(file))
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_a_file_that_is_no_gguf_is_named(tmp_path, cache):
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF but no more")
    with pytest.raises(ModelError, match=r"transformers cannot read .*damaged\.gguf as a GGUF file"):
        resolve(str(damaged))
    assert not [path for path in cache.iterdir() if path.is_dir()]
