"""Starting weights that can already copy: induction heads (Olsson et al., arXiv:2209.11895) put in by hand.

A small model finds the two-layer circuit "look for an earlier place that follows the same token, copy from
there" only after many millions of tokens, and no title is right before. Here layer 0 starts with
heads that look back by 1, 2, 3 tokens and write the token there into the residual stream; layer 1 starts
with heads that match the current token with what was written 1, 2, 3 tokens later, and copy the token there.
Training is free to change all of it.
"""

import torch
from transformers import LlamaForCausalLM

_OFFSETS = (1, 2, 3)
_SHARPNESS = 40.0  # of the look-back heads, divided by sqrt(head size) in attention
_MATCH = 20.0  # attention logit of a matching token
_FAST_PAIRS = 10  # rotary pairs that tell neighbouring positions apart
_SLOW_PAIRS = 14  # rotary pairs that hardly turn within a few hundred tokens: they compare content
_CONSTANT = 0.5  # every embedding's last entry: position-only heads read it in place of a bias


@torch.no_grad()
def add_copy_circuit(model: LlamaForCausalLM, generator: torch.Generator) -> None:
    """Overwrite embeddings and three heads in each of the first two layers of a Llama without biases.

    Legend: H hidden size, D head size, V vocabulary. Needs two layers, more than three heads and an attention
    as wide as H with as many key as query heads.
    """
    config = model.config
    hidden, size = config.hidden_size, config.hidden_size // config.num_attention_heads
    embedding = model.model.embed_tokens.weight  # (V, H)
    embedding.copy_(torch.randn(embedding.shape, generator=generator) / hidden**0.5)
    embedding[:, -1] = _CONSTANT
    half = size // 2
    frequency = config.rope_parameters["rope_theta"] ** (-torch.arange(half) / half)  # (D / 2,) rotary speeds
    slow = torch.cat([torch.arange(half - _SLOW_PAIRS, half), torch.arange(size - _SLOW_PAIRS, size)])
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    norm = (1 + _CONSTANT**2) ** 0.5  # of an embedding; RMSNorm scales it to sqrt(H)
    seen_constant = _CONSTANT * hidden**0.5 / norm
    later_scale = hidden**0.5 / (norm**2 + len(_OFFSETS)) ** 0.5  # RMSNorm's factor in layer 1, about
    for head, offset in enumerate(_OFFSETS):
        rows = slice(head * size, (head + 1) * size)
        read = _orthonormal(hidden, len(slow), generator)  # (H, 2 * _SLOW_PAIRS) content that is passed on
        write = _orthonormal(hidden, len(slow), generator)  # where it is put
        _look_back(first, rows, offset, frequency, seen_constant)
        gain = (hidden / len(slow)) ** 0.5 * norm / hidden**0.5  # to write a vector of length 1
        first.v_proj.weight[rows] = 0
        first.v_proj.weight[rows.start + slow] = read.T
        first.o_proj.weight[:, rows] = 0
        first.o_proj.weight[:, rows.start + slow] = gain * write
        strength = (_MATCH * size**0.5) ** 0.5
        for projection, basis, length in ((second.q_proj, read, (len(slow) / hidden) ** 0.5),
                                          (second.k_proj, write, 1.0)):
            projection.weight[rows] = 0
            projection.weight[rows.start + slow] = strength / (length * later_scale) * basis.T
        copied = _orthonormal(hidden, size, generator)
        second.v_proj.weight[rows] = copied.T
        second.o_proj.weight[:, rows] = (6.0 if offset == 1 else 0.5) / later_scale * copied


def _look_back(attention: torch.nn.Module, rows: slice, offset: int, frequency: torch.Tensor,
               constant: float) -> None:
    """Queries and keys whose rotary angles agree exactly ``offset`` tokens apart, whatever the tokens are."""
    pairs = torch.arange(_FAST_PAIRS)
    half = len(frequency)
    length = _SHARPNESS**0.5 / constant
    attention.q_proj.weight[rows] = 0
    attention.k_proj.weight[rows] = 0
    attention.q_proj.weight[rows.start + pairs, -1] = length
    angle = offset * frequency[:_FAST_PAIRS]
    attention.k_proj.weight[rows.start + pairs, -1] = length * angle.cos()
    attention.k_proj.weight[rows.start + half + pairs, -1] = length * angle.sin()


def _orthonormal(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """Random (rows, columns) with orthonormal columns; the last row, of the constant input, is zero."""
    basis = torch.linalg.qr(torch.randn((rows - 1, columns), generator=generator)).Q
    return torch.cat([basis, torch.zeros(1, columns)])
