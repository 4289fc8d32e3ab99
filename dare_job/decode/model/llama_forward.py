"""Forward passes of Llama-like models on a CPU in few calls: prepacked linear layers and compiled functions.

transformers runs a decoder layer in some fifty calls of torch. For a token of a small model they take a fifth
of the time. Here a layer is five linear layers that also activate, multiply and add, attention, and three
compiled functions. Rounding differs from transformers', as it does between batch sizes.

Weights that are changed, moved or cast later need a new ``LlamaForward``.
"""

from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch.nn.functional import embedding

from dare_job.decode.model import tree_attention
from dare_job.decode.model.cache import host_array
from dare_job.decode.model.compiled_linear import CompiledLinear
from dare_job.decode.model.prepacked import CACHED_BYTES, MAX_BYTES, OneDnnLinear
from dare_job.decode.model.vectors import SUMS, is_fast, load, normalize, store
from pools.jit import cached

_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}  # of Qwen3
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_SILU = {"SiLU", "SiLUActivation"}
_DTYPES = (torch.float32, torch.bfloat16)
_PACKAGES = {"torch", "transformers"}


class Unsupported(Exception):
    """The model is not Llama-like."""


class LlamaForward:
    """The forward function of a model with the layers of Llama.

    Parameters
    ----------
    model : PreTrainedModel
        In float32 or bfloat16 on a CPU.

    Raises
    ------
    Unsupported
        The model has other parts or code, or is too large, or oneDNN is missing. A model can compute
        something else with the same parts, so compare the logits before use.
    """

    def __init__(self, model: torch.nn.Module):
        base = getattr(model, model.base_model_prefix, None)
        _require(model.dtype in _DTYPES and model.device.type == "cpu", "type or device")
        _require(base is not None and _children(base) == {"embed_tokens", "layers", "norm", "rotary_emb"},
                 "parts of the model")
        _require(is_fast(model.dtype) or torch.backends.mkldnn.is_available(), "oneDNN")
        _require(all(type(module).__module__.split(".")[0] in _PACKAGES for module in model.modules()),
                 "code outside transformers, whose forward functions may do more")
        self._embedding, self._rotary = base.embed_tokens.weight, base.rotary_emb
        size = sum(module.weight.nbytes for module in model.modules() if isinstance(module, torch.nn.Linear))
        _require(size <= MAX_BYTES, "size")
        leave_single = size <= CACHED_BYTES
        self._head = _Linear(leave_single, model.get_output_embeddings(), norm=base.norm,
                             out=torch.float32)  # which verification needs
        self._layers = [_Layer(layer, leave_single) for layer in base.layers]
        self._released, self._comparisons = False, 0  # contexts of ``restored`` that are open

    def release(self) -> None:
        """Free the model's own linear weights, which are the prepacked ones' copies.

        The model then works within ``restored`` only. The weights of a small model whose single queries are
        left to torch stay, and those of an embedding that cannot be read from the compiled head.
        """
        self._released = True
        for part in self._linear_layers():
            part.release(self._embedding)

    @contextmanager
    def restored(self):
        """The model has its own linear weights, for comparison."""
        self._comparisons += 1
        if self._released and self._comparisons == 1:
            for part in self._linear_layers():
                part.restore()
        try:
            yield
        finally:
            self._comparisons -= 1
            if self._released and not self._comparisons:
                self.release()

    def _linear_layers(self) -> list["_Linear"]:
        return [self._head, *(part for layer in self._layers for part in layer.linear)]

    def __call__(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, cache,
                 logits_to_keep: torch.Tensor | None = None) -> torch.Tensor:
        """Run tokens int64 (R, Q), or packed (1, T), through the model; return logits (R, Q, V) or (1, W, V).

        Parameters
        ----------
        positions : int64, in the shape of ``ids``
        mask
            As in ``tree_attention.tree_sdpa``.
        cache : TreeCache
            Prepared for this pass.
        logits_to_keep : int64 (W,), optional
            Tokens, counted row by row, whose logits are returned.
        """
        shape = ids.shape
        hidden = self._embed(ids.reshape(-1))
        cosines, sines = (x.expand(*shape, -1).reshape(len(hidden), -1)
                          for x in self._rotary(hidden, positions))
        rotation = host_array(cosines), host_array(sines)
        for number, layer in enumerate(self._layers):
            hidden = layer(hidden, shape, rotation, mask, cache, number)
        if logits_to_keep is not None:
            return self._head(hidden[logits_to_keep])[None]
        return self._head(hidden).view(*shape, self._head.width)


    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Embed tokens (T,): (T, hidden)."""
        if self._embedding.numel():
            return embedding(ids, self._embedding)
        return self._head.features(ids)  # tied, and released


class _Layer:
    def __init__(self, layer: torch.nn.Module, leave_single: bool):
        attention, mlp = layer.self_attn, layer.mlp
        _require(_children(layer) == _LAYER and _children(attention) in (_ATTENTION, _ATTENTION | _HEAD_NORMS)
                 and _children(mlp) == _MLP and type(mlp.act_fn).__name__ in _SILU, "parts of a layer")
        self._qkv = _Linear(leave_single, attention.q_proj, attention.k_proj, attention.v_proj,
                            norm=layer.input_layernorm)
        self._out, self._down = (_Linear(leave_single, part) for part in (attention.o_proj, mlp.down_proj))
        self._gated = _Linear(leave_single, mlp.gate_proj, mlp.up_proj, norm=layer.post_attention_layernorm,
                              gated=True)
        self.linear = (self._qkv, self._out, self._gated, self._down)
        self._dim, self._scaling = attention.head_dim, attention.scaling
        self._heads = attention.q_proj.out_features // self._dim
        self._groups = attention.k_proj.out_features // self._dim
        self._norms = _head_norms(attention)

    def __call__(self, hidden, shape, rotation, mask, cache, number: int) -> torch.Tensor:
        merged = self._qkv(hidden)
        _rotate(host_array(merged), self._heads, self._groups, *rotation, *self._norms)
        states = merged.view(*shape, -1, self._dim).transpose(1, 2)  # (R, heads + 2 groups, Q, dim)
        query, key, value = states.split((self._heads, self._groups, self._groups), 1)
        keys, values = cache.update(key, value, number)
        attended, _ = tree_attention.tree_sdpa(None, query, keys, values, mask, self._scaling)
        hidden = self._out(attended.reshape(len(hidden), -1), add=hidden)
        return self._down(self._gated(hidden), add=hidden)


class _Linear:
    """Linear layers of the same input as one.

    Parameters
    ----------
    leave_single
        Leave a single query to torch, where oneDNN would take longer.
    norm
        Root mean square norm before the layers.
    gated
        The layers are a gate and what it gates.
    out
        Type of the results, where the layers are compiled; None: that of the weights.
    """

    def __init__(self, leave_single: bool, *layers: torch.nn.Module, norm: torch.nn.Module | None = None,
                 gated: bool = False, out: torch.dtype | None = None):
        _require(all(type(layer) is torch.nn.Linear and "forward" not in vars(layer)
                     and type(getattr(layer, "weight", None)) is torch.nn.Parameter for layer in layers),
                 "a linear layer")
        biases = [layer.bias for layer in layers]
        _require(len({bias is None for bias in biases}) == 1, "biases")
        weight = torch.cat([layer.weight.detach() for layer in layers])
        bias = None if biases[0] is None else torch.cat([bias.detach() for bias in biases])
        before = None if norm is None else _weight_and_epsilon(norm)
        compiled = is_fast(weight.dtype)
        self._layers, self._releases, self._norm = layers, compiled or not leave_single, None
        try:
            if compiled:
                self._run = CompiledLinear(weight, bias, gated, before, out)
            else:
                self._run, self._norm = OneDnnLinear(weight, bias, gated, leave_single), before
        except (RuntimeError, AttributeError) as error:  # by this processor or build of torch
            raise Unsupported(str(error)) from None
        self.width, self.weights = len(weight), weight.numel()
        self.features = self._run.features if compiled else None

    def release(self, embedding: torch.Tensor) -> None:
        """Free the layers' weights, but for those of an ``embedding`` that is not compiled."""
        for layer in self._layers:
            if self._releases and (layer.weight is not embedding or self.features):
                layer.weight.data = layer.weight.data.new_empty(0)

    def restore(self) -> None:
        """Give the layers their weights again."""
        parts = self._run.to_dense().split([layer.out_features for layer in self._layers])
        for layer, part in zip(self._layers, parts, strict=True):
            if not layer.weight.numel():
                layer.weight.data = part

    def __call__(self, values: torch.Tensor, add: torch.Tensor | None = None) -> torch.Tensor:
        """Return the product (T, width), or the gated half of it, plus ``add``."""
        if self._norm is not None:
            normalized = torch.empty_like(values)
            _normalize(host_array(values), *self._norm, host_array(normalized))
            values = normalized
        return self._run(values, add)


