"""Forward passes of Llama-like models on a CPU in few calls: prepacked linear layers and compiled functions.

transformers runs a decoder layer in some fifty calls of torch. For a token of a small model they take a fifth
of the time. Here a layer is five linear layers that also activate, multiply and add, attention, and three
compiled functions. Rounding differs from transformers', as it does between batch sizes.

Weights that are changed, moved or cast later need a new ``LlamaForward``.
"""

import numba
import numpy as np
import torch
from torch.nn.functional import embedding, linear, silu

from dare_job.decode.model.prepacked import CACHED_BYTES, MAX_BYTES, TYPICAL_ROWS
from dare_job.decode.model.tree_attention import tree_sdpa

_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_SILU = {"SiLU", "SiLUActivation"}


class Unsupported(Exception):
    """The model is not Llama-like."""


class LlamaForward:
    """The forward function of a model with the layers of Llama.

    Parameters
    ----------
    model : PreTrainedModel
        In float32 on a CPU.

    Raises
    ------
    Unsupported
        If the model has other parts or is too large, or oneDNN is missing. A model can compute something else
        with the same parts, so compare the logits before use.
    """

    def __init__(self, model: torch.nn.Module):
        base = getattr(model, model.base_model_prefix, None)
        _require(model.dtype == torch.float32 and model.device.type == "cpu", "type or device")
        _require(base is not None and _children(base) == {"embed_tokens", "layers", "norm", "rotary_emb"},
                 "parts of the model")
        _require(torch.backends.mkldnn.is_available(), "oneDNN")
        self._embedding, self._rotary = base.embed_tokens.weight, base.rotary_emb
        size = sum(module.weight.nbytes for module in model.modules() if isinstance(module, torch.nn.Linear))
        _require(size <= MAX_BYTES, "size")
        leave_single = size <= CACHED_BYTES
        self._norm, self._head = _Norm(base.norm), _Linear(leave_single, model.get_output_embeddings())
        self._layers = [_Layer(layer, leave_single) for layer in base.layers]

    def __call__(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, cache,
                 logits_to_keep: torch.Tensor | None = None) -> torch.Tensor:
        """Run tokens int64 (R, Q), or packed (1, T), through the model; return logits (R, Q, V).

        Parameters
        ----------
        positions : Tensor, int64, in the shape of ``ids``
        mask : Tensor, optional
            As in ``tree_attention.tree_sdpa``.
        cache : TreeCache
            Prepared for this pass.
        logits_to_keep : Tensor, int64 (W,), optional
            Columns whose logits are returned.
        """
        shape = ids.shape
        hidden = embedding(ids.reshape(-1), self._embedding)
        cosines, sines = (x.expand(*shape, -1).reshape(len(hidden), -1)
                          for x in self._rotary(hidden, positions))
        rotation = cosines.numpy(), sines.numpy()
        for number, layer in enumerate(self._layers):
            hidden = layer(hidden, shape, rotation, mask, cache, number)
        if logits_to_keep is not None:
            hidden = hidden.view(*shape, -1)[:, logits_to_keep].flatten(0, 1)
        return self._head(self._norm(hidden)).view(shape[0], -1, self._head.width)


class _Layer:
    def __init__(self, layer: torch.nn.Module, leave_single: bool):
        attention, mlp = layer.self_attn, layer.mlp
        _require(_children(layer) == _LAYER and _children(attention) == _ATTENTION
                 and _children(mlp) == _MLP and type(mlp.act_fn).__name__ in _SILU, "parts of a layer")
        self._first, self._second = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        self._qkv = _Linear(leave_single, attention.q_proj, attention.k_proj, attention.v_proj)
        self._out, self._down = (_Linear(leave_single, part) for part in (attention.o_proj, mlp.down_proj))
        self._gate, self._up = (_Linear(leave_single, part) for part in (mlp.gate_proj, mlp.up_proj))
        self._dim, self._scaling = attention.head_dim, attention.scaling
        self._heads = attention.q_proj.out_features // self._dim
        self._groups = attention.k_proj.out_features // self._dim

    def __call__(self, hidden, shape, rotation, mask, cache, number: int) -> torch.Tensor:
        merged = self._qkv(self._first(hidden))
        _rotate(merged.numpy(), self._heads + self._groups, self._dim, *rotation)
        states = merged.view(*shape, -1, self._dim).transpose(1, 2)  # (R, heads + 2 groups, Q, dim)
        query, key, value = states.split((self._heads, self._groups, self._groups), 1)
        keys, values = cache.update(key, value, number)
        attended, _ = tree_sdpa(None, query, keys, values, mask, self._scaling)
        hidden = self._out(attended.reshape(len(hidden), -1), add=hidden)
        normed = self._second(hidden)
        gated = self._up(normed, multiply=self._gate(normed, activate=True))
        return self._down(gated, add=hidden)


