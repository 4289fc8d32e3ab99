"""Unsupported models are rejected by name; wrong claims are detected at loading."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers as hf
from decode_models import (
    GROUPED,
    SIZES,
    VOCABULARY,
    assert_written,
    generate,
    generate_now,
    oracle,
    prompts,
    tiny,
    write,
)
from pydantic import ValidationError

from dare_job.config.settings import JobConfig
from dare_job.decode.model import support, tree_attention
from dare_job.decode.model.target import Target
from dare_job.decode.model.tree_attention import NAME
from dare_job.decode.request import Request
from dare_job.decode.sampling.engine import Sampling
from dare_job.decode.settings import Warp
from dare_job.errors import ConfigError, ModelError
from dare_job.generate import baseline, loading

REJECTED = {
    "MambaForCausalLM": (hf.MambaConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2), "recurrent"),
    "RwkvForCausalLM": (hf.RwkvConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2), "recurrent"),
    "JambaForCausalLM": (hf.JambaConfig(**GROUPED, num_experts=2, mamba_d_state=4), "recurrent"),
    "Qwen3NextForCausalLM": (
        hf.Qwen3NextConfig(**dict(GROUPED, num_hidden_layers=4), head_dim=8, num_experts=2,
                           num_experts_per_tok=1, moe_intermediate_size=16,
                           shared_expert_intermediate_size=16), "recurrent"),
    "GPTNeoForCausalLM": (hf.GPTNeoConfig(vocab_size=99, hidden_size=32, num_layers=2, num_heads=4,
                                          attention_types=[[["global", "local"], 1]]),
                          "attention_layers with 'local' of window_size 256"),
    "DogeForCausalLM": (hf.DogeConfig(**GROUPED, pad_token_id=0), "keep_window_size 2048"),
    "BigBirdForCausalLM": (hf.BigBirdConfig(**SIZES, is_decoder=True), "attention_type 'block_sparse'"),
    "BertLMHeadModel": (hf.BertConfig(**SIZES), "is_decoder is false"),
    "RoFormerForCausalLM": (hf.RoFormerConfig(**SIZES), "is_decoder is false"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_rejected_by_name(name):
    config, reason = REJECTED[name]
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(config)
    assert type(model).__name__ == name
    for weight in model.parameters():
        torch.nn.init.normal_(weight, 0, 0.2)
    with pytest.raises(ModelError, match=f"{name} is not supported.*{reason}"):
        Target(model)


@pytest.mark.parametrize("field", ["window_size", "attention_window", "local_window", "blocksparse_size"])
def test_an_unknown_window_is_rejected(field):
    model = tiny("llama")
    for idle in (None, 0, False):
        setattr(model.config, field, idle)
        Target(model, check=False)
    setattr(model.config, field, 4096)
    with pytest.raises(ModelError, match=f"LlamaForCausalLM is not supported: {field} 4096 limits"):
        Target(model, check=False)


@pytest.mark.parametrize(("value", "causal"), [(None, True), (False, True), ("vision", True), (True, False),
                                               ("all", False)])
def test_attention_that_is_bidirectional_for_images_alone_is_causal(value, causal):
    model = tiny("llama")
    model.config.use_bidirectional_attention = value
    if causal:
        Target(model, check=False)
    else:
        with pytest.raises(ModelError, match="not causal; use a model that is trained to continue texts"):
            Target(model, check=False)


def test_a_hybrid_is_recurrent_by_its_layers_not_by_its_class():
    model = tiny("granitemoehybrid")
    assert model._is_stateful
    plain = [generate(model, text) for text in prompts()]
    assert_written(write(Target(model), prompts(), oracle(plain)), plain)
    with pytest.raises(ModelError, match="recurrent state"):
        Target(tiny("granitemoehybrid", layer_types=["linear_attention", "full_attention"]))


def test_refusals_hold_no_internal_error(caplog):
    model = tiny("llama")
    model.forward = lambda *args, **kwargs: None.shape
    with pytest.raises(ModelError) as raised:
        Target(model)
    assert "NoneType" not in str(raised.value) and "no ordinary key-value cache" in str(raised.value)


def test_the_temperature_of_llama4_by_columns_ends_texts():
    """Its code scales queries by their column in the cache from ``floor_scale`` on."""
    model = tiny("llama4", floor_scale=48)
    plain = [generate(model, text, max_new_tokens=min(40, 48 - len(text))) for text in prompts()]
    target = Target(model)
    assert (target.traits.context, target.traits.max_length) == (47, 48) and not target.packed
    assert_written(write(target, prompts(), oracle(plain)), plain)
    free = Target(tiny("llama4", floor_scale=48, attn_temperature_tuning=False))
    assert free.traits.max_length is None and free.packed


def test_encoder_decoder_is_rejected():
    config = hf.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4)
    with pytest.raises(ModelError, match="T5ForConditionalGeneration is not supported: .*encoder-decoder"):
        Target(hf.T5ForConditionalGeneration(config))


def test_a_model_that_ignores_the_mask_is_detected():
    model = tiny("llama")
    forward = model.model.forward
    model.model.forward = lambda *args, attention_mask=None, **kwargs: forward(*args, **kwargs)
    with pytest.raises(ModelError, match="LlamaForCausalLM is not supported"):
        Target(model)


def test_a_wrong_window_is_detected(monkeypatch):
    monkeypatch.setattr(support, "_kinds", lambda config: ("full_attention",))
    with pytest.raises(ModelError, match="differ from a forward pass without one"):
        Target(tiny("mistral-window"))


def test_wrong_logits_of_a_single_token_is_detected(monkeypatch):
    right = tree_attention.tree_sdpa

    def wrong(module, query, key, value, attention_mask, **kwargs):
        return right(module, query, key[:, :, : key.shape[2] - (query.shape[2] == 1)],
                     value[:, :, : key.shape[2] - (query.shape[2] == 1)],
                     None if query.shape[2] == 1 else attention_mask, **kwargs)

    monkeypatch.setattr(tree_attention, "tree_sdpa", wrong)
    with pytest.raises(ModelError, match="differ from a forward pass without one"):
        Target(tiny("llama"))


@pytest.mark.parametrize("name", ["mistral", "mistral-window"])
def test_a_prompt_without_a_mask_is_checked(monkeypatch, name):
    right = tree_attention.tree_sdpa

    def blind(module, query, key, value, attention_mask, **kwargs):
        if attention_mask is None:  # a model with its own bias would not be causal
            attention_mask = query.new_zeros((len(query), 1, query.shape[2], key.shape[2]))
        return right(module, query, key, value, attention_mask, **kwargs)

    monkeypatch.setattr(tree_attention, "tree_sdpa", blind)
    with pytest.raises(ModelError, match="differ from a forward pass without one"):
        Target(tiny(name))


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("queries", [1, 3])
def test_masks_of_each_head(groups, queries):
    rng = torch.Generator().manual_seed(0)
    query, key, value, mask = (torch.randn(shape, generator=rng) for shape in (
        (2, 4, queries, 8), (2, groups, 7, 8), (2, groups, 7, 8), (2, 4, queries, 7)))
    ours, _ = tree_attention.tree_sdpa(None, query, key, value, mask)
    repeated = [x.repeat_interleave(4 // groups, 1) for x in (key, value)]
    plain = torch.nn.functional.scaled_dot_product_attention(query, *repeated, attn_mask=mask)
    assert torch.allclose(ours, plain.transpose(1, 2), atol=1e-6)


@pytest.mark.parametrize("scale", [0.02, 0.25])
def test_an_encoder_without_a_switch_is_detected(monkeypatch, scale):
    """Small weights make attention nearly uniform and its effect on logits tiny."""
    monkeypatch.setattr(support, "_has_switch", lambda model: False)
    torch.manual_seed(0)
    model = hf.BertLMHeadModel(hf.BertConfig(**SIZES))
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, 0, scale)
    with pytest.raises(ModelError, match="not causal"):
        Target(model)
    Target(hf.BertLMHeadModel(hf.BertConfig(**SIZES, is_decoder=True)))


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize(("name", "own"), [
    ("llama", None), ("llama", "eager"), ("gpt_oss", None), ("gemma2", None), ("gemma2", "eager")])
def test_attention_is_replaced_only_if_equal(name, own):
    """None: what transformers chooses, which for Gemma 2 was torch's attention before 5.21."""
    model = tiny(name)
    if own is not None:
        model.set_attn_implementation(own)
    own = model.config._attn_implementation
    plain = [generate(model, text) for text in prompts()]
    target = Target(model)
    assert target.fused == (own == "sdpa")
    running = NAME if target.fused else own
    assert model.config._attn_implementation == running
    with target.as_transformers():
        assert model.config._attn_implementation == own
    assert model.config._attn_implementation == running
    assert_written(write(target, prompts(), oracle(plain)), plain)


