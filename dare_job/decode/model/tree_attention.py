"""Attention for token trees: compiled for few queries, else torch's fused kernel without repeated heads."""

import logging
from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from dare_job.decode.model import compiled_attention
from dare_job.decode.model.paged import attention
from dare_job.decode.model.tree import PaddedLayout

_LOG = logging.getLogger("dare_job")
NAME = "dare_tree_sdpa"
_SDPA = "sdpa"  # the only implementation that ``tree_sdpa`` replaces
_MAX_PADDING = 1.25  # of the work without; above that, a CPU computes the rows one after the other
_BLOCK = 192  # queries, of all heads of a group, that a CPU computes at once
_PACKED_LAYOUT: ContextVar[PaddedLayout | None] = ContextVar("packed_layout", default=None)


def tree_sdpa(module, query, key, value, attention_mask, scaling=None, dropout=0.0, position_bias=None,
              **kwargs):
    """query (R, H, Q, D), key and value (R, G, L, D), additive mask or None -> (R, Q, H, D).

    The mask is (R, 1, Q, L), or (R, H, Q, L) where a model adds a part of its own for each head.
    Within ``run_packed`` query is (1, H, T, D), and the result is (1, T, H, D). Within
    ``attention.over_pages`` keys and values are a pool of pages.
    Without a mask a single query sees every key, and several see each other causally (a prompt).
    ``position_bias`` (R, H, Q, L) is added to the mask.
    """
    split = attention.current()
    if split is not None:
        return split.attend(query, key, value, attention_mask, scaling, position_bias), None
    layout = _PACKED_LAYOUT.get()
    if position_bias is not None:
        if attention_mask is None and query.shape[2] > 1:
            future = torch.ones(position_bias.shape[2:], dtype=torch.bool, device=query.device).triu_(1)
            low = torch.finfo(query.dtype).min
            attention_mask = torch.zeros_like(future, dtype=query.dtype).masked_fill_(future, low)
        attention_mask = position_bias if attention_mask is None else position_bias + attention_mask
    width = query.shape[2] if layout is None else layout.width
    if compiled_attention.supports(query, key, value, attention_mask, width):
        return _attend_compiled(layout, query, key, value, attention_mask, scaling), None
    if layout is None:
        return _attend(query, key, value, attention_mask, scaling), None
    # A row alone keeps no more threads busy than it has groups of heads.
    if layout.padding > _MAX_PADDING * max(1, torch.get_num_threads() / key.shape[1]):
        return _attend_by_row(layout.parts, query, key, value, attention_mask, scaling), None
    return layout.unpad(_attend(layout.pad(query), key, value, attention_mask, scaling))[None], None


def _attend_compiled(layout, query, key, value, attention_mask, scaling):
    rows, heads, queries, dim = query.shape
    starts = np.arange(rows + 1) * queries if layout is None else layout.starts
    flat = query.transpose(1, 2).reshape(-1, heads, dim)
    return compiled_attention.attend(flat, key, value, attention_mask, scaling, starts).view(
        rows, queries, heads, dim)


def _attend(query, key, value, attention_mask, scaling):
    rows, heads, queries, dim = query.shape
    groups = key.shape[1]
    if not query.is_cuda and queries > 1:
        return _attend_in_blocks(query, key, value, attention_mask, scaling)
    # CUDA's fast kernels support either a mask or grouped queries; with both, torch would repeat the keys.
    if queries == 1 or attention_mask is not None and groups != heads:
        return _attend_folded(query, key, value, attention_mask, scaling)
    out = scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=groups != heads,
        is_causal=attention_mask is None,
    )
    return out.transpose(1, 2)


