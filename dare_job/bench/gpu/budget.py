"""Time: of one measurement, and what is left for the others."""

import gc
import statistics
import sys
import time
from collections.abc import Callable

import torch


class Budget:
    """Seconds of the whole run. What is shortened or left out for want of time is noted for the report."""

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


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_ms(call: Callable[[], object], device: torch.device, repeats: int, warm_up: int = 2) -> float:
    """Median wall milliseconds of a call, the device's work included."""
    times = []
    for _ in range(warm_up + repeats):
        wait(device)
        started = time.perf_counter()
        call()
        wait(device)
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times[warm_up:])


def release(device: torch.device) -> None:
    """Give memory that nothing refers to any more back to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
