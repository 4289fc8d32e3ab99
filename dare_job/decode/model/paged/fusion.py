"""Kernel fusion: compile chains of small operations of a model while its graph is recorded.

If weights are read at memory bandwidth, a norm of seven kernels costs as much as a projection.
``torch.compile`` fuses norms, the product of gated feed-forwards and rotary embeddings; projections stay
with the vendor's library. Rounding may differ from the model's own code in the last bit, so float32, which
must give the text of ``generate``, is not fused.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial

import torch

from dare_job.decode.model.merged import Gated

_LOG = logging.getLogger("dare_job")
_ROTARY = "apply_rotary_pos_emb"


@contextmanager
def fused(model: torch.nn.Module) -> Iterator[None]:
    """Run a model with compiled norms, feed-forwards and rotary embeddings, if torch can compile them."""
    modules, scopes = _compilable(model)
    if not _can_compile(model.device):
        yield
        return
    originals = [(scope, getattr(scope, _ROTARY)) for scope in scopes]
    try:
        for module, own in modules.items():
            forward = type(module).forward if own is None else type(own).__call__
            module.forward = partial(_compiled(forward), own or module)
        for scope, function in originals:
            setattr(scope, _ROTARY, _compiled(function))
        yield
    finally:
        for module, own in modules.items():
            del module.forward
            if own is not None:
                module.forward = own
        for scope, function in originals:
            setattr(scope, _ROTARY, function)


def _compilable(model: torch.nn.Module) -> tuple[dict[torch.nn.Module, Gated | None], list]:
    """Return norms and gated feed-forwards with their forward function, and Python modules with rotary code.

    A forward function that other code replaced is left alone, unless it is that of merged projections; None:
    not replaced.
    """
    modules = {module: vars(module).get("forward") for module in model.modules()
               if isinstance(vars(module).get("forward"), Gated | None)
               and (type(module).__name__.endswith("RMSNorm") or hasattr(module, "gate_proj")
                    and hasattr(module, "up_proj") and hasattr(module, "act_fn"))}
    names = {type(module).__module__ for module in model.modules()}
    return modules, [sys.modules[name] for name in sorted(names) if hasattr(sys.modules[name], _ROTARY)]


@lru_cache(maxsize=64)
def _compiled(function):
    return torch.compile(function)  # becomes dynamic in the number of queries at the second size


@lru_cache(maxsize=2)
def _can_compile(device: torch.device) -> bool:
    """Return whether torch can compile for this device: it needs a compiler, and Triton on a GPU."""
    try:
        torch.compile(_probe)(torch.ones(8, device=device))
    except Exception as error:  # any failure: the model's own code runs instead
        why = str(error).strip().split("\n")[0]
        _LOG.warning("torch cannot compile for %s (%s): using the model's own code, slower", device, why)
        return False
    return True


def _probe(values: torch.Tensor) -> torch.Tensor:
    return values * torch.rsqrt(values.square().mean() + 1)
