"""A model loads completely and as saved, or not at all."""

import json

import pytest
import torch
import transformers as hf
from decode_models import GROUPED, assert_written, generate_now, oracle, prompts, tiny, write
from safetensors.torch import load_file, save_file

from dare_job.bench.sweep import models
from dare_job.decode.model.target import Target
from dare_job.errors import ModelError


@pytest.fixture
def folder(tmp_path):
    tiny("llama").save_pretrained(tmp_path)
    return tmp_path


def _edit(folder, change) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("name", ["mistral3", "qwen2_5_vl"])
def test_image_models_decode_text(tmp_path, name):
    """Their configurations are unknown to ``AutoModelForCausalLM``."""
    models.tiny(name).save_pretrained(tmp_path)
    target, texts = Target.load(tmp_path, device="cpu"), prompts((5, 17))
    assert type(target.model).__name__.endswith("ForConditionalGeneration")
    with target.as_transformers() as model:
        plain = [generate_now(model, text) for text in texts]
    assert_written(write(target, texts, oracle(plain)), plain)


@pytest.mark.parametrize("name, kind", [("llama4", "Llama4"), ("dots3_note", "Dots3Note")])
def test_a_model_of_texts_leaves_out_the_weights_that_read_images(tmp_path, name, kind):
    """Published weights have both; ``AutoModelForCausalLM`` has a class for the texts alone.

    Files of dots3.note name the modules ``vision_encoder`` and ``audio_encoder``, which the class does not.
    """
    whole = getattr(hf, f"{kind}ForConditionalGeneration")(models.config(name)).eval()
    whole.save_pretrained(tmp_path)
    target, ids = Target.load(tmp_path, device="cpu"), torch.arange(2, 12)[None]
    assert type(target.model).__name__ == f"{kind}ForCausalLM"
    with target.as_transformers() as model, torch.inference_mode():
        assert torch.equal(model(input_ids=ids).logits, whole(input_ids=ids).logits)
    _edit(tmp_path, lambda weights: weights.update({"value_head.weight": torch.ones(1)}))
    with pytest.raises(ModelError, match=f"{kind}ForCausalLM does not use: value_head.weight. "):
        Target.load(tmp_path)


def test_weights_beside_those_of_the_text_model_are_not_taken_for_images(tmp_path):
    hf.Llama4ForConditionalGeneration(models.config("llama4")).save_pretrained(tmp_path)
    added = "language_model.model.layers.0.self_attn.q_proj.lora_A.weight"
    _edit(tmp_path, lambda weights: weights.update({added: torch.ones(1)}))
    with pytest.raises(ModelError, match="does not use: .*lora_A"):
        Target.load(tmp_path)


def test_a_missing_weight_is_named(folder):
    _edit(folder, lambda weights: weights.pop("lm_head.weight"))
    with pytest.raises(ModelError, match=f"{folder} lacks weights .*: lm_head.weight$"):
        Target.load(folder)


def test_many_missing_weights_are_counted(folder):
    _edit(folder, lambda weights: [weights.pop(name) for name in list(weights) if "layers.1" in name])
    with pytest.raises(ModelError, match="layers.1.* and 6 more$"):
        Target.load(folder)


def test_tied_weights_are_not_missing(tmp_path):
    tiny("llama", tie_word_embeddings=True).save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    Target.load(tmp_path)


def test_a_classifier_is_rejected(tmp_path):
    config = hf.LlamaConfig(**GROUPED, tie_word_embeddings=False)
    hf.LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="lm_head.weight"):
        Target.load(tmp_path)


def test_a_weight_with_a_wrong_shape_is_named(folder):
    name = "model.norm.weight"
    _edit(folder, lambda weights: weights.update({name: weights[name][:-1].clone()}))
    with pytest.raises(ModelError, match=r"shapes differ.*model.norm.weight is \(31,\), not \(32,\)"):
        Target.load(folder)


@pytest.mark.parametrize("name, refused", [
    ("model.layers.0.self_attn.q_proj.lora_A.weight", True), ("v_head.summary.weight", True),
    ("model.layers.0.self_attn.k_scale", False), ("model.layers.0.self_attn.rotary_emb.inv_freq", False)])
def test_a_weight_that_the_model_does_not_use_is_named(folder, name, refused):
    _edit(folder, lambda weights: weights.update({name: torch.ones(1)}))
    if not refused:
        Target.load(folder)
        return
    with pytest.raises(ModelError, match=f"weights that LlamaForCausalLM does not use: {name}"):
        Target.load(folder)


def test_weights_that_transformers_lists_as_harmless_are_not_named(tmp_path):
    tiny("gpt2").save_pretrained(tmp_path)
    _edit(tmp_path, lambda weights: weights.update({"transformer.h.0.attn.bias": torch.ones(1)}))
    assert "transformer.h.0.attn.bias" not in Target.load(tmp_path).model.state_dict()


def test_sharded_weights(tmp_path):
    model = tiny("llama")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    loaded = Target.load(tmp_path).model.state_dict()
    assert all(torch.equal(weight, loaded[name]) for name, weight in model.state_dict().items())


def test_weights_are_loaded_onto_the_device(folder, monkeypatch):
    """Not onto the CPU first, where a large model may have no room."""
    load, seen = hf.AutoModelForCausalLM.from_pretrained, {}
    monkeypatch.setattr(hf.AutoModelForCausalLM, "from_pretrained",
                        lambda path, **options: seen.update(options) or load(path, **options))
    Target.load(folder, device="cpu")
    assert seen["device_map"] == {"": torch.device("cpu")}


def test_out_of_memory_of_the_device_is_no_fault_of_the_model(folder, monkeypatch):
    def fail(path, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(hf.AutoModelForCausalLM, "from_pretrained", fail)
    with pytest.raises(torch.OutOfMemoryError):
        Target.load(folder)


@pytest.mark.parametrize("length", [0, 4, 200, -100])
def test_a_damaged_weight_file_is_named(folder, length):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(ModelError, match=f"{file} is damaged"):
        Target.load(folder)


@pytest.mark.parametrize("text", ['{"repetition_penalty": 1.', "", "[1]"])
def test_a_broken_generation_config_is_named(folder, text):
    file = folder / "generation_config.json"
    file.write_text(text)
    with pytest.raises(ModelError, match=f"{file} .*correct or remove it"):
        Target.load(folder)
    file.unlink()
    Target.load(folder)


def test_a_field_of_the_wrong_type_gives_one_line(folder):
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, "num_hidden_layers": "two"}))
    with pytest.raises(ModelError, match=f"cannot load model {folder}"):
        Target.load(folder)
