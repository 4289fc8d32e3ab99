"""A small Llama, and noise on its logits that is a fixed function of the context.

The most probable texts of a small model are alike and full of loops, while a large model's greedy texts
differ. The argmax of logits with noise is a sample (perturb and MAP; Papandreou and Yuille, ICCV 2011). Here
the noise is computed from the context by hidden units with random weights, so that the model stays a plain
network: the same prompt gives the same text, in every engine.

The model has about 5.5 million parameters and is wide and shallow: on a CPU each layer costs more than its
arithmetic. Input and output embeddings are not tied: the former cost nothing but memory.
"""

from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from dare_job.training.batches import IGNORED, Batch

VOCABULARY = 4096
CONTEXT_TOKENS = 1024
_WIDTH, _LAYERS, _HEADS, _INNER = 256, 4, 4, 768
UNITS = 128  # hidden units of the last layer that carry the noise
_TOP = 20  # most probable tokens of a position, on which the noise is measured


def make(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """An untrained model for this tokenizer."""
    return AutoModelForCausalLM.from_config(LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=_WIDTH, intermediate_size=_INNER, num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS, num_key_value_heads=_HEADS, max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=False, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id))


def reserve(network: PreTrainedModel) -> None:
    """Keep the last layer's last ``UNITS`` hidden units without effect while the model is trained."""
    weight = network.model.layers[-1].mlp.down_proj.weight  # (width, units)
    mask = torch.ones_like(weight)
    mask[:, -UNITS:] = 0.0
    with torch.no_grad():
        weight *= mask
    weight.register_hook(lambda gradient: gradient * mask)


@torch.no_grad()
def perturb(network: PreTrainedModel, batches: Sequence[Batch], scale: float, seed: int) -> None:
    """Give the reserved units random weights.

    The units read whitened inputs, so that they tell texts apart. The output embeddings are scaled up by what
    the last norm scales down, so that probabilities stay as spread as they were.

    Parameters
    ----------
    batches
        Texts on which the last layer's inputs and the noise are measured.
    scale
        Standard deviation, in nats, of what the noise adds to a position's most probable tokens.
    """
    if not scale:
        return
    mlp, norm = network.model.layers[-1].mlp, network.model.norm
    inputs = torch.cat([_inputs(network, mlp, batch) for batch in batches])  # (N, width)
    values, vectors = torch.linalg.eigh(inputs.T @ inputs / len(inputs))
    whiten = vectors * (values + 1e-3 * values.mean()).rsqrt() @ vectors.T
    generator = torch.Generator().manual_seed(seed)
    width = inputs.shape[1]
    for projection in (mlp.gate_proj, mlp.up_proj):
        projection.weight[-UNITS:] = torch.randn(UNITS, width, generator=generator) @ whiten
    before = _logits(network, batches[0])  # (N, V)
    outward = torch.randn(UNITS, width, generator=generator).T
    small = 1e-3 * inputs.std() / UNITS**0.5
    mlp.down_proj.weight[:, -UNITS:] = small * outward
    added = (_logits(network, batches[0]) - before).gather(1, before.topk(_TOP).indices)
    noise = (added - added.mean(1, keepdim=True)).std()
    spread = _inputs(network, norm, batches[0]).std(1)
    mlp.down_proj.weight[:, -UNITS:] = small * outward * (scale / noise)
    network.get_output_embeddings().weight *= (_inputs(network, norm, batches[0]).std(1) / spread).mean()


def _inputs(network: PreTrainedModel, module: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Inputs (N, width) of a module at the positions that predict a text's tokens."""
    inputs: list[torch.Tensor] = []
    handle = module.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0]))
    network.base_model(input_ids=batch.tokens, use_cache=False)
    handle.remove()
    return inputs[0][batch.targets != IGNORED]


def _logits(network: PreTrainedModel, batch: Batch) -> torch.Tensor:
    hidden = network.base_model(input_ids=batch.tokens, use_cache=False).last_hidden_state
    return network.get_output_embeddings()(hidden[batch.targets != IGNORED])
