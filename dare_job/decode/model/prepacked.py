"""Prepacked weights: linear layers on a CPU, compiled (``compiled_linear``) or through oneDNN.

For a few queries, such as those of a token tree, this takes about half the time of torch's default. A query's
result does not depend on the number of others; through oneDNN, from two queries on. There a single query of a
model that fits into the processor's cache is left to torch, which is faster. The model's own weights do not
change; ``generate`` and tied embeddings use them.

Weights that are changed, moved or cast later need a new ``PrepackedLayers``. A model with prepacked layers
can be copied; the copy is prepacked on first use.
"""

from contextlib import contextmanager

import torch
from torch.nn.functional import linear, silu

from dare_job.decode.model.compiled_linear import CompiledLinear
from dare_job.decode.model.vectors import is_fast

MAX_BYTES = 4 * 2**30  # of prepacked copies; larger models are not prepacked
CACHED_BYTES = 24 * 2**20  # of weights that are assumed to stay in the processor's cache
TYPICAL_ROWS = 16  # number of queries that the layout is optimized for
_DTYPES = (torch.float32, torch.bfloat16)


class PrepackedLayers:
    """The prepacked layers of a model; empty if prepacking is not supported or takes too much memory."""

    def __init__(self, model: torch.nn.Module):
        layers = [module for module in model.modules() if _can_prepack(module)]
        size = sum(layer.weight.nbytes for layer in layers)
        self._layers = layers if size <= MAX_BYTES else []
        try:
            for layer in self._layers:
                layer.forward = PrepackedLinear(layer, size <= CACHED_BYTES)  # of the instance
        except (RuntimeError, AttributeError):  # not supported by this processor or build of torch
            for layer in self._layers:
                vars(layer).pop("forward", None)
            self._layers = []

    def __len__(self) -> int:
        return len(self._layers)

    @contextmanager
    def off(self):
        """Run the original layers, for comparison."""
        before = [(layer, vars(layer).get("forward")) for layer in self._layers]
        for layer, forward in before:
            if isinstance(forward, PrepackedLinear):  # not a later replacement by other code
                del layer.forward
        try:
            yield
        finally:
            for layer, forward in before:
                if isinstance(forward, PrepackedLinear):
                    layer.forward = forward


class PrepackedLinear:
    """Forward function of a linear layer with prepacked weights.

    Parameters
    ----------
    leave_single
        Leave a single query to torch, where oneDNN would take longer.
    """

    def __init__(self, layer: torch.nn.Linear, leave_single: bool):
        self._layer, self._leave_single = layer, leave_single
        self._run = (CompiledLinear(layer.weight, layer.bias) if is_fast(layer.weight.dtype)
                     else OneDnnLinear(layer.weight, layer.bias, leave_single=leave_single))

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """(..., in_features) -> (..., out_features)."""
        if values.requires_grad:  # only torch's own function has gradients
            return linear(values, self._layer.weight, self._layer.bias)
        out = self._run(values.reshape(-1, values.shape[-1]))
        return out.view(*values.shape[:-1], out.shape[1])

    def __reduce__(self):
        return _DeferredPrepack, (self._layer, self._leave_single)


class OneDnnLinear:
    """A linear layer through oneDNN, with the interface of ``CompiledLinear`` but for the norm.

    Raises
    ------
    RuntimeError, AttributeError
        This processor or build of torch does not support it.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, gated: bool = False,
                 leave_single: bool = False):
        self._gated, self._bias = gated, None if bias is None else bias.detach()
        self._plain = weight.detach() if leave_single else None
        self._operator = torch.ops.mkldnn._linear_pointwise
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), TYPICAL_ROWS)

    def to_dense(self) -> torch.Tensor:
        """Return the weight (N, K)."""
        return self._weight.to_dense()

    def __call__(self, values: torch.Tensor, add: torch.Tensor | None = None) -> torch.Tensor:
        """(T, K) -> (T, N), or (T, N / 2) if gated; plus ``add`` of that shape."""
        if self._plain is not None and len(values) == 1:
            out = linear(values, self._plain, self._bias)
        elif add is not None and values.dtype == torch.float32:
            return self._operator.binary(values, add, self._weight, self._bias, "add")
        else:
            out = self._operator.default(values, self._weight, self._bias, "none", [], "")
        if self._gated:
            gate, gated = out.chunk(2, -1)
            out = silu(gate) * gated
        return out if add is None else out + add


class _DeferredPrepack:
    """A copied ``PrepackedLinear``. It prepacks on first use, when the copied layer has its weights."""

    def __init__(self, layer: torch.nn.Linear, leave_single: bool):
        self._layer, self._leave_single = layer, leave_single

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        self._layer.forward = PrepackedLinear(self._layer, self._leave_single)
        return self._layer.forward(values)


def remove(model: torch.nn.Module) -> None:
    """Give all linear layers of a model their own forward function again."""
    for module in model.modules():
        if isinstance(vars(module).get("forward"), PrepackedLinear | _DeferredPrepack):
            del module.forward


def _can_prepack(module: torch.nn.Module) -> bool:
    """Return whether a module is a plain linear layer whose forward function no other code replaced."""
    replaced = vars(module).get("forward")
    ours = isinstance(replaced, PrepackedLinear | _DeferredPrepack | None)
    if type(module) is not torch.nn.Linear or not ours:
        return False
    weight = getattr(module, "weight", None)  # quantized layers have others, or tensors of another class
    return type(weight) is torch.nn.Parameter and weight.device.type == "cpu" and weight.dtype in _DTYPES
