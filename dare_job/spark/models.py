"""A model in a worker's memory, or the error that says what this host lacks for it."""

import socket
from pathlib import Path

from dare_job.decode import Target, memory
from dare_job.errors import InfrastructureError, describe
from dare_job.spark import gpus


def load(folder: str, dtype: str, device: str, gpu: str | None, trust_remote_code: bool) -> Target:
    """gpu: the one that Spark gave this task. Raises ModelError, and InfrastructureError where the model does
    not fit or its device failed.
    """
    try:
        return Target.load(Path(folder), dtype, gpus.take(device, gpu), trust_remote_code)
    except (RuntimeError, MemoryError) as error:
        if not memory.is_short(error) and not memory.is_device(error):
            raise
        raise InfrastructureError(
            f"{socket.gethostname()}: the model does not fit, or its device failed: {describe(error)}; give "
            "a task more memory, or a machine fewer tasks at once") from error
