"""Tiny random models of many architectures, and the text of ``generate`` with them."""

import hashlib

import numpy as np
import pytest
import torch
import transformers as hf

from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.evaluate.oracle import OracleDrafter

VOCABULARY = 120
WINDOW = 8
INDEX = 72  # tokens that indexed attention selects: fewer than the longest texts have
SIZES = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
             num_attention_heads=4, max_position_embeddings=256)
GROUPED = dict(SIZES, num_key_value_heads=2)
MIXED = dict(GROUPED, num_hidden_layers=3, sliding_window=WINDOW,
             layer_types=["sliding_attention", "full_attention", "sliding_attention"])

ARCHITECTURES = {
    "llama": (hf.LlamaConfig, GROUPED),
    "qwen2": (hf.Qwen2Config, GROUPED),
    "qwen2-window": (hf.Qwen2Config, dict(MIXED, use_sliding_window=True)),
    "qwen3": (hf.Qwen3Config, dict(GROUPED, head_dim=8)),
    "mistral": (hf.MistralConfig, dict(GROUPED, sliding_window=None)),
    "mistral-window": (hf.MistralConfig, dict(GROUPED, sliding_window=WINDOW)),
    "gemma2": (hf.Gemma2Config, dict(MIXED, head_dim=8, query_pre_attn_scalar=8, final_logit_softcapping=5.0,
                                     attn_logit_softcapping=3.0)),
    "gemma3": (hf.Gemma3TextConfig, dict(MIXED, head_dim=8, query_pre_attn_scalar=8)),
    "phi": (hf.PhiConfig, SIZES),
    "phi3": (hf.Phi3Config, dict(GROUPED, sliding_window=WINDOW, pad_token_id=0)),
    "gpt2": (hf.GPT2Config, dict(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=256)),
    "opt": (hf.OPTConfig, dict(vocab_size=VOCABULARY, hidden_size=32, ffn_dim=48, num_hidden_layers=2,
                               num_attention_heads=4, max_position_embeddings=256, word_embed_proj_dim=32)),
    "gpt_neox": (hf.GPTNeoXConfig, SIZES),
    "olmo2": (hf.Olmo2Config, GROUPED),
    "falcon": (hf.FalconConfig, dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2,
                                     num_attention_heads=4, alibi=False, max_position_embeddings=256)),
    "stablelm": (hf.StableLmConfig, GROUPED),
    "starcoder2": (hf.Starcoder2Config, dict(GROUPED, sliding_window=WINDOW)),
    "mixtral": (hf.MixtralConfig, dict(GROUPED, num_local_experts=2)),
    "gpt_oss": (hf.GptOssConfig, dict(MIXED, head_dim=8, num_local_experts=2, num_experts_per_tok=1)),
    "cohere": (hf.CohereConfig, GROUPED),
    "granite": (hf.GraniteConfig, GROUPED),
    "smollm3": (hf.SmolLM3Config, GROUPED),
    "gpt_neo": (hf.GPTNeoConfig, dict(vocab_size=VOCABULARY, hidden_size=32, num_layers=2, num_heads=4,
                                      attention_types=[[["global"], 2]], max_position_embeddings=256)),
    "gemma3n": (hf.Gemma3nTextConfig, dict(
        MIXED, num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2, head_dim=8,
        num_kv_shared_layers=2, intermediate_size=[48] * 4, activation_sparsity_pattern=[0.0] * 4,
        vocab_size_per_layer_input=VOCABULARY, hidden_size_per_layer_input=8, laurel_rank=4)),
    "gemma4": (hf.Gemma4TextConfig, dict(
        MIXED, num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2, head_dim=8,
        num_kv_shared_layers=2, vocab_size_per_layer_input=VOCABULARY, hidden_size_per_layer_input=8)),
    "granitemoehybrid": (hf.GraniteMoeHybridConfig, dict(
        GROUPED, layer_types=["full_attention"] * 2, num_local_experts=2, num_experts_per_tok=1,
        shared_intermediate_size=16, mamba_n_heads=8, mamba_d_head=8, mamba_d_state=4)),
    "llama4": (hf.Llama4TextConfig, dict(
        GROUPED, head_dim=8, intermediate_size_mlp=48, num_local_experts=2, attention_chunk_size=WINDOW,
        layer_types=["chunked_attention", "full_attention"], no_rope_layers=[1, 0])),
    "bloom": (hf.BloomConfig, dict(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4)),
    "mpt": (hf.MptConfig, dict(vocab_size=VOCABULARY, d_model=48, n_layers=2, n_heads=6, max_seq_len=256)),
    "falcon_alibi": (hf.FalconConfig, dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2,
                                           num_attention_heads=4, alibi=True)),
    "deepseek_v32": (hf.DeepseekV32Config, dict(
        SIZES, num_key_value_heads=4, moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2,
        n_group=1, topk_group=1, first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8,
        qk_nope_head_dim=8, v_head_dim=8, head_dim=8, index_topk=INDEX, index_head_dim=16, index_n_heads=4,
        pad_token_id=0)),
    "xglm": (hf.XGLMConfig, dict(vocab_size=VOCABULARY, d_model=32, ffn_dim=48, num_layers=2,
                                 attention_heads=4, max_position_embeddings=256)),
}

