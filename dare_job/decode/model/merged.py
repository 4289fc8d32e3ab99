"""Merged projections: one matrix product for linear layers that read the same values.

Attention projects its input to queries, keys and values, and a gated feed-forward projects its input to a
gate and to what it gates. On a GPU, a product of a few queries is a kernel that reads a part of the weights;
merged, it is one kernel instead of two or three. The weights of the single layers become views of the merged
weight, so this takes no memory. Layers that are quantized, adapted or replaced stay as they are.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.functional import linear

_ATTENTION = ("q_proj", "k_proj", "v_proj")
_GATED = ("gate_proj", "up_proj")
_TOLERANCE = 2**-6  # relative; rounding in bfloat16 is a fourth of it


class MergedProjections:
    """The merged projections of a model.

    Parameters
    ----------
    model : Module
        Its weights must not be changed, moved or cast later.
    """

    def __init__(self, model: torch.nn.Module):
        self._forwards: dict[torch.nn.Module, object] = {}  # of modules whose ``forward`` is replaced
        for module in list(model.modules()):
            if layers := _layers(module, _ATTENTION):
                shared = _Shared(layers)
                self._forwards |= {layer: _Part(shared, number) for number, layer in enumerate(layers)}
            elif _layers(module, _GATED) and "forward" not in vars(module) and Gated.fits(module):
                self._forwards[module] = Gated(module)
        self._replace()

    def __len__(self) -> int:
        return len(self._forwards)

    def _replace(self) -> None:
        for module, forward in self._forwards.items():
            module.forward = forward

    @contextmanager
    def off(self) -> Iterator[None]:
        """Run the single layers, for comparison."""
        for module in self._forwards:
            vars(module).pop("forward", None)
        try:
            yield
        finally:
            self._replace()


class _Shared:
    """The merged weights of several layers, and the products that were computed but not yet asked for."""

    def __init__(self, layers: list[torch.nn.Linear]):
        self.weight, self.bias = _merge(layers)
        self.sizes = [layer.out_features for layer in layers]
        self.values: torch.Tensor | None = None
        self.products: dict[int, torch.Tensor] = {}


class _Part:
    """Forward function of one of the layers: the first one computes the products of all."""

    def __init__(self, shared: _Shared, number: int):
        self._shared, self._number = shared, number
        self._rows = slice(sum(shared.sizes[:number]), sum(shared.sizes[: number + 1]))

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        shared = self._shared
        if self._number == 0:
            products = linear(values, shared.weight, shared.bias).split(shared.sizes, -1)
            shared.values, shared.products = values, dict(enumerate(products))
        if values is not shared.values or self._number not in shared.products:
            bias = None if shared.bias is None else shared.bias[self._rows]
            return linear(values, shared.weight[self._rows], bias)
        product = shared.products.pop(self._number)
        if not shared.products:
            shared.values = None
        return product


class Gated:
    """Forward function of a gated feed-forward: ``down(act(gate(x)) * up(x))``."""

    def __init__(self, module: torch.nn.Module):
        self._module = module
        self._weight, self._bias = _merge(_layers(module, _GATED))

    @staticmethod
    @torch.inference_mode()
    def fits(module: torch.nn.Module) -> bool:
        """Return whether a module computes that and nothing else."""
        if not hasattr(module, "act_fn") or not hasattr(module, "down_proj"):
            return False
        gate, up = _layers(module, _GATED)
        values = torch.linspace(-2, 2, 3 * gate.in_features).view(1, 3, -1).to(gate.weight)
        try:
            expected = module(values).float()
            actual = module.down_proj(module.act_fn(gate(values)) * up(values)).float()
        except (RuntimeError, TypeError, ValueError):
            return False
        return bool((actual - expected).abs().max() <= _TOLERANCE * expected.abs().max())

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        gate, up = linear(values, self._weight, self._bias).chunk(2, -1)
        return self._module.down_proj(self._module.act_fn(gate) * up)


def _layers(module: torch.nn.Module, names: tuple[str, ...]) -> list[torch.nn.Linear]:
    """Return the layers with these names, if all are plain linear layers of the same input; else none."""
    layers = [getattr(module, name, None) for name in names]
    if not all(type(layer) is torch.nn.Linear and "forward" not in vars(layer)
               and type(layer.weight) is torch.nn.Parameter for layer in layers):
        return []
    kinds = {(layer.in_features, layer.bias is None, layer.weight.dtype, layer.weight.device)
             for layer in layers}
    equal_sizes = names is not _GATED or len({layer.out_features for layer in layers}) == 1
    return layers if len(kinds) == 1 and equal_sizes else []


def _merge(layers: list[torch.nn.Linear]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return merged weight and bias, of which the layers' own are views from now on."""
    sizes = [layer.out_features for layer in layers]
    merged: list[torch.Tensor | None] = []
    for name in ("weight", "bias"):
        parameters = [getattr(layer, name) for layer in layers]
        if parameters[0] is None:
            merged.append(None)
            continue
        merged.append(torch.cat([parameter.detach() for parameter in parameters]))
        for parameter, part in zip(parameters, merged[-1].split(sizes), strict=True):
            parameter.data = part
    return merged[0], merged[1]
