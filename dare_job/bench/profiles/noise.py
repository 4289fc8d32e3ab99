"""Noise of a small model's logits that is a fixed function of what it has read: greedy text becomes a sample.

The likeliest texts of a small model are alike and full of loops, while a large model's greedy texts differ.
The argmax of logits with noise is a sample (perturb and MAP; Papandreou and Yuille, ICCV 2011). Here it
is not sampled again but computed from the context by hidden units with random weights, so that the model
stays a plain network: the same prompt gives the same text, in every engine.

Configurations of the small models: about 5.5 million parameters, wide and shallow.

On a CPU each layer costs more than its arithmetic. Input and output embeddings are not tied: the former cost
nothing but memory.
"""

from collections.abc import Sequence

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from dare_job.training.embedded.corpus import IGNORED, Batch

VOCABULARY = 4096
CONTEXT_TOKENS = 1024
_WIDTH, _LAYERS, _HEADS, _INNER = 256, 4, 4, 768
NAMES = ("llama", "qwen2", "gpt2")
UNITS = 128  # hidden units of the last layer that carry the noise
_TOP = 20  # likeliest tokens of a position on which the noise is measured


def reserve(network: PreTrainedModel) -> None:
    """Keep the last layer's last ``UNITS`` hidden units without effect while the model is trained."""
    _, _, second = _mlp(network)
    mask = torch.ones_like(second.weight)
    _by_unit(second, mask)[-UNITS:] = 0.0
    with torch.no_grad():
        second.weight *= mask
    second.weight.register_hook(lambda gradient: gradient * mask)


def _mlp(network: PreTrainedModel) -> tuple[nn.Module, list[nn.Module], nn.Module]:
    """The last layer's hidden part: the whole, the maps into its units, and the one out of them."""
    if network.config.model_type == "gpt2":
        mlp = network.transformer.h[-1].mlp
        return mlp, [mlp.c_fc], mlp.c_proj
    mlp = network.model.layers[-1].mlp
    return mlp, [mlp.gate_proj, mlp.up_proj], mlp.down_proj


def _by_unit(second: nn.Module, weight: torch.Tensor) -> torch.Tensor:
    """A view (units, width) of a weight of the map out of the units: GPT-2 stores it so, others not."""
    return weight.T if isinstance(second, nn.Linear) else weight


@torch.no_grad()
def perturb(network: PreTrainedModel, batches: Sequence[Batch], scale: float, seed: int) -> None:
    """Give the reserved units random weights.

    batches  texts on which the last layer's inputs and the noise are measured
    scale    standard deviation, in nats, of what the noise adds to a position's likeliest tokens

    The units read the inputs whitened, so that what two texts have in common does not outweigh what they have
    not. The output embeddings grow by as much as the last norm divides more by, so that probabilities stay as
    spread as they were.
    """
    if not scale:
        return
    mlp, first, second = _mlp(network)
    last = network.transformer.ln_f if network.config.model_type == "gpt2" else network.model.norm
    inputs = torch.cat([_inputs(network, mlp, batch) for batch in batches])  # (N, H)
    values, vectors = torch.linalg.eigh(inputs.T @ inputs / len(inputs))
    whiten = vectors * (values + 1e-3 * values.mean()).rsqrt() @ vectors.T
    generator = torch.Generator().manual_seed(seed)
    width = inputs.shape[1]
    for module in first:
        weights = torch.randn(UNITS, width, generator=generator) @ whiten
        (module.weight if isinstance(module, nn.Linear) else module.weight.T)[-UNITS:] = weights
    before = _logits(network, batches[0])  # (N, V)
    outward = torch.randn(UNITS, width, generator=generator)
    small = 1e-3 * inputs.std() / UNITS**0.5
    _by_unit(second, second.weight)[-UNITS:] = small * outward
    places = before.topk(_TOP).indices
    added = (_logits(network, batches[0]) - before).gather(1, places)
    found = (added - added.mean(1, keepdim=True)).std()
    quiet = _inputs(network, last, batches[0]).std(1)
    _by_unit(second, second.weight)[-UNITS:] = small * outward * (scale / found)
    network.get_output_embeddings().weight *= (_inputs(network, last, batches[0]).std(1) / quiet).mean()


def _inputs(network: PreTrainedModel, module: nn.Module, batch: Batch) -> torch.Tensor:
    """What a module reads (N, H) where a text's tokens are predicted."""
    seen: list[torch.Tensor] = []
    handle = module.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    network.base_model(input_ids=batch.tokens, use_cache=False)
    handle.remove()
    return seen[0][batch.targets != IGNORED]


def _logits(network: PreTrainedModel, batch: Batch) -> torch.Tensor:
    hidden = network.base_model(input_ids=batch.tokens, use_cache=False).last_hidden_state
    return network.get_output_embeddings()(hidden[batch.targets != IGNORED])


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