def _attend_in_blocks(query, key, value, attention_mask, scaling):
    """Attend on a CPU, some queries at a time, without the columns of later queries, which no mask shows.

    torch's kernel computes masked columns too. It takes about half the time for few queries if the heads of a
    group are queries of one head.
    """
    rows, heads, queries, _ = query.shape
    step, before = max(1, _BLOCK * key.shape[1] // heads), key.shape[2] - queries
    if queries <= step and attention_mask is not None:
        return _attend_folded(query, key, value, attention_mask, scaling)
    outputs = []
    for start in range(0, queries, step):
        end = min(queries, start + step)
        keys, values = key.narrow(2, 0, before + end), value.narrow(2, 0, before + end)
        if attention_mask is None:
            low = torch.finfo(query.dtype).min
            mask = query.new_full((1, 1, end - start, before + end), low).triu_(before + start + 1)
        else:
            mask = attention_mask[:, :, start:end, : before + end]
        outputs.append(_attend_folded(query.narrow(2, start, end - start), keys, values, mask, scaling))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)


def _attend_by_row(parts, query, key, value, attention_mask, scaling):
    """Attend from packed queries (1, H, T, D), each row to its own columns; return (1, T, H, D)."""
    _, heads, total, _ = query.shape
    out = query.new_empty(1, total, heads, value.shape[3])
    for row, (start, end, columns) in enumerate(parts):
        if end > start:
            keys, values = (states.narrow(0, row, 1).narrow(2, 0, columns) for states in (key, value))
            mask = attention_mask[row : row + 1, :, : end - start, :columns]
            out[:, start:end] = _attend(query.narrow(2, start, end - start), keys, values, mask, scaling)
    return out


def _attend_folded(query, key, value, attention_mask, scaling):
    rows, heads, queries, dim = query.shape
    groups = key.shape[1]
    if groups == heads:
        out = scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling)
        return out.transpose(1, 2)
    out = scaled_dot_product_attention(query.reshape(rows, groups, -1, dim), key, value,
                                       attn_mask=_folded_mask(attention_mask, heads, groups), scale=scaling)
    return out.reshape(rows, heads, queries, -1).transpose(1, 2)


def _folded_mask(mask: torch.Tensor | None, heads: int, groups: int) -> torch.Tensor | None:
    """Return a mask (R, 1 or H, Q, L) for the query heads of a group as queries of one head.

    A mask that all heads share stays one for all groups.
    """
    if mask is None or mask.shape[1:3] == (1, 1):
        return mask
    rows, own, queries, columns = mask.shape
    times = heads // groups
    if own == 1:
        return mask.expand(-1, times, -1, -1).reshape(rows, 1, times * queries, columns)
    return mask.reshape(rows, groups, times * queries, columns)


def original_name(model: torch.nn.Module) -> str:
    """Return the attention implementation that transformers chose for a model before ``enable``."""
    name = model.config._attn_implementation
    return _SDPA if name == NAME else name


def enable(model: torch.nn.Module) -> bool:
    """Switch a model with torch's fused attention to ``tree_sdpa``; return False for other attention."""
    if original_name(model) != _SDPA:
        return False
    if cap := getattr(model.config.get_text_config(decoder=True), "attn_logit_softcapping", None):
        _LOG.warning("%s has attn_logit_softcapping %g, which generate of this version of transformers "
                     "ignores; the engine ignores it too (transformers 5.21 and later apply that of Gemma 2)",
                     type(model).__name__, cap)
    # No mask function is registered under this name, so transformers builds no mask of its own.
    AttentionInterface.register(NAME, tree_sdpa)
    model.set_attn_implementation(NAME)
    return model.config._attn_implementation == NAME


def run_packed(layout: PaddedLayout, forward: Callable, *args, **options):
    """Run a forward function with packed queries."""
    token = _PACKED_LAYOUT.set(layout)
    try:
        return forward(*args, **options)
    finally:
        _PACKED_LAYOUT.reset(token)


@contextmanager
def original(model: torch.nn.Module, name: str):
    """Run a model with the attention implementation ``name``."""
    current = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield model
    finally:
        model.set_attn_implementation(current)
