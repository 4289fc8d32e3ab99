"""Joules: what is made of NVML's answers. Functions of Python stand in for those of its library."""

from types import SimpleNamespace

import pytest
import torch

from dare_job.bench.gpu import machine, replay
from dare_job.bench.gpu.machine import Meter

CUDA = torch.device("cuda", 0)
NO_SUCH_THING = 3  # NVML_ERROR_NOT_SUPPORTED


class Library:
    """Functions of libnvidia-ml for one GPU. energy: millijoules so far, each answer in turn."""

    def __init__(self, energy=(), init: int = 0, handle: int = 0):
        self.energy, self.names = list(energy), []
        self._init, self._handle = init, handle

    def nvmlInit_v2(self) -> int:
        return self._init

    def nvmlDeviceGetHandleByUUID(self, name: bytes, handle) -> int:
        self.names.append(name)
        handle._obj.value = 17
        return self._handle

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, value) -> int:
        if handle.value != 17 or not self.energy:
            return NO_SUCH_THING
        value._obj.value = self.energy.pop(0)
        return 0


@pytest.fixture
def meter(monkeypatch):
    """Factory: a Meter of a GPU with this library."""
    def make(library, uuid: str = "ab-12") -> Meter:
        def load(name):
            assert name == "libnvidia-ml.so.1"
            if isinstance(library, Exception):
                raise library
            return library

        monkeypatch.setattr(machine.ctypes, "CDLL", load)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=uuid))
        return Meter(CUDA)
    return make


def test_the_counters_millijoules_are_joules_of_the_call(meter):
    found = meter(Library(energy=[5, 2**33 + 1_000, 2**33 + 43_500]))  # more than 32 bits hold
    assert found.source == "NVML, total energy counter"
    assert found.joules(lambda: "text") == ("text", 42.5)


@pytest.mark.parametrize("uuid", ["ab-12", "GPU-ab-12"])
def test_the_gpu_is_found_by_its_id(meter, uuid):
    library = Library(energy=[0, 0, 0])
    meter(library, uuid)
    assert library.names == [b"GPU-ab-12"]


@pytest.mark.parametrize(("library", "why"), [
    (OSError("libnvidia-ml.so.1: cannot open shared object file"), "cannot open shared object file"),
    (SimpleNamespace(), "nvmlInit_v2"),
    (Library(init=9), "nvmlInit_v2 answers 9"),
    (Library(handle=6), "nvmlDeviceGetHandleByUUID answers 6"),
    (Library(), "nvmlDeviceGetTotalEnergyConsumption answers 3"),
], ids=["no library", "no function", "no driver", "no GPU", "no reading"])
def test_where_nothing_can_be_read_the_call_runs_and_the_report_says_why(meter, library, why):
    found = meter(library)
    assert found.source.startswith("NVML is not there (") and found.source.endswith("): not measured")
    assert why in found.source
    assert found.joules(lambda: 7) == (7, None)


def test_without_a_gpu_nothing_is_loaded(monkeypatch):
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: pytest.fail("loaded"))
    found = Meter(torch.device("cpu"))
    assert found.source == "no GPU: not measured" and found.joules(lambda: 7) == (7, None)


def test_joules_are_given_by_token():
    task = SimpleNamespace(texts=[None] * 3)
    assert replay._rates(task, 400, 2.0, 50.0) == {"texts": 3, "seconds": 2.0, "tokens_per_s": 200.0,
                                              "joules_per_token": 0.125}
    assert replay._rates(task, 400, 2.0, None)["joules_per_token"] is None
