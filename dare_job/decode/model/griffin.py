"""Recurrent layers of RecurrentGemma with their states in the cache.

The model's own code keeps the states in its modules, forgets the inputs of a convolution where several tokens
continue a text, and lets a prompt of one token see those of the text before it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from transformers import PreTrainedModel

_BLOCK = "RecurrentGemmaRecurrentBlock"


def enable(model: PreTrainedModel) -> bool:
    """Keep the states of a model's recurrent layers in its cache; return whether it has such layers."""
    blocks = _blocks(model)
    for layer, block in blocks.items():
        block.forward = partial(_read, block, layer)
    return bool(blocks)


def remove(model: PreTrainedModel) -> None:
    """Give a model its own layers again, without states."""
    for block in _blocks(model).values():
        vars(block).pop("forward", None)
        block.conv1d_state = block.rg_lru.recurrent_states = None


@contextmanager
def off(model: PreTrainedModel) -> Iterator[None]:
    """Run the model's own layers."""
    remove(model)
    try:
        yield
    finally:
        enable(model)


def _blocks(model: PreTrainedModel) -> dict[int, torch.nn.Module]:
    """Return the recurrent layers by their number."""
    return {layer: decoder.temporal_block for layers in model.modules()
            if isinstance(layers, torch.nn.ModuleList) for layer, decoder in enumerate(layers)
            if type(getattr(decoder, "temporal_block", None)).__name__ == _BLOCK}


def _read(block, layer: int, input_states, position_ids, attention_mask, use_cache=True, past_key_values=None,
          **options) -> tuple[torch.Tensor, None]:
    """Run a layer over tokens (R, W, H), as its own ``forward``."""
    outer = block.act_fn(block.linear_y(input_states))
    inner, tokens = block.linear_x(input_states).transpose(1, 2), input_states.shape[1]
    cache = past_key_values if use_cache else None
    block.rg_lru.recurrent_states = None
    if cache is not None:
        block.rg_lru.recurrent_states = cache.get_recurrent_state(layer)
        inner = cache.update_conv_state(inner, layer, conv_kernel_size=block.conv1d_width - 1)
    inner = _convolve(block, inner, tokens)
    inner = block.rg_lru(inner.transpose(1, 2), position_ids)
    if cache is not None:
        cache.update_recurrent_state(block.rg_lru.recurrent_states, layer)
    block.rg_lru.recurrent_states = None
    return block.linear_out(inner * outer), None


def _convolve(block, inputs: torch.Tensor, tokens: int) -> torch.Tensor:
    """Return the convolution (R, C, tokens) at the last tokens of inputs (R, C, W)."""
    if tokens == 1 and inputs.shape[2] == block.conv1d_width:  # in the form of its own code, which rounds so
        return (torch.sum(inputs * block.conv_1d.weight[:, 0], -1) + block.conv_1d.bias)[..., None]
    return block.conv_1d(inputs)[..., inputs.shape[2] - tokens : inputs.shape[2]]
