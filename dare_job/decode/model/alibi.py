"""ALiBi by position in the text: BLOOM, MPT and Falcon count cache columns, which in draft trees are not
positions.

A query sees its row's text and its ancestors, whose columns ascend, so the n-th column that it sees has
position n. The biases are those of the model's own code, computed for each query in place of each row. They
replace the model's within one call of its forward function.
"""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from transformers import PreTrainedModel
from transformers.utils import ModelOutput


def by_position(model: PreTrainedModel) -> Callable[..., ModelOutput] | None:
    """Return a forward function for additive masks (R, 1, Q, L); None if ALiBi of this class is not known."""
    name = type(model).__module__.removeprefix("transformers.models.")
    forward = {"bloom.modeling_bloom": _bloom, "mpt.modeling_mpt": _mpt, "falcon.modeling_falcon": _falcon}
    return partial(forward[name], model) if name in forward else None


def _bloom(model: PreTrainedModel, attention_mask: torch.Tensor, **inputs) -> ModelOutput:
    """Its attention adds a bias (R * H, 1, L), which may as well be (R * H, Q, L)."""
    def biases(mask: torch.Tensor, heads: int, dtype: torch.dtype) -> torch.Tensor:
        return _by_query(model, mask, heads, dtype).flatten(0, 1)

    with _replaced(model.base_model, build_alibi_tensor=biases):
        return model(attention_mask=attention_mask, **inputs)


def _falcon(model: PreTrainedModel, attention_mask: torch.Tensor, position_ids: torch.Tensor,
            **inputs) -> ModelOutput:
    """Without ALiBi its attention takes a mask with any values. It then rotates, which at position 0 changes
    nothing.
    """
    config = model.config
    biases = _by_query(model, attention_mask, config.num_attention_heads, attention_mask.dtype)
    biases /= math.sqrt(config.hidden_size // config.num_attention_heads)
    mask = biases.masked_fill_(attention_mask != 0, torch.finfo(biases.dtype).min)
    with _replaced(model.base_model, use_alibi=False):
        return model(attention_mask=mask, position_ids=torch.zeros_like(position_ids), **inputs)


def _by_query(model: PreTrainedModel, mask: torch.Tensor, heads: int, dtype: torch.dtype) -> torch.Tensor:
    """Return biases (R, H, Q, L) by the model's own function, which counts the visible columns of rows."""
    rows, _, queries, columns = mask.shape
    visible = _visible(mask).reshape(rows * queries, columns).long()
    biases = sys.modules[type(model).__module__].build_alibi_tensor(visible, heads, dtype)
    return biases.view(rows, queries, heads, columns).transpose(1, 2).contiguous()


def _visible(mask: torch.Tensor) -> torch.Tensor:
    return mask == 0


def _mpt(model: PreTrainedModel, attention_mask: torch.Tensor, **inputs) -> ModelOutput:
    """Its attention takes the same biases for all rows, so it is replaced too."""
    body, places = model.base_model, _visible(attention_mask).cumsum(-1)
    slopes = -body.build_mpt_alibi_tensor(body.num_heads, 2, device=places.device)[:, :, :1]  # (H, 1, 1)
    biases = (places - places[..., -1:]) * slopes  # (R, H, Q, L)
    biases.masked_fill_(attention_mask != 0, torch.finfo(attention_mask.dtype).min)
    with ExitStack() as stack:
        for block in body.blocks:
            stack.enter_context(_replaced(block.attn, forward=partial(_attend_in_mpt, block.attn, biases)))
        return model(attention_mask=attention_mask, **inputs)


def _attend_in_mpt(module: torch.nn.Module, biases: torch.Tensor, hidden_states: torch.Tensor,
                   past_key_values, **options) -> tuple[torch.Tensor, None]:
    states = module.Wqkv(hidden_states)
    if module.clip_qkv:
        states = states.clamp(-module.clip_qkv, module.clip_qkv)
    query, key, value = states.unflatten(2, (3, module.n_heads, module.head_dim)).permute(2, 0, 3, 1, 4)
    key, value = past_key_values.update(key, value, module.layer_idx)
    scores = query @ key.mT * module.softmax_scale + biases
    out = scores.float().softmax(-1).to(value.dtype) @ value
    return module.out_proj(out.transpose(1, 2).flatten(2)), None


@contextmanager
def _replaced(module: torch.nn.Module, **attributes) -> Iterator[None]:
    """Set attributes of a module; afterwards it has its former ones, or those of its class."""
    former = {name: vars(module)[name] for name in attributes if name in vars(module)}
    vars(module).update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            del vars(module)[name]
        vars(module).update(former)
