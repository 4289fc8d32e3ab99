"""PEFT adapters: joined with their base model, merged at loading, in the fingerprint, or refused by name."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
import transformers as hf
from decode_models import VOCABULARY, assert_written, generate_now, oracle, prompts, tiny, write
from safetensors.torch import load_file, save_file

from dare_job.bench.sweep import models
from dare_job.decode.model import loading
from dare_job.decode.model.target import Target
from dare_job.decode.model.undrafted import any_target
from dare_job.errors import ModelError
from dare_job.models.files import files, fingerprint, resolve, tokenizer_hash

peft = pytest.importorskip("peft", reason="adapters need the package peft (extra peft)")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dare-job" / "adapters"


@pytest.fixture
def base(tmp_path):
    tiny("llama").save_pretrained(tmp_path / "base")
    (tmp_path / "base" / "tokenizer.json").write_text('{"version": "1.0"}')
    return tmp_path / "base"


def _adapted(base, **options):
    """The base model with a random adapter, not merged."""
    config = peft.LoraConfig(**{"r": 4, "target_modules": ["q_proj", "v_proj", "down_proj"],
                                "task_type": "CAUSAL_LM", "init_lora_weights": False, **options})
    torch.manual_seed(3)
    model = peft.get_peft_model(tiny("llama"), config).eval()
    model.peft_config["default"].base_model_name_or_path = str(base)
    return model


@pytest.fixture
def adapter(base, tmp_path):
    _adapted(base).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_texts_are_those_of_the_adapter_beside_its_base_model(base, adapter):
    expected = [generate_now(_adapted(base), prompt) for prompt in prompts()]
    plain = [generate_now(tiny("llama"), prompt) for prompt in prompts()]
    assert any(not np.array_equal(*pair) for pair in zip(expected, plain, strict=True))
    target = Target.load(resolve(str(adapter)))
    assert_written(write(target, prompts()), expected)
    assert type(target.model).__name__ == "LlamaForCausalLM" and target.llama is not None  # no layers of peft


def test_base_and_adapter_in_one_folder_give_the_same_texts(base, adapter, tmp_path):
    apart = loading.load(resolve(str(adapter)), "float32", False).state_dict()
    whole = tmp_path / "whole"
    shutil.copytree(base, whole)
    for file in adapter.iterdir():
        shutil.copy(file, whole)
    assert resolve(str(whole)) == whole
    merged = loading.load(whole, "float32", False)
    assert all(torch.equal(weight, apart[name]) for name, weight in merged.state_dict().items())
    assert merged.name_or_path == str(whole)


def test_the_fingerprint_knows_base_and_adapter(base, adapter, cache):
    folder = resolve(str(adapter))
    assert folder.parent == cache and resolve(str(adapter)) == folder
    names = {file.name for file in files(folder)}
    assert {"model.safetensors", "adapter_model.safetensors", "adapter_config.json", "config.json",
            "tokenizer.json"} <= names
    before = fingerprint(folder)
    for file in (adapter / "adapter_model.safetensors", base / "model.safetensors"):
        weights = load_file(file)
        save_file({name: 2 * weight for name, weight in weights.items()}, file, {"format": "pt"})
        assert fingerprint(resolve(str(adapter))) != before
        before = fingerprint(folder)
    assert before != fingerprint(base)


def test_the_tokenizer_of_the_adapter_replaces_that_of_the_base_model(base, adapter):
    shared = tokenizer_hash(resolve(str(adapter)))
    assert shared == tokenizer_hash(base)
    (base / "added_tokens.json").write_text("{}")
    (adapter / "chat_template.jinja").write_text("{{ messages[0].content }}")
    folder = resolve(str(adapter))
    assert (folder / "chat_template.jinja").exists() and (folder / "added_tokens.json").exists()
    (adapter / "tokenizer.json").write_text('{"version": "2.0"}')
    folder = resolve(str(adapter))
    assert "2.0" in (folder / "tokenizer.json").read_text() and not (folder / "added_tokens.json").exists()


def test_layers_that_an_adapter_replaces(base, tmp_path):
    model = _adapted(base, modules_to_save=["lm_head"])
    with torch.no_grad():
        model.base_model.model.lm_head.modules_to_save["default"].weight.mul_(-1)
    model.save_pretrained(tmp_path / "adapter")
    merged = loading.load(resolve(str(tmp_path / "adapter")), "float32", False)
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        assert torch.allclose(merged(ids).logits, model(ids).logits, atol=1e-4)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("kind", ["ForConditionalGeneration", "ForCausalLM"])
@pytest.mark.parametrize("modules", [["q_proj", "v_proj"], r"model\.(language_model\.)?layers.*_proj"])
def test_an_adapter_is_applied_to_the_class_that_it_was_trained_on(tmp_path, kind, modules):
    """Without an adapter, the class for texts alone is loaded; its modules have other names."""
    torch.manual_seed(3)
    whole = hf.Qwen3_5ForConditionalGeneration(models.config("qwen3_5")).eval()
    whole.save_pretrained(tmp_path)
    trained = getattr(hf, f"Qwen3_5{kind}").from_pretrained(tmp_path, dtype=torch.float32).eval()
    adapted = peft.get_peft_model(trained, peft.LoraConfig(
        r=4, target_modules=modules, task_type="CAUSAL_LM", init_lora_weights=False)).eval()
    ids = torch.arange(3, 20)[None]
    with torch.inference_mode():
        assert not torch.allclose(adapted(input_ids=ids).logits, whole(input_ids=ids).logits, atol=1e-3)
    adapted.save_pretrained(tmp_path)
    texts, target = prompts((5, 17)), Target.load(tmp_path, make=any_target)
    assert type(target.model).__name__ == f"Qwen3_5{kind}"
    with target.as_transformers() as model, torch.inference_mode():
        assert torch.allclose(model(input_ids=ids).logits, adapted(input_ids=ids).logits, atol=1e-4)
        plain = [generate_now(model, text) for text in texts]
    assert target.drafts == "chain"
    assert_written(write(target, texts, oracle(plain)), plain)


@pytest.mark.parametrize("options", [{"modules_to_save": ["embed_tokens", "lm_head"]},
                                     {"target_modules": ["q_proj", "embed_tokens", "lm_head"]}])
@pytest.mark.parametrize("file", ["adapter_model.safetensors", "adapter_model.bin"])
def test_added_tokens_are_refused_with_the_way_out(base, tmp_path, options, file):
    model = tiny("llama")
    model.resize_token_embeddings(VOCABULARY + 5)
    config = peft.LoraConfig(**{"r": 4, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM",
                                "init_lora_weights": False, **options})
    adapted = peft.get_peft_model(model, config).eval()
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    adapted.save_pretrained(tmp_path / "adapter", safe_serialization=file.endswith("safetensors"))
    assert (tmp_path / "adapter" / file).is_file()
    with pytest.raises(ModelError, match=rf"vocabulary of {VOCABULARY + 5} .* has {VOCABULARY}: .*"
                                         rf"resize_token_embeddings\({VOCABULARY + 5}\)"):
        loading.load(resolve(str(tmp_path / "adapter")), "float32", False)
    again = tiny("llama")  # what the message says
    again.resize_token_embeddings(VOCABULARY + 5)
    peft.PeftModel.from_pretrained(again, tmp_path / "adapter").merge_and_unload().save_pretrained(
        tmp_path / "merged")
    merged, ids = loading.load(tmp_path / "merged", "float32", False), torch.arange(3, 20)[None]
    with torch.inference_mode():
        assert torch.allclose(merged(ids).logits, adapted(ids).logits, atol=1e-4)


@pytest.mark.parametrize("changes, message", [
    ({"base_model_name_or_path": None}, "names no base model"),
    ({"base_model_name_or_path": "/nowhere"}, "is an adapter of /nowhere: .*does not exist; set "
     "base_model_name_or_path"),
    ({"peft_type": "PROMPT_TUNING"}, "type PROMPT_TUNING, which cannot be merged"),
    ({"task_type": "SEQ_CLS"}, "for the task SEQ_CLS"),
    ({"r": 3}, "does not fit LlamaForCausalLM"),
    ({"target_modules": ["q_proj", "k_proj", "v_proj", "down_proj"]}, "lacks weights"),
    ({"target_modules": ["q_proj"]}, "has weights that the model does not use"),
    ({"target_modules": ["nothing"]}, "does not fit LlamaForCausalLM")])
def test_adapters_that_do_not_fit_are_refused(adapter, changes, message):
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(ModelError, match=message):
        loading.load(resolve(str(adapter)), "float32", False)


def test_an_adapter_of_an_adapter_is_refused(base, adapter, tmp_path):
    second = tmp_path / "second"
    shutil.copytree(adapter, second)
    shutil.copy(adapter / "adapter_config.json", base)
    with pytest.raises(ModelError, match="is an adapter itself"):
        resolve(str(second))


def test_without_peft_an_adapter_is_refused_and_never_ignored(base, adapter, monkeypatch):
    for file in adapter.iterdir():
        shutil.copy(file, base)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModelError, match="needs the package peft: run `make install EXTRAS=peft`"):
        Target.load(resolve(str(base)))


def test_an_adapter_without_weights_is_named(adapter):
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match="holds no weights"):
        resolve(str(adapter))


def test_pickled_weights_beside_others(base, adapter):
    """The adapter's kind of file says nothing about that of the base model."""
    torch.save(load_file(adapter / "adapter_model.safetensors"), adapter / "adapter_model.bin")
    assert not any(file.suffix == ".bin" for file in files(resolve(str(adapter))))
    (adapter / "adapter_model.safetensors").unlink()
    names = [file.name for file in files(resolve(str(adapter)))]
    assert "adapter_model.bin" in names and "model.safetensors" in names