def test_attention_of_llama_is_replaced():
    assert Target(tiny("llama")).fused


def test_an_ignored_softcap_is_logged(caplog):
    model = tiny("llama")
    tree_attention.enable(model)
    assert not caplog.records
    model = tiny("llama")
    model.config.attn_logit_softcapping = 3.0
    tree_attention.enable(model)
    assert "LlamaForCausalLM has attn_logit_softcapping 3, which generate" in caplog.text


@pytest.mark.parametrize("name", ["llama", "gpt_oss", *(
    pytest.param(name, marks=pytest.mark.release) for name in ("mistral-window", "gemma3"))])
def test_a_wrapped_model_can_be_wrapped_again(name):
    """The comparison uses the original attention, which the first target replaced."""
    model, texts = tiny(name), prompts((5, 17, 30))
    expected = [generate(model, text) for text in texts]
    first, again = Target(model), Target(model)
    assert (again.fused, again.packed) == (first.fused, first.packed) == (name != "gpt_oss",) * 2
    for target in (again, first):
        results = write(target, texts, oracle(expected))
        assert all(np.array_equal(results[row].token_ids, text) for row, text in enumerate(expected))
        with target.as_transformers():
            assert model.config._attn_implementation != NAME
            assert all(np.array_equal(generate_now(model, prompt), text)
                       for prompt, text in zip(texts, expected, strict=True))


