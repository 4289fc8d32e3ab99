"""Small configurations of any architecture: few layers, small width, small vocabulary.

Sizes are recognized by the names of their fields, which the configurations of transformers mostly share.
Fields with other names keep their defaults.
"""

import re
from collections.abc import Mapping
from typing import Any

VOCABULARY = 120
CONTEXT = 256
_HEAD_DIM, _WIDTH = 16, 64
_MAX_LAYERS = 12
_LAYERS = re.compile(r"(num_|n_)?((hidden|decoder|encoder|num)_)?(layers?|blocks)|depth|(de|en)coder_layers")
# The first pattern that matches a field's whole name decides. Only positive integers are replaced.
_SIZES = tuple((re.compile(pattern), size) for pattern, size in (
    (r"(type|task_type)_vocab_size|additional_vocab_size", 2),
    (r".*vocab(_size)?(_base|_per_layer_input)?", VOCABULARY),
    (r"(max_(position_embeddings|seq_len|source_positions|target_positions)|n_positions|n_ctx|context_length"
     r"|model_max_length)", CONTEXT),
    # Shorter than the texts, so that windows matter.
    (r"sliding_window(_size)?|attention_window_size|local_attention(_window_len)?|window_size", 16),
    (r"attention_chunk_size", CONTEXT // 2),
    (r"(qk_nope|qk_rope)_head_dim", _HEAD_DIM // 2),
    (r"(.*_)?head_?dim|mamba_d_head|attention_head_size|d_kv|d_head|kv_channels|dim_head|rotary_dim"
     r"|query_pre_attn_scalar", _HEAD_DIM),
    (r"mamba_n_heads|mamba_num_heads|n_mamba_heads", 8),
    (r"(.*_)?(key_value|kv|n_kv|kv_n|key)_heads|num_query_groups", 2),
    (r"(.*_)?(n_|num_)?heads?|attention_heads_per_layer", 4),
    (r".*_rank|hc_lowrank", 16),
    (r"mamba_d_state|ssm_state_size|state_size", 8),
    (r"mamba_d_ssm|attention_hidden_size", 2 * _WIDTH),
    (r"(mamba_)?n_?groups?|mamba_ngroups|o_groups|num_mem_blocks|num_expert_group|topk_group", 1),
    (r"(mamba_)?chunk_size|block_size", 8),
    (r"n_routed_experts|(moe_)?num_(local_)?experts", 4),
    (r"zero_expert_num|num_experts_per_tok(en)?|moe_top_?k|moe_k|top_k_experts", 2),
    (r"(.*_)?shared_experts", 1),
    (r".*(intermediate_size|ffn|feed_forward|mlp_dim|ff_dim|dim_ff|d_ff|dff|expert_dim).*|(n|d)_inner", 48),
    (r"hidden_size_per_layer_input|ple_embed_dim", 16),
    (r"(.*_)?(hidden|embedding)_(size|dim)|d_model|n_embd|emb_dim|embed_dim|word_embed_proj_dim|lru_width"
     r"|output_dim|vision_output_dim|projector_(in|out)put_dim|projection_dim|hidden_size_global", _WIDTH)))
_NO_SIZES = re.compile(r".*(multiplier|expansion|ratio|factor|_mult|multiple).*")
_PERIODS = {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
            "expert_layer_offset": 1}
_UNSET = {"head_dim": _HEAD_DIM, "num_key_value_heads": 2, "n_routed_experts": 4, "n_shared_experts": 1,
          "num_experts_per_tok": 2}
_INDEXES = re.compile(r".*(_idxs|_indexes|_indices|_layers|_layer_ids)")


def shrink(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration's fields, as ``to_dict`` gives them, with small sizes."""
    layers = {key: value for key, value in fields.items()
              if _LAYERS.fullmatch(key) and isinstance(value, int) and value > 0}
    deepest = max(layers.values(), default=0)
    count = _count_layers(fields, deepest)
    shared = fields.get("num_kv_shared_layers") or 0
    if shared:  # as many layers again, which share the caches of the first ones
        layers["num_kv_shared_layers"], count = shared, 2 * count
    small = {key: _value(key, value, deepest, count) for key, value in fields.items()}
    small |= {key: min(value, count) for key, value in layers.items()}
    if shared:
        small["num_kv_shared_layers"] = count // 2
    if "kv_lora_rank" in small:  # latent attention: head_dim is that of its rotary part
        small |= {"num_key_value_heads": small["num_attention_heads"], "head_dim": small["qk_rope_head_dim"]}
    small |= {key: value for key, value in _UNSET.items() if fields.get(key, 0) is None}
    for rope in _ropes(small.get("rope_parameters")):
        _shrink_rope(rope, small)
    return small


def _count_layers(fields: Mapping[str, Any], deepest: int) -> int:
    """Return the number of first layers that have every kind of layer, at least two."""
    count = 2
    for value in fields.values():
        if _by_layer(value, deepest) and isinstance(value[0], str):
            count = max(count, *(1 + value.index(kind) for kind in value))
    return min(count, _MAX_LAYERS)


def _by_layer(value: Any, layers: int) -> bool:
    return isinstance(value, list | tuple) and len(value) == layers > 2


def _value(key: str, value: Any, layers: int, count: int) -> Any:
    if key in _PERIODS:
        return _PERIODS[key]
    if key == "per_layer_config" and value:
        return {layer: _of_layer(changes) for layer, changes in value.items() if int(layer) < count}
    if isinstance(value, dict):
        return shrink(value) if "model_type" in value else dict(value)
    if isinstance(value, list | tuple):
        if _by_layer(value, layers):
            return [_value(key, entry, 0, 0) for entry in value[:count]]
        if _INDEXES.fullmatch(key) and all(isinstance(entry, int) for entry in value):
            return [entry for entry in value if entry < count]
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0 or _NO_SIZES.fullmatch(key):
        return value
    return next((size for pattern, size in _SIZES if pattern.fullmatch(key)), value)


def _of_layer(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of one layer that differ from those of the others, with small sizes."""
    small = {key: _value(key, value, 0, 0) for key, value in changes.items()}
    if "kv_lora_rank" in small:
        small["num_key_value_heads"] = small["num_attention_heads"]
    return small


def _ropes(parameters: Any) -> list[dict]:
    """Return the rotary parameters of all layers, or of each kind of layer."""
    if not isinstance(parameters, dict):
        return []
    return [rope for rope in parameters.values() if isinstance(rope, dict)] or [parameters]


def _shrink_rope(rope: dict, fields: Mapping[str, Any]) -> None:
    """Shrink lists with an entry for each frequency, and sections of the frequencies."""
    head = fields.get("qk_rope_head_dim") or fields.get("head_dim") or _HEAD_DIM
    frequencies = int(head * rope.get("partial_rotary_factor", 1)) // 2
    for key, value in rope.items():
        if key in ("short_factor", "long_factor"):
            rope[key] = value[:frequencies]
        elif key == "mrope_section":
            parts = [section * frequencies // sum(value) for section in value]
            rope[key] = [frequencies - sum(parts[1:]), *parts[1:]]
        elif key == "original_max_position_embeddings":
            rope[key] = CONTEXT // 2
