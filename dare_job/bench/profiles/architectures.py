"""Configurations of the small models: about 5.5 million parameters, wide and shallow.

On a CPU each layer costs more than its arithmetic. Input and output embeddings are not tied: the former cost
nothing but memory.
"""

from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from dare_job.errors import ConfigError

VOCABULARY = 4096
CONTEXT_TOKENS = 1024
_WIDTH, _LAYERS, _HEADS, _INNER = 256, 4, 4, 768
NAMES = ("llama", "qwen2", "gpt2")


def check(name: str) -> None:
    """Raises ConfigError for an architecture that is not among ``NAMES``."""
    if name not in NAMES:
        raise ConfigError(f"architecture {name!r} is unknown; choose from {', '.join(NAMES)}")


def make(name: str, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """An untrained model for this tokenizer."""
    common = {"vocab_size": len(tokenizer), "tie_word_embeddings": False,
              "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
              "pad_token_id": tokenizer.pad_token_id}
    if name == "gpt2":
        config = GPT2Config(n_embd=_WIDTH, n_layer=_LAYERS, n_head=_HEADS, n_inner=_WIDTH * 4,
                            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, n_positions=CONTEXT_TOKENS,
                            **common)
    else:
        kind = {"llama": LlamaConfig, "qwen2": Qwen2Config}[name]
        config = kind(hidden_size=_WIDTH, intermediate_size=_INNER, num_hidden_layers=_LAYERS,
                      num_attention_heads=_HEADS, num_key_value_heads=_HEADS,
                      max_position_embeddings=CONTEXT_TOKENS, **common)
    return AutoModelForCausalLM.from_config(config)