def _weight_and_epsilon(norm: torch.nn.Module) -> tuple[np.ndarray, np.float32]:
    epsilon = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    _require(epsilon is not None and "RMSNorm" in type(norm).__name__, "a norm")
    return norm.weight.detach().float().numpy(), np.float32(epsilon)


def _head_norms(attention: torch.nn.Module) -> tuple[np.ndarray, np.float32]:
    """Return the norms' weights of a query head and a key head, (2, dim) or (0, dim), and their epsilon."""
    if not hasattr(attention, "q_norm"):
        return np.empty((0, attention.head_dim), np.float32), np.float32(0)
    norms = attention.q_norm, attention.k_norm
    (query, epsilon), (key, other) = (_weight_and_epsilon(norm) for norm in norms)
    _require(query.shape == key.shape == (attention.head_dim,) and epsilon == other, "norms of heads")
    return np.stack((query, key)), epsilon


def _require(condition: bool, part: str) -> None:
    if not condition:
        raise Unsupported(part)


def _children(module: torch.nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}


@partial(cached, fastmath=SUMS)
def _normalize(hidden, weight, epsilon, out):
    """Write the normalized rows of ``hidden`` (T, D) to ``out``."""
    values = np.empty(hidden.shape[1], np.float32)
    for t in range(len(hidden)):
        load(hidden[t], values)
        normalize(values, weight, epsilon, out[t])


@partial(cached, fastmath=SUMS)
def _rotate(states, heads, groups, cosines, sines, weights, epsilon):
    """Normalize, if there are ``weights``, and rotate query heads and key groups in place.

    ``states`` (T, (heads + 2 * groups) * dim), ``cosines`` and ``sines`` (T, dim).
    """
    dim = cosines.shape[1]
    half = dim // 2
    cosine, sine = np.empty(dim, np.float32), np.empty(dim, np.float32)
    values, turned = np.empty(dim, np.float32), np.empty(dim, np.float32)
    for t in range(len(states)):
        load(cosines[t], cosine)
        load(sines[t], sine)
        for head in range(heads + groups):
            place = states[t, head * dim:(head + 1) * dim]
            load(place, values)
            if len(weights):
                normalize(values, weights[0 if head < heads else 1], epsilon, place)
            for d in range(half):
                turned[d] = -values[half + d] * sine[d]
                turned[half + d] = values[d] * sine[half + d]
            store(turned, place)
            for d in range(dim):
                values[d] *= cosine[d]
            store(values, place)
            for d in range(dim):
                values[d] += turned[d]
            store(values, place)
