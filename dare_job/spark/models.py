"""A model in a worker's memory, or the error that says what this host lacks for it."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dare_job.decode import Target, memory
from dare_job.errors import DeviceError, InfrastructureError, describe
from dare_job.spark import gpus


def load(folder: str, dtype: str, device: str, gpu: str | None, trust_remote_code: bool) -> Target:
    """gpu: the one that Spark gave this task. Raises ModelError, and InfrastructureError where the model does
    not fit or its device failed.
    """
    with fitting("the model"):
        return Target.load(Path(folder), dtype, gpus.take(device, gpu), trust_remote_code)


@contextmanager
def fitting(what: str) -> Iterator[None]:
    """Raise InfrastructureError where memory is too short to load something, or the device failed."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not memory.is_short(error) and not memory.is_device(error):
            raise
        raise InfrastructureError(
            f"{socket.gethostname()}: {what} does not fit, or its device failed: {describe(error)}; give "
            "a task more memory, or a machine fewer tasks at once") from error


def stop_if_device(error: Exception, ids: Sequence[str]) -> None:
    """Raise DeviceError where the device has failed, on which rows of these ids were.

    It takes its process with it: Spark starts the task anew in another.
    """
    if memory.is_device(error):
        raise DeviceError(f"{socket.gethostname()}: the device failed: {describe(error)}", ids) from error
