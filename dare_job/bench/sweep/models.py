"""Tiny random models: one of each architecture that transformers generates text with, and variants."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from dare_job.bench.sweep.shrink import shrink

FULL, SLIDING, RECURRENT = "full_attention", "sliding_attention", "linear_attention"
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_MIXED = {"num_hidden_layers": 3, "layer_types": [SLIDING, FULL, SLIDING], "sliding_window": 16}
_DECODER = {"is_decoder": True}
_ENCODERS = ("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie",
             "megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer",
             "xlm-roberta", "xlm-roberta-xl", "xmod")
_SECTIONS = {"rope_parameters.mrope_section": [4, 2, 2]}
_INDEXER = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 2048,
            "indexer_compress_ratio": 4}
# Fields of the default configuration that a tiny one needs otherwise, by model type.
_NEEDED: dict[str, dict[str, Any]] = {
    **dict.fromkeys(_ENCODERS, _DECODER),  # their defaults are those of masked language models
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass": {"rope_parameters": {FULL: _ROPE}},
    "cohere_compass_text": {"rope_parameters": {FULL: _ROPE}},
    "chameleon": {".vocabulary_map": {"<image>": 119}},
    "dbrx": {"attn_config.rope_theta": 10000.0, "attn_config.clip_qkv": 8.0},
    "deepseek_vl_hybrid": {".high_res_vision_config.global_attn_indexes": [0]},
    "hunyuan_vl": {"rope_parameters.mrope_section": [2, 2, 2, 2]},
    "molmo2": {".adapter_config.vision_feature_layer": [0, 1]},
    "deepseek_ocr2": {"mlp_layer_types": ["dense", "sparse"]},
    "dots3_note": {"head_dim": 16, ".vision_config.adapter_in_dim": 64, ".vision_config.adapter_out_dim": 64,
                   ".audio_config.adapter_out_dim": 64, ".audio_config.adapter_input_size": 64},
    "dots3_note_text": {"head_dim": 16},
    "ernie4_5_vl_moe": {"rope_parameters.mrope_section": [3, 3, 2]},
    "glm46v": _SECTIONS, "glm4v": _SECTIONS, "glm_ocr": _SECTIONS, "glmga": _SECTIONS,
    "glm4v_moe": {"rope_parameters.mrope_section": [2, 1, 1]},
    "glm5_next": {"num_key_value_heads": 4},
    "granite4_vision": {".deepstack_layer_map": [[0, 0]], ".downsample_rate": "4/8"},
    "granitemoehybrid": {"layer_types": [RECURRENT, FULL]},
    "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8},
    "lfm2_moe": {"layer_types": ["conv", FULL]},
    "mamba2": {"num_heads": 8},
    "mistral4": {"head_dim": 16},
    "paddleocr_vl": _SECTIONS, "qwen2_5_vl": _SECTIONS, "qwen2_vl": _SECTIONS,
    "perception_lm": {".vision_config.architecture": "vit_pe_core_large_patch14_336",
                      ".vision_config.model_args": {"embed_dim": 64, "depth": 1, "num_heads": 4}},
    "qwen2_5_omni_thinker": {**_SECTIONS, ".vision_start_token_id": 118},
    "qwen3_omni_moe_thinker": {".vision_start_token_id": 118},
    "qwen4_exp": _INDEXER, "qwen4_exp_text": _INDEXER,
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {**_DECODER, "axial_pos_shape": [16, 16], "axial_pos_embds_dim": [16, 48]},
    "rwkv": {"attention_hidden_size": 64},
    "step3p7": {**_MIXED, "mlp_layer_types": ["dense", "sparse", "sparse"],
                "rope_parameters": {FULL: _ROPE, SLIDING: _ROPE}},
    "xlstm": {"qk_dim_factor": 1.0},
    "xmod": {**_DECODER, "default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": [RECURRENT, "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}
_LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 128,
         "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 128}
# Variants: model type, what differs, and changed fields of the decoder's configuration.
VARIANTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("bert", "encoder", {"is_decoder": False}),
    ("big_bird", "full attention", {"attention_type": "original_full"}),
    ("bamba", "attention only", {"attn_layer_indices": [0, 1]}),
    ("doge", "window beyond the texts", {"keep_window_size": 8}),
    ("deepseek_v32", "index smaller than the texts", {"index_topk": 64}),
    ("falcon", "ALiBi", {"alibi": True}),
    ("falcon", "new decoder", {"new_decoder_architecture": True}),
    ("gemma2", "mixed layers", _MIXED),
    ("gemma3_text", "bidirectional", {"use_bidirectional_attention": True}),
    ("gemma4_text", "shared layers", {"layer_types": [SLIDING, FULL] * 2, "num_hidden_layers": 4,
                                      "per_layer_config": {}, "num_kv_shared_layers": 2}),
    ("gemma4_text", "bidirectional images", {"use_bidirectional_attention": "vision"}),
    ("gemma4_text", "bidirectional", {"use_bidirectional_attention": "all"}),
    ("gpt_bigcode", "multi-head", {"multi_query": False}),
    ("gpt_neo", "global layers", {"attention_types": [[["global"], 2]], "attention_layers": ["global"] * 2}),
    ("gpt_neox", "parallel residual off", {"use_parallel_residual": False}),
    ("gpt_oss", "full attention", {"layer_types": [FULL, FULL]}),
    ("granitemoehybrid", "attention only", {"layer_types": [FULL, FULL]}),
    ("lfm2", "convolutions", {"layer_types": ["conv", FULL]}),
    ("llama", "yarn", {"rope_parameters": _YARN}),
    ("llama", "longrope", {"rope_parameters": _LONG}),
    ("llama", "dynamic", {"rope_parameters": {**_ROPE, "rope_type": "dynamic", "factor": 2.0}}),
    ("llama", "linear", {"rope_parameters": {**_ROPE, "rope_type": "linear", "factor": 2.0}}),
    ("llama4_text", "chunks shorter than the texts", {"attention_chunk_size": 16}),
    ("minimax_m3_vl_text", "sparse layers", {"layer_types": [FULL, "minimax_m3_sparse"]}),
    ("mistral", "full attention", {"sliding_window": None}),
    ("modernbert-decoder", "full attention", {"layer_types": [FULL, FULL]}),
    ("opt", "norm after", {"do_layer_norm_before": False}),
    ("phi3", "full attention", {"sliding_window": None}),
    ("qwen2", "mixed layers", {**_MIXED, "use_sliding_window": True}),
    ("qwen3", "mixed layers", {**_MIXED, "use_sliding_window": True}),
    ("stablelm", "parallel residual", {"use_parallel_residual": True}),
    ("starcoder2", "full attention", {"sliding_window": None}),
)


# What these generate is no text that continues a prompt.
_OTHERS = {
    **dict.fromkeys(("gemma4_assistant", "gemma4_unified_assistant"), "drafts of another model's tokens"),
    **dict.fromkeys(("musicgen", "musicgen_melody", "moshi"), "music or speech"),
    "diffusion_gemma": "blocks of text by diffusion", "evolla": "texts about proteins",
    "pi0": "actions of robots", "shieldgemma2": "classes of images"}


def names() -> list[str]:
    """Return the model types of transformers' causal language models, image models, and their variants.

    Without models that generate something else than texts.
    """
    types = dict.fromkeys([*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES])
    types = [kind for kind in types if kind not in _OTHERS]
    return [*types, *(f"{kind} ({variant})" for kind, variant, _ in VARIANTS if kind in types)]


def config(name: str) -> PreTrainedConfig:
    """Return the tiny configuration of one of ``names``."""
    kind, _, variant = name.partition(" (")
    fields = shrink(CONFIG_MAPPING[kind]().to_dict())
    _change(fields, _NEEDED.get(kind, {}))
    for variant_kind, title, changes in VARIANTS:
        if (variant_kind, f"{title})") == (kind, variant):
            _change(fields, changes)
    _set_padding(fields)
    return CONFIG_MAPPING[kind].from_dict(fields)


def _change(fields: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Change fields of the decoder's configuration, or of the whole after a dot; dots make a path."""
    decoder = fields.get("text_config")
    decoder = decoder if isinstance(decoder, dict) else fields
    for name, value in changes.items():
        *path, key = name.split(".")
        place = fields if path and not path[0] else decoder
        for part in filter(None, path):
            place = place[part]
        place[key] = value


def _set_padding(fields: dict[str, Any]) -> None:
    """Set padding tokens, which have embeddings, to one of the vocabulary."""
    for value in fields.values():
        if isinstance(value, dict):
            _set_padding(value)
    if fields.get("pad_token_id") is not None:
        fields["pad_token_id"] = 0


def tiny(name: str, seed: int = 0) -> PreTrainedModel:
    """Return a random model whose weights vary enough that no token is always the argmax."""
    torch.manual_seed(seed)
    kind = name.partition(" (")[0]
    auto = AutoModelForCausalLM if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES else AutoModelForImageTextToText
    model = auto.from_config(config(name), dtype=torch.float32).eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.25 * (32 / max(32, weight.shape[-1])) ** 0.5)
            elif "bias" in key:
                weight.normal_(0, 0.1)
    model.generation_config.eos_token_id = model.generation_config.bos_token_id = None
    model.generation_config.pad_token_id = 0
    return model
