"""Joules that the GPU took, read from NVML through its C library: no package is needed."""

import ctypes
import threading
import time

import torch

_SAMPLE_S = 0.05


class Meter:
    """Counts joules of one GPU; ``source`` says how, or why it cannot."""

    def __init__(self, device: torch.device):
        self._library, self._handle, self.source = None, ctypes.c_void_p(), "no GPU: not measured"
        if device.type != "cuda":
            return
        try:
            self._open(str(torch.cuda.get_device_properties(device).uuid))
        except (OSError, AttributeError, RuntimeError) as error:
            self._library, self.source = None, f"NVML is not there ({error}): not measured"

    def _open(self, uuid: str) -> None:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
        _demand(library.nvmlInit_v2(), "nvmlInit")
        _demand(library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(self._handle)),
                "nvmlDeviceGetHandleByUUID")
        self._library = library
        try:
            self._total()
            self.source = "NVML, total energy counter"
        except RuntimeError:
            self._watts()
            self.source = f"NVML, power every {1e3 * _SAMPLE_S:.0f} ms"

    def joules(self, call) -> tuple[object, float | None]:
        """What ``call`` returns, and the energy taken meanwhile; None where it cannot be measured."""
        if self._library is None:
            return call(), None
        if "counter" in self.source:
            before = self._total()
            result = call()
            return result, self._total() - before
        return self._sampled(call)

    def _sampled(self, call):
        samples, over = [self._watts()], threading.Event()

        def sample():
            while not over.wait(_SAMPLE_S):
                samples.append(self._watts())

        thread = threading.Thread(target=sample, daemon=True)
        started = time.perf_counter()
        thread.start()
        try:
            result = call()
        finally:
            over.set()
            thread.join()
        return result, (time.perf_counter() - started) * sum(samples) / len(samples)

    def _total(self) -> float:
        value = ctypes.c_ulonglong()
        _demand(self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle, ctypes.byref(value)),
                "nvmlDeviceGetTotalEnergyConsumption")
        return value.value / 1e3

    def _watts(self) -> float:
        value = ctypes.c_uint()
        _demand(self._library.nvmlDeviceGetPowerUsage(self._handle, ctypes.byref(value)),
                "nvmlDeviceGetPowerUsage")
        return value.value / 1e3


def _demand(code: int, name: str) -> None:
    if code:
        raise RuntimeError(f"{name} answers {code}")