class _Linear:
    """Linear layers of the same input as one, with prepacked weights.

    Parameters
    ----------
    leave_single : leave a single query to torch
    """

    def __init__(self, leave_single: bool, *layers: torch.nn.Module):
        _require(all(type(layer) is torch.nn.Linear and "forward" not in vars(layer) for layer in layers),
                 "a linear layer")
        weight = torch.cat([layer.weight.detach() for layer in layers])
        biases = [layer.bias for layer in layers]
        _require(len({bias is None for bias in biases}) == 1, "biases")
        self.width, self._plain = len(weight), weight if leave_single else None
        self._bias = None if biases[0] is None else torch.cat([bias.detach() for bias in biases])
        try:
            self._run = torch.ops.mkldnn._linear_pointwise.default
            self._run_binary = torch.ops.mkldnn._linear_pointwise.binary
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS)
        except (RuntimeError, AttributeError) as error:  # by this processor or build of torch
            raise Unsupported(str(error)) from None

    def __call__(self, values: torch.Tensor, activate: bool = False, add: torch.Tensor | None = None,
                 multiply: torch.Tensor | None = None) -> torch.Tensor:
        """Return the product (T, width): with SiLU, plus ``add``, or times ``multiply``."""
        if self._plain is not None and len(values) == 1:
            out = linear(values, self._plain, self._bias)
            if activate:
                return silu(out)
            return out if add is multiply else out + add if multiply is None else out * multiply
        if add is not None:
            return self._run_binary(values, add, self._weight, self._bias, "add")
        if multiply is not None:
            return self._run_binary(values, multiply, self._weight, self._bias, "mul")
        return self._run(values, self._weight, self._bias, "swish" if activate else "none", [], "")


class _Norm:
    """Root mean square norm."""

    def __init__(self, norm: torch.nn.Module):
        epsilon = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
        _require(epsilon is not None and "RMSNorm" in type(norm).__name__, "a norm")
        self._weight, self._epsilon = norm.weight.detach().numpy(), np.float32(epsilon)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(hidden)
        _normalize(hidden.numpy(), self._weight, self._epsilon, out.numpy())
        return out


def _require(condition: bool, part: str) -> None:
    if not condition:
        raise Unsupported(part)


def _children(module: torch.nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}


@numba.njit(cache=True, fastmath=True)
def _normalize(hidden, weight, epsilon, out):
    """Write the normalized rows of ``hidden`` (T, D) to ``out``."""
    width = hidden.shape[1]
    for t in range(len(hidden)):
        total = np.float32(0)
        for d in range(width):
            total += hidden[t, d] * hidden[t, d]
        scale = np.float32(1) / np.sqrt(total / np.float32(width) + epsilon)
        for d in range(width):
            out[t, d] = weight[d] * (hidden[t, d] * scale)


@numba.njit(cache=True)
def _rotate(states, heads, dim, cosines, sines):
    """Rotate the first ``heads`` vectors of each row of ``states`` (T, N * dim) in place."""
    half = dim // 2
    for t in range(len(states)):
        for head in range(heads):
            start = head * dim
            for d in range(half):
                first, second = states[t, start + d], states[t, start + half + d]
                states[t, start + d] = first * cosines[t, d] - second * sines[t, d]
                states[t, start + half + d] = second * cosines[t, half + d] + first * sines[t, half + d]
