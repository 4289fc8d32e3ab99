"""The machine: what it is, and its ceilings, measured in the same run as what is held against them."""

import os
import platform
from dataclasses import dataclass

import numba
import numpy
import torch
import transformers

from dare_job.bench.gpu.budget import median_ms, release


@dataclass(frozen=True)
class Ceilings:
    """bandwidth: bytes a second read and written by a copy; flops: a second, of a product of matrices."""

    bandwidth: float
    flops: float

    def floor_ms(self, moved: float, computed: float) -> float:
        """What a step that moves so many bytes and computes so many FLOPs takes at least."""
        return 1e3 * max(moved / self.bandwidth, computed / self.flops)


def describe(device: torch.device) -> dict:
    found = {"device": str(device), "python": platform.python_version(), "torch": torch.__version__,
             "transformers": transformers.__version__, "numpy": numpy.__version__, "numba": numba.__version__,
             "cores": len(os.sched_getaffinity(0))}
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        found |= {"gpu": card.name, "memory_gb": round(card.total_memory / 1e9, 1),
                  "cuda": torch.version.cuda, "capability": f"{card.major}.{card.minor}"}
    return found


def ceilings(device: torch.device, small: bool) -> Ceilings:
    """A copy of 4 GB and a bfloat16 product of 8192 x 8192 matrices; ``small``: 64 MB, 256 x 256."""
    size, width = (2**26, 256) if small else (2**32, 8192)
    bandwidth, flops = _bandwidth(size, device), _flops(width, device)
    release(device)
    return Ceilings(bandwidth, flops)


def _bandwidth(size: int, device: torch.device) -> float:
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / median_ms(lambda: target.copy_(source), device, 7) * 1e3


def _flops(width: int, device: torch.device) -> float:
    left, right = (torch.randn((width, width), device=device).bfloat16() for _ in range(2))
    out = torch.empty_like(left)
    return 2 * width**3 / median_ms(lambda: torch.mm(left, right, out=out), device, 7) * 1e3
