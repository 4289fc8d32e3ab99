"""Linear layers on a CPU through oneDNN, with weights laid out for it once instead of in every forward.

For a handful of queries, which is what a token tree is, this takes about half the time of torch's default
(``bench.packing``), and a row's result does not depend on how many others are computed with it. A single
query of a model that fits into the processor's cache is left to torch, which is faster there. The model's own
weights stay as they are, for ``generate`` and for embeddings that share them.
"""

from contextlib import contextmanager
from functools import partial

import torch
from torch.nn.functional import linear

MAX_BYTES = 4 * 2**30  # of packed copies; a model with more is left alone
CACHED_BYTES = 24 * 2**20  # of weights that are taken to stay in the cache between forwards
_TYPICAL_ROWS = 16  # the layout is chosen for about so many queries; any number works
_DTYPES = (torch.float32, torch.bfloat16)


class Packing:
    """The packed layers of one model; empty where packing is impossible or would take too much memory."""

    def __init__(self, model: torch.nn.Module):
        layers = [module for module in model.modules() if _fits(module)]
        size = sum(layer.weight.nbytes for layer in layers)
        self._layers = layers if size <= MAX_BYTES and torch.backends.mkldnn.is_available() else []
        apply = _apply_to_several if size <= CACHED_BYTES else _apply
        try:
            self._forwards = [_forward(layer, apply) for layer in self._layers]
        except (RuntimeError, AttributeError):  # a processor or a build without it
            self._layers, self._forwards = [], []
        self._switch(True)

    def __len__(self) -> int:
        return len(self._layers)

    @contextmanager
    def off(self):
        """Run the layers as torch has them, for comparison."""
        self._switch(False)
        try:
            yield
        finally:
            self._switch(True)

    def _switch(self, on: bool) -> None:
        for layer, forward in zip(self._layers, self._forwards, strict=True):
            if on:
                layer.forward = forward  # of this object; the class keeps its own
            else:
                vars(layer).pop("forward", None)


def _fits(module: torch.nn.Module) -> bool:
    """A plain linear layer, perhaps packed before, whose forward nobody else has replaced."""
    replaced = vars(module).get("forward")
    if type(module) is not torch.nn.Linear or getattr(replaced, "func", replaced) not in _OURS:
        return False
    return module.weight.device.type == "cpu" and module.weight.dtype in _DTYPES


def _forward(layer: torch.nn.Linear, apply):
    """What ``layer.forward`` computes, on packed weights."""
    operators = torch.ops.mkldnn
    packed = operators._reorder_linear_weight(layer.weight.detach(), _TYPICAL_ROWS)
    return partial(apply, operators._linear_pointwise.default, packed, layer.weight, layer.bias)


def _apply(operator, packed, weight, bias, values: torch.Tensor) -> torch.Tensor:
    return operator(values, packed, bias, "none", [], "")


def _apply_to_several(operator, packed, weight, bias, values: torch.Tensor) -> torch.Tensor:
    if values.numel() == values.shape[-1]:
        return linear(values, weight, bias)
    return operator(values, packed, bias, "none", [], "")


_OURS = (None, _apply, _apply_to_several)
