"""Tiny random models whose layers keep a state, or whose attention cannot run token trees."""

import transformers as hf
from decode_models import GROUPED, VOCABULARY, WINDOW, tiny

_SMALL = dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2)
_DELTA = dict(GROUPED, num_hidden_layers=4, head_dim=8, linear_num_value_heads=4, linear_num_key_heads=2,
              linear_key_head_dim=8, linear_value_head_dim=8)
_HYBRID = dict(GROUPED, num_hidden_layers=3, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8)

STATEFUL = {
    "qwen3_next": (hf.Qwen3NextConfig, dict(_DELTA, num_experts=2, num_experts_per_tok=1,
                                            moe_intermediate_size=16, shared_expert_intermediate_size=16)),
    "qwen3_5": (hf.Qwen3_5TextConfig, _DELTA),
    "falcon_h1": (hf.FalconH1Config, dict(GROUPED, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8,
                                          mamba_d_state=8, mamba_chunk_size=16, head_dim=8)),
    "lfm2": (hf.Lfm2Config, dict(GROUPED, num_hidden_layers=3,
                                 layer_types=["conv", "full_attention", "conv"])),
    "mamba2": (hf.Mamba2Config, dict(_SMALL, num_heads=4, head_dim=16, state_size=8, n_groups=2,
                                     chunk_size=16)),
    "bamba": (hf.BambaConfig, dict(_HYBRID, attn_layer_indices=[1], mamba_chunk_size=16)),
    "granitemoehybrid": (hf.GraniteMoeHybridConfig, dict(
        _HYBRID, layer_types=["mamba", "attention", "mamba"], shared_intermediate_size=32,
        num_local_experts=2, num_experts_per_tok=1)),
    "mamba": (hf.MambaConfig, dict(_SMALL, state_size=4)),
    "falcon_mamba": (hf.FalconMambaConfig, dict(_SMALL, state_size=4)),
    "jamba": (hf.JambaConfig, dict(GROUPED, num_experts=2, mamba_d_state=4, num_hidden_layers=4,
                                   attn_layer_period=2, attn_layer_offset=1)),
    "zamba2": (hf.Zamba2Config, dict(_SMALL, num_hidden_layers=4, num_attention_heads=4,
                                     num_key_value_heads=4, intermediate_size=48, mamba_d_state=8,
                                     mamba_ngroups=1, n_mamba_heads=4, mamba_headdim=16, num_mem_blocks=1,
                                     layers_block_type=["mamba", "hybrid", "mamba", "hybrid"])),
    "nemotron_h": (hf.NemotronHConfig, dict(_SMALL, num_hidden_layers=4, intermediate_size=48, head_dim=8,
                                            num_attention_heads=4, num_key_value_heads=2, mamba_num_heads=4,
                                            mamba_head_dim=16, ssm_state_size=8, n_groups=2, chunk_size=16,
                                            hybrid_override_pattern="M*M-")),
    "olmo_hybrid": (hf.OlmoHybridConfig, dict(GROUPED, num_hidden_layers=4, linear_num_value_heads=4,
                                              linear_num_key_heads=4, linear_key_head_dim=8,
                                              linear_value_head_dim=8, pad_token_id=0)),
    "lfm2_moe": (hf.Lfm2MoeConfig, dict(GROUPED, num_hidden_layers=3, num_experts=2, num_experts_per_tok=1,
                                        moe_intermediate_size=16, num_dense_layers=1,
                                        layer_types=["conv", "full_attention", "conv"])),
    # With two experts rather than the default 256, no scores of the router are equal.
    "kimi_linear": (hf.KimiLinearConfig, dict(
        _SMALL, num_hidden_layers=4, intermediate_size=48, moe_intermediate_size=16, num_attention_heads=4,
        num_key_value_heads=4, kv_lora_rank=8, qk_rope_head_dim=4, v_head_dim=8, qk_nope_head_dim=8,
        num_experts=2, num_experts_per_token=1, pad_token_id=0,
        layer_types=["linear_attention", "full_attention"] * 2)),
    # Distances by column, and queries scaled by their column.
    "inkling": (hf.InklingTextConfig, dict(
        _SMALL, num_attention_heads=4, num_key_value_heads=2, head_dim=8, swa_num_attention_heads=4,
        swa_num_key_value_heads=2, swa_head_dim=8, sliding_window_size=WINDOW, d_rel=4, rel_extent=16,
        intermediate_size=48, moe_intermediate_size=16, n_routed_experts=2, num_experts_per_tok=1,
        layer_types=["hybrid_sliding", "hybrid"], log_scaling_n_floor=4, logits_mup_width_multiplier=1.0)),
    # An index that chooses 8 tokens, and n-grams of tokens as a state.
    "qwen4_exp": (hf.Qwen4ExpTextConfig, dict(
        _DELTA, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16, num_hidden_layers=2,
        shared_expert_intermediate_size=16, layer_types=["linear_attention", "indexed_attention"], hc_count=2,
        hc_lowrank=8, ple_layer_ids=[1], ple_embed_dim=32, ngram_size=3, heads_per_ngram=2,
        ngram_vocab_size_base=VOCABULARY, eos_token_id=0, indexer_n_heads=2, indexer_kv_heads=1,
        indexer_head_dim=8, indexer_budget=8, indexer_compress_ratio=4)),
    "rwkv": (hf.RwkvConfig, _SMALL),
    "recurrent_gemma": (hf.RecurrentGemmaConfig, dict(
        _SMALL, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1, intermediate_size=64,
        lru_width=32, attention_window_size=WINDOW)),
    "minimax": (hf.MiniMaxConfig, dict(GROUPED, num_local_experts=2, num_experts_per_tok=1, head_dim=8,
                                       layer_types=["linear_attention", "full_attention"], block_size=16)),
}
if hasattr(hf, "Lfm3Config"):  # since transformers 5.23
    STATEFUL["lfm3"] = hf.Lfm3Config, dict(
        GROUPED, num_hidden_layers=3, sliding_window=WINDOW, pad_token_id=0,
        layer_types=["conv", "sliding_attention", "full_attention"])
OTHER_ATTENTION = {
    "gpt_neo_local": (hf.GPTNeoConfig, dict(vocab_size=VOCABULARY, hidden_size=32, num_layers=2, num_heads=4,
                                            window_size=8, attention_types=[[["global", "local"], 1]],
                                            max_position_embeddings=256)),
    "doge": (hf.DogeConfig, dict(GROUPED, pad_token_id=0)),
    "llama4_chunks": (hf.Llama4TextConfig, dict(GROUPED, head_dim=8, intermediate_size_mlp=32,
                                                num_local_experts=2, attention_chunk_size=8)),
    "xlnet": (hf.XLNetConfig, dict(vocab_size=VOCABULARY, d_model=32, n_layer=2, n_head=4, d_inner=48)),
}
ARCHITECTURES_WITHOUT_TREES = STATEFUL | OTHER_ATTENTION


def tiny_without_trees(name: str, **changes):
    """Return ``tiny`` of one of ARCHITECTURES_WITHOUT_TREES."""
    return tiny(name, among=ARCHITECTURES_WITHOUT_TREES, **changes)