def test_bfloat16_differs_from_generate_only_at_near_ties():
    model = tiny("llama", dtype=torch.bfloat16)
    target, texts = Target(model), prompts()
    with target.as_transformers():
        expected = [generate(model, text) for text in texts]
    results = write(target, texts, oracle(expected))
    for row, text in enumerate(expected):
        ours = results[row].token_ids
        place = next((i for i, (a, b) in enumerate(zip(text, ours, strict=True)) if a != b), None)
        if place is None:
            continue
        ids = torch.from_numpy(np.concatenate((texts[row], text[:place])).astype(np.int64))[None]
        with target.as_transformers(), torch.inference_mode():
            logits = model(input_ids=ids, use_cache=False).logits[0, -1].float()
        assert abs(logits[text[place]] - logits[ours[place]]) <= 0.03 * logits.abs().max()


def test_loading_errors_name_what_is_missing(tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        Target.load(tmp_path / "nothing")
    with pytest.raises(ModelError, match="has no config.json"):
        Target.load(tmp_path)
    tiny("llama").save_pretrained(tmp_path / "whole", max_shard_size="20KB")
    shards = sorted((tmp_path / "whole").glob("*.safetensors"))
    assert len(shards) > 1
    assert Target.load(tmp_path / "whole").vocabulary == VOCABULARY
    shards[1].unlink()
    with pytest.raises(ModelError, match=shards[1].name):
        Target.load(tmp_path / "whole")
    hf.ViTConfig().save_pretrained(tmp_path / "vision")
    with pytest.raises(ModelError, match="no causal language model|not a causal language model"):
        Target.load(tmp_path / "vision")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="model.device"):
            Target.load(tmp_path / "whole", device="cuda")


def test_mode_sample_uses_its_settings(monkeypatch):
    given = {"decode": {"mode": "sample"},
             "sample": {"temperature": 0.5, "top_k": 3, "min_p": 0.1}, "seed": 4}
    target = Target(tiny("llama"))
    loaded = SimpleNamespace(target=target, numbers=None, learned={})
    monkeypatch.setattr(loading, "load_task_model", lambda task: loaded)
    task = SimpleNamespace(config=JobConfig.model_validate(given), threads=1, model="llama")
    drafted, plain = loading.make_engine(task), loading.make_engine(task, mode="autoregressive")
    assert drafted.sampling == plain.sampling == Sampling(Warp(0.5, 3, None, 0.1), 4)
    assert drafted.drafter and drafted.draft_budget is None and plain.drafter is None
    asked, generate = [], target.model.generate
    monkeypatch.setattr(target.model, "generate", lambda *a, **b: asked.append(b) or generate(*a, **b))
    request = Request(0, np.array([5, 6], np.int32), max_new_tokens=4)
    assert baseline.count_generated_tokens([request], task) > 0
    assert asked[0]["do_sample"] and (asked[0]["temperature"], asked[0]["top_k"], asked[0]["min_p"]) == (
        0.5, 3, 0.1) and "repetition_penalty" not in asked[0]  # taken from the model's config
    for changed in ({"rule": "relaxed"}, {"target": "cosine=0.98", "curve": "c.json"}):
        with pytest.raises(ValidationError, match="model's distribution, and relaxed rules change it; leave"):
            JobConfig.model_validate(given | {"verify": changed})


def test_nan_weights_are_reported_as_damage_not_as_architecture(tmp_path):
    model = tiny("llama")
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    model.save_pretrained(tmp_path / "damaged")
    with pytest.raises(ModelError, match="damaged: Llama.* gives NaN logits"):
        Target.load(tmp_path / "damaged", device="cpu")


def test_a_token_with_logits_costs_more_by_the_weights_of_the_head():
    model = tiny("llama")
    head = model.lm_head.weight.numel()
    layers = sum(weight.numel() for weight in model.model.parameters()) - head  # the embedding has its size
    assert support.traits(model).logit_cost == 1 + head / layers
    assert support.traits(tiny("llama", tie_word_embeddings=True)).logit_cost == 1 + head / layers
    model.is_quantized = True  # its weights are packed, or no parameters
    assert support.traits(model).logit_cost == 1


def test_where_all_tokens_of_a_prompt_have_logits_one_costs_no_more():
    model = tiny("llama")
    forward = model.forward
    model.forward = lambda input_ids, position_ids, attention_mask, past_key_values, use_cache: forward(
        input_ids, position_ids, attention_mask, past_key_values, use_cache)
    assert support.traits(model).logit_cost == 1