TABLES = {"gpt2", "opt", "gpt_neo", "mpt"}  # with a table of positions or biases, where texts end
_CONTEXTS = {"gpt2": "n_positions", "mpt": "max_seq_len", "bloom": "seq_length"}

_TEXTS: dict[bytes, np.ndarray] = {}  # of ``generate``, by ``_key``


def architectures(*names: str) -> list:
    """Return all architectures; those that are not named are tested before a release only."""
    assert set(names) <= set(ARCHITECTURES)
    return [name if name in names else pytest.param(name, marks=pytest.mark.release)
            for name in ARCHITECTURES]


def prepacks(dtype: torch.dtype) -> bool:
    """Whether oneDNN can prepack layers of this dtype on this processor."""
    return dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def tiny(name: str, seed: int = 0, dtype: torch.dtype = torch.float32, among=ARCHITECTURES, **changes):
    """Return a random model whose weights vary enough that no token is always the argmax."""
    kind, options = among[name]
    config = kind(**{"tie_word_embeddings": False, "eos_token_id": None, "bos_token_id": None, **options,
                     **changes})
    if getattr(config, "pad_token_id", None) is not None and config.pad_token_id >= VOCABULARY:
        config.pad_token_id = 0
    torch.manual_seed(seed)
    model = hf.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.25)
            elif "bias" in key:
                weight.normal_(0, 0.1)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def short(name: str, context: int, **changes):
    """Return ``tiny(name)`` with a short context."""
    return tiny(name, **{_CONTEXTS.get(name, "max_position_embeddings"): context}, **changes)


def prompts(lengths=(5, 17, 1, 30, 9, 22, 11), seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(2, VOCABULARY, n).astype(np.int32) for n in lengths]


def generate(model, prompt: np.ndarray, **options) -> np.ndarray:
    """Return ``generate_now``, computed once for models with equal weights and configurations."""
    key = _key(model, prompt, options)
    if key not in _TEXTS:
        _TEXTS[key] = generate_now(model, prompt, **options)
    return _TEXTS[key].copy()


def _key(model, prompt: np.ndarray, options: dict) -> bytes:
    kind = type(model), model.dtype, model.config._attn_implementation
    configs = model.config.to_dict(), model.generation_config.to_dict()
    digest = hashlib.blake2b(repr((kind, configs, prompt.tolist(), sorted(options.items()))).encode())
    for weight in model.parameters():
        digest.update(weight.detach().contiguous().view(torch.uint8).numpy())
    return digest.digest()


def generate_now(model, prompt: np.ndarray, **options) -> np.ndarray:
    """Return the greedy text of transformers for one prompt."""
    ids = torch.from_numpy(prompt.astype(np.int64))[None]
    options = {"max_new_tokens": 40, "do_sample": False, "attention_mask": torch.ones_like(ids), **options}
    options = {key: value for key, value in options.items() if value is not None}
    with torch.inference_mode():
        return model.generate(ids, **options)[0, len(prompt):].numpy()


def write(target: Target, texts: list[np.ndarray], drafter=None, **settings):
    """Return the engine's results by row number."""
    engine = Engine(target, EngineSettings(**{"max_new_tokens": 40, "batch_size": 3, **settings}), drafter)
    return {r.id: r for r in engine.run(Request(i, p) for i, p in enumerate(texts))}


def oracle(texts, **options) -> OracleDrafter:
    return OracleDrafter(dict(enumerate(texts)), VOCABULARY, **options)


def assert_written(results, expected) -> None:
    """Assert that every row has its expected tokens and no error."""
    for row, text in enumerate(expected):
        assert results[row].error is None, results[row].error
        assert np.array_equal(results[row].token_ids, text), row
