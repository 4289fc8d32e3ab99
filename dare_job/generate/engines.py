"""The device of a worker, its failures, and its draft model."""

import socket
from collections.abc import Sequence
from functools import lru_cache

from dare_job.decode.model import failures
from dare_job.decode.model.target import Target
from dare_job.errors import DeviceError, describe
from dare_job.generate.task import Task
from dare_job.inference.model import load_target, memory_errors
from dare_job.spark import workers


def task_device(device: str, gpu: str | None) -> str:
    """The device to load on: ``workers.select_device``. ``gpu``: the GPU that Spark assigned to this task.

    Raises
    ------
    InfrastructureError
        The device failed.
    """
    with memory_errors("the model"):
        return workers.select_device(device, gpu)


def raise_if_device_failed(error: Exception, ids: Sequence[str]) -> None:
    """Check whether ``error`` is a device failure. ``ids`` are the rows that were being decoded.

    Raises
    ------
    DeviceError
        It is one. This ends the worker process, and Spark restarts the task in another one.
    """
    if failures.is_device_failure(error):
        raise DeviceError(f"{socket.gethostname()}: the device failed: {describe(error)}", ids) from error


def load_draft_model(task: Task) -> Target:
    """The draft model of a task, on the target's device. The first call in a process loads it."""
    settings = task.config.model
    return _load(task.draft, settings.dtype, settings.device, workers.task_gpu(), settings.trust_remote_code)


@lru_cache(maxsize=1)
def _load(folder: str, dtype: str, device: str, gpu: str | None, trust_remote_code: bool) -> Target:
    return load_target(folder, dtype, task_device(device, gpu), trust_remote_code)
