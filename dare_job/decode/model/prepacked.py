"""Linear layers on a CPU through oneDNN, with weights laid out for it once instead of in every forward.

For a handful of queries, which is what a token tree is, this takes about half the time of torch's default
(``bench.packing``), and from two rows on a row's result does not depend on how many others are computed with
it. A single query of a model that fits into the processor's cache is left to torch, which is faster there.
The model's own weights stay as they are, for ``generate`` and for embeddings that share them.

The copies are of the weights as they are now: weights that are changed, moved or cast afterwards need a new
Packing. A packed model can be copied; the copy is packed at its first use.
"""

from contextlib import contextmanager

import torch
from torch.nn.functional import linear

MAX_BYTES = 4 * 2**30  # of packed copies; a model with more is left alone
CACHED_BYTES = 24 * 2**20  # of weights that are taken to stay in the cache between forwards
_TYPICAL_ROWS = 16  # the layout is chosen for about so many queries; any number works
_DTYPES = (torch.float32, torch.bfloat16)


class PrepackedLayers:
    """The packed layers of one model; empty where packing is impossible or would take too much memory."""

    def __init__(self, model: torch.nn.Module):
        layers = [module for module in model.modules() if _can_prepack(module)]
        size = sum(layer.weight.nbytes for layer in layers)
        self._layers = layers if size <= MAX_BYTES and torch.backends.mkldnn.is_available() else []
        try:
            for layer in self._layers:
                layer.forward = PrepackedLinear(layer, size <= CACHED_BYTES)  # of the instance
        except (RuntimeError, AttributeError):  # a processor or a build without it
            for layer in self._layers:
                vars(layer).pop("forward", None)
            self._layers = []

    def __len__(self) -> int:
        return len(self._layers)

    @contextmanager
    def off(self):
        """Run the layers as torch has them, for comparison."""
        before = [(layer, vars(layer).get("forward")) for layer in self._layers]
        for layer, forward in before:
            if isinstance(forward, PrepackedLinear):  # not what somebody else has put there since
                del layer.forward
        try:
            yield
        finally:
            for layer, forward in before:
                if isinstance(forward, PrepackedLinear):
                    layer.forward = forward


class PrepackedLinear:
    """The forward of one linear layer on packed weights."""

    def __init__(self, layer: torch.nn.Linear, leave_single: bool):
        """leave_single: a single query is left to torch."""
        self._layer, self._leave_single = layer, leave_single
        self._operator = torch.ops.mkldnn._linear_pointwise.default
        self._weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), _TYPICAL_ROWS)

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        layer = self._layer
        if self._leave_single and values.numel() == values.shape[-1]:
            return linear(values, layer.weight, layer.bias)
        return self._operator(values, self._weight, layer.bias, "none", [], "")

    def __reduce__(self):
        return _DeferredPrepack, (self._layer, self._leave_single)


class _DeferredPrepack:
    """A copy of a ``Packed``, whose layer may still lack its weights: packs them when it is called."""

    def __init__(self, layer: torch.nn.Linear, leave_single: bool):
        self._layer, self._leave_single = layer, leave_single

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        self._layer.forward = PrepackedLinear(self._layer, self._leave_single)
        return self._layer.forward(values)


def _can_prepack(module: torch.nn.Module) -> bool:
    """A plain linear layer, perhaps packed before, whose forward nobody else has replaced."""
    replaced = vars(module).get("forward")
    ours = isinstance(replaced, PrepackedLinear | _DeferredPrepack | None)
    if type(module) is not torch.nn.Linear or not ours:
        return False
    return module.weight.device.type == "cpu" and module.weight.dtype in _DTYPES
