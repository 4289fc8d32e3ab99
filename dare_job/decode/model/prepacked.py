"""Prepacked weights: linear layers on a CPU through oneDNN, with weights reordered once.

For a few queries, such as those of a token tree, this takes about half the time of torch's default. From two
queries on, a query's result does not depend on the number of others. A single query of a model that fits into
the processor's cache is left to torch, which is faster there. The model's own weights do not change;
``generate`` and tied embeddings use them.

Weights that are changed, moved or cast later need a new ``PrepackedLayers``. A model with prepacked layers
can be copied; the copy is prepacked on first use.
"""

from contextlib import contextmanager

import torch
from torch.nn.functional import linear

MAX_BYTES = 4 * 2**30  # of prepacked copies; larger models are not prepacked
CACHED_BYTES = 24 * 2**20  # of weights that are assumed to stay in the processor's cache
TYPICAL_ROWS = 16  # number of queries that the layout is optimized for
_DTYPES = (torch.float32, torch.bfloat16)


class PrepackedLayers:
    """The prepacked layers of a model; empty if prepacking is not supported or takes too much memory."""

    def __init__(self, model: torch.nn.Module):
        layers = [module for module in model.modules() if _can_prepack(module)]
        size = sum(layer.weight.nbytes for layer in layers)
        self._layers = layers if size <= MAX_BYTES and torch.backends.mkldnn.is_available() else []
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
        Leave a single query to torch.
    """

    def __init__(self, layer: torch.nn.Linear, leave_single: bool):
        self._layer, self._leave_single = layer, leave_single
        self._operator = torch.ops.mkldnn._linear_pointwise.default
        self._weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), TYPICAL_ROWS)

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """(..., in_features) -> (..., out_features)."""
        layer = self._layer
        if self._leave_single and values.numel() == values.shape[-1]:
            return linear(values, layer.weight, layer.bias)
        return self._operator(values, self._weight, layer.bias, "none", [], "")

    def __reduce__(self):
        return _DeferredPrepack, (self._layer, self._leave_single)


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
