"""Models with random weights, made on the device: in the shapes of well-known ones, and tiny ones."""

import torch
import transformers as hf
from transformers import PreTrainedModel

from dare_job.errors import ConfigError

# As in each model's config.json.
SHAPES = {
    "llama-2-7b": (hf.LlamaConfig, dict(
        vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=32, max_position_embeddings=4096)),
    "qwen2.5-0.5b": (hf.Qwen2Config, dict(
        vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
        num_attention_heads=14, num_key_value_heads=2, max_position_embeddings=32768,
        tie_word_embeddings=True)),
    "mistral-7b": (hf.MistralConfig, dict(
        vocab_size=32000, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=32768, sliding_window=None)),
    "small": (hf.LlamaConfig, dict(  # vLLM on a CPU needs heads of at least 32
        vocab_size=512, hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024)),
}
SHAPES["twin"] = (hf.LlamaConfig, dict(
    vocab_size=512, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=1024))
_TINY = dict(vocab_size=120, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256)
_WINDOW = dict(_TINY, num_hidden_layers=3, sliding_window=8,
               layer_types=["sliding_attention", "full_attention", "sliding_attention"])
TINY = {
    "llama": (hf.LlamaConfig, _TINY),
    "mistral with a window": (hf.MistralConfig, dict(_TINY, sliding_window=8)),
    "qwen2 with windows": (hf.Qwen2Config, dict(_WINDOW, use_sliding_window=True)),
    "gemma3": (hf.Gemma3TextConfig, dict(_WINDOW, head_dim=8, query_pre_attn_scalar=8)),
    "gpt2": (hf.GPT2Config, dict(vocab_size=120, n_embd=32, n_layer=2, n_head=4, n_positions=256)),
    "mixtral": (hf.MixtralConfig, dict(_TINY, num_local_experts=2)),
}


def large(name: str, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """A model of SHAPES without an end-of-text token.

    Raises
    ------
    ConfigError
        The name is unknown.
    """
    if name not in SHAPES:
        raise ConfigError(f"shape {name!r} is unknown; choose from {', '.join(SHAPES)}")
    kind, sizes = SHAPES[name]
    return _made(kind(**sizes, eos_token_id=None, bos_token_id=None, pad_token_id=None), device, dtype)


def tiny(name: str, device: torch.device) -> PreTrainedModel:
    """A float32 model of TINY whose argmax tokens vary: weights wide enough that no token always wins."""
    kind, sizes = TINY[name]
    config = kind(**sizes, tie_word_embeddings=False, eos_token_id=None, bos_token_id=None, pad_token_id=None)
    model = _made(config, device, torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.25)
    return model


def _made(config, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    torch.manual_seed(0)
    with torch.device(device):  # random numbers of the device's own: seconds for 7 billion
        model = hf.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    model.requires_grad_(False)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def costs(model: PreTrainedModel, rows: int, queries: int, context: int) -> tuple[float, float]:
    """Bytes and FLOPs of one forward pass of ``queries`` tokens, of ``rows`` rows after ``context`` tokens.

    Every weight is read once, but not an untied embedding; so are the keys and values of each row.
    """
    config = model.config
    weights = sum(weight.numel() for weight in model.parameters())
    if not config.tie_word_embeddings:
        weights -= model.get_input_embeddings().weight.numel()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    layers = config.num_hidden_layers
    size = torch.finfo(model.dtype).bits // 8
    cache = 2 * rows * context * layers * config.num_key_value_heads * width
    attended = 4 * layers * config.num_attention_heads * width * context
    return size * (weights + cache), queries * (2 * weights + attended)
