"""GPUs, threads and Python workers of Spark tasks.

A task decodes on the GPU that Spark assigned to it, independent of CUDA's device order. A GPU address is the
output of the discovery script: a UUID (``conf/gpu_discovery.sh``), or the index in ``nvidia-smi``, as Spark's
own example script prints.

Tasks that load the model run in dedicated Python workers. Otherwise Spark would reuse arbitrary idle workers
of the executor, and each of them would eventually hold a model in memory.
"""

import logging
import os
import socket
from collections.abc import Callable

from pyspark.sql import DataFrame

from dare_job.errors import InfrastructureError
from dare_job.spark.session import is_local


def task_threads(spark) -> int:
    """Cores that one task owns: spark.task.cpus, or on a local master this machine's over the slots.

    Of the latter no more than OMP_NUM_THREADS, where that is set: other work has the rest.
    """
    context = spark.sparkContext
    own = int(spark.conf.get("spark.task.cpus", "1"))
    if not is_local(context.master):
        return own
    share = len(os.sched_getaffinity(0)) // context.defaultParallelism
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]  # "4,2": of nested teams
    return max(own, min(share, int(asked)) if asked.isdigit() else share)

RESOURCE = "gpu"

_LOG = logging.getLogger("dare_job")


def warn_gpu_sharing(spark) -> None:
    """Log what makes tasks share a GPU, or workers load the model again and again."""
    executor = float(spark.conf.get("spark.executor.resource.gpu.amount", "0"))
    task = float(spark.conf.get("spark.task.resource.gpu.amount", "0"))
    if executor and not task:
        _LOG.warning("executors have GPUs but tasks ask for none: all tasks of a host decode on its first "
                     "one; set spark.task.resource.gpu.amount=1")
    elif task and task < 1:
        _LOG.warning("spark.task.resource.gpu.amount=%s: tasks share a GPU, and each loads a model of its "
                     "own there", task)
    elif executor > task:
        _LOG.warning("an executor with %g GPUs: Spark gives a worker another one from task to task, and the "
                     "model is loaded again each time; set spark.executor.resource.gpu.amount=1, and more "
                     "executors", executor)


def task_gpu() -> str | None:
    """The GPU that Spark gave the task which runs in this process, or None. Of several, the first."""
    from pyspark import TaskContext

    context = TaskContext.get()
    given = context.resources().get(RESOURCE) if context else None
    return given.addresses[0] if given and given.addresses else None


def select_device(device: str, address: str | None) -> str:
    """Make a task's GPU this process's current one; returns the device to load on.

    device   model.device: "auto", "cpu" or "cuda"
    address  as ``address()`` gives it; None: ``device`` as it is
    Raises InfrastructureError where torch does not see the GPU that Spark gave.
    """
    if address is None or device == "cpu":
        return device
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # nvidia-smi's; read when CUDA starts, at the next call
    import torch

    seen = [torch.cuda.get_device_properties(index).uuid for index in range(torch.cuda.device_count())]
    torch.cuda.set_device(gpu_index(address, [str(uuid) for uuid in seen],
                                   os.environ.get("CUDA_VISIBLE_DEVICES")))
    return "cuda"


def gpu_index(address: str, uuids: list[str], visible: str | None = None) -> int:
    """torch's index of the GPU with an address.

    uuids    those of torch's devices, in its order
    visible  CUDA_VISIBLE_DEVICES, which changes torch's numbers but not nvidia-smi's
    Raises InfrastructureError where it is none of them.
    """
    places = [place.strip() for place in visible.split(",")] if visible else None
    if not address.isdigit():
        names = [uuid.removeprefix("GPU-") for uuid in uuids]
        if address.removeprefix("GPU-") in names:
            return names.index(address.removeprefix("GPU-"))
    elif places is None or all(place.isdigit() for place in places):
        index = int(address) if places is None else places.index(address) if address in places else -1
        if 0 <= index < len(uuids):
            return index
    hidden = f", CUDA_VISIBLE_DEVICES is {visible}" if visible else ""
    raise InfrastructureError(
        f"Spark gave a task on {socket.gethostname()} the GPU {address}, but torch sees "
        f"{', '.join(uuids) or 'no GPU'}{hidden}: install CUDA's torch and the driver on every host, take "
        "conf/gpu_discovery.sh as discovery script, or set model.device=cpu")

_NAME = "DARE_JOB_WORKERS"  # Spark keeps the workers of another environment apart


def map_in_dedicated_workers(frame: DataFrame, function: Callable, schema: str,
                             name: str = "model") -> DataFrame:
    """``frame.mapInArrow`` in Python workers that run nothing else: as many an executor as it has slots.

    name  of what they load: another one has workers of its own
    """
    environment = frame.sparkSession.sparkContext.environment
    environment[_NAME] = name
    try:
        return frame.mapInArrow(function, schema)
    finally:
        del environment[_NAME]
