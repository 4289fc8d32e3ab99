"""The machine: its description, its ceilings, measured in the same run, and the time budget of the run.

Joules of the GPU are read from NVML through its C library: no package is needed.
"""

import ctypes
import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy
import torch
import transformers

from dare_job.evaluate.measured import timed


class Budget:
    """Seconds of the whole run. What is shortened or left out for lack of time is noted for the report."""

    def __init__(self, seconds: float):
        self._start, self.seconds, self.notes = time.perf_counter(), seconds, []

    @property
    def spent(self) -> float:
        return time.perf_counter() - self._start

    @property
    def left(self) -> float:
        return max(0.0, self.seconds - self.spent)

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.say(text)

    def say(self, text: str) -> None:
        """Progress, on standard error."""
        print(f"[{self.spent:5.0f} s] {text}", file=sys.stderr, flush=True)


def median_ms(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median wall-clock milliseconds of a call including the device's work, after two untimed calls."""
    return 1e3 * statistics.median([timed(call, device)[1] for _ in range(2 + repeats)][2:])


def release(device: torch.device) -> None:
    """Free the device's memory that nothing refers to."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


@dataclass(frozen=True)
class Ceilings:
    """What a device reaches.

    Attributes
    ----------
    bandwidth
        Bytes per second that it moves.
    flops
        FLOPs per second of a matrix product.
    """

    bandwidth: float
    flops: float

    def floor_ms(self, moved: float, computed: float) -> float:
        """Lower bound of the time of a step that moves so many bytes and computes so many FLOPs."""
        return 1e3 * max(moved / self.bandwidth, computed / self.flops)


def describe(device: torch.device) -> dict:
    """Device and libraries of the figures."""
    about = {"device": str(device), "python": platform.python_version(), "torch": torch.__version__,
             "transformers": transformers.__version__, "numpy": numpy.__version__, "numba": numba.__version__,
             "cores": len(os.sched_getaffinity(0))}
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        about |= {"gpu": card.name, "memory_gb": round(card.total_memory / 1e9, 1),
                  "cuda": torch.version.cuda, "capability": f"{card.major}.{card.minor}"}
    return about


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


class Meter:
    """Measures joules of one GPU; ``source`` says how, or why it cannot."""

    def __init__(self, device: torch.device):
        self._library, self._handle, self.source = None, ctypes.c_void_p(), "no GPU: not measured"
        if device.type != "cuda":
            return
        try:
            self._open(str(torch.cuda.get_device_properties(device).uuid))
            self.source = "NVML, total energy counter"
        except (OSError, AttributeError, RuntimeError) as error:
            self._library, self.source = None, f"NVML is not there ({error}): not measured"

    def _open(self, uuid: str) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
        self._call("nvmlInit_v2")
        self._call("nvmlDeviceGetHandleByUUID", name.encode(), ctypes.byref(self._handle))
        self._total()

    def joules(self, call: Callable[[], Any]) -> tuple[Any, float | None]:
        """What ``call`` returns, and the energy used meanwhile; None if it cannot be measured."""
        if self._library is None:
            return call(), None
        before = self._total()
        result = call()
        return result, self._total() - before

    def _total(self) -> float:
        millijoules = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", self._handle, ctypes.byref(millijoules))
        return millijoules.value / 1e3

    def _call(self, name: str, *arguments) -> None:
        if code := getattr(self._library, name)(*arguments):
            raise RuntimeError(f"{name} answers {code}")
