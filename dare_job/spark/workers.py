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
from pyspark.sql.types import StructType

from dare_job.errors import InfrastructureError
from dare_job.spark.environment import is_local

RESOURCE = "gpu"
_LOG = logging.getLogger("dare_job")
_NAME = "DARE_JOB_WORKERS"  # Spark does not reuse workers across different environments


def task_threads(spark) -> int:
    """Number of cores of one task: ``spark.task.cpus``, or on a local master the machine's cores per slot.

    On a local master, OMP_NUM_THREADS limits the number.
    """
    context = spark.sparkContext
    cpus = int(spark.conf.get("spark.task.cpus", "1"))
    if not is_local(context.master):
        return cpus
    share = len(os.sched_getaffinity(0)) // context.defaultParallelism
    limit = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]  # "4,2" is for nested parallel regions
    return max(cpus, min(share, int(limit)) if limit.isdigit() else share)


def warn_gpu_sharing(spark) -> None:
    """Warn about settings that make tasks share a GPU or workers load the model repeatedly."""
    executor = float(spark.conf.get("spark.executor.resource.gpu.amount", "0"))
    task = float(spark.conf.get("spark.task.resource.gpu.amount", "0"))
    if executor and not task:
        _LOG.warning("executors have GPUs but tasks request none: all tasks of a host decode on its first "
                     "GPU; set spark.task.resource.gpu.amount=1")
    elif task and task < 1:
        _LOG.warning("spark.task.resource.gpu.amount=%s: tasks share a GPU, and each loads its own copy of "
                     "the model", task)
    elif executor > task:
        _LOG.warning("an executor has %g GPUs: Spark assigns varying GPUs to a worker, which loads the "
                     "model again each time; set spark.executor.resource.gpu.amount=1 and use more "
                     "executors", executor)


def task_gpu() -> str | None:
    """Address of the first GPU that Spark assigned to the task in this process; None if there is none."""
    from pyspark import TaskContext

    context = TaskContext.get()
    resource = context.resources().get(RESOURCE) if context else None
    return resource.addresses[0] if resource and resource.addresses else None


def select_device(device: str, address: str | None) -> str:
    """Make a task's GPU the current one of this process; returns the device to load on.

    Parameters
    ----------
    device
        ``model.device``: "auto", "cpu" or "cuda".
    address
        Result of ``task_gpu``; if None, the device is unchanged.

    Raises
    ------
    InfrastructureError
        Torch does not see the assigned GPU.
    """
    if address is None or device == "cpu":
        return device
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as in nvidia-smi; CUDA reads it at the next call
    import torch

    devices = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    torch.cuda.set_device(gpu_index(address, [str(device.uuid) for device in devices],
                                    os.environ.get("CUDA_VISIBLE_DEVICES")))
    return "cuda"


def gpu_index(address: str, uuids: list[str], visible: str | None = None) -> int:
    """Index in torch of the GPU with an address.

    Parameters
    ----------
    uuids
        UUIDs of torch's devices, in torch's order.
    visible
        CUDA_VISIBLE_DEVICES, which changes the indices of torch but not those of nvidia-smi.

    Raises
    ------
    InfrastructureError
        Torch has no device with this address.
    """
    listed = [name.strip() for name in visible.split(",")] if visible else None
    if not address.isdigit():
        names = [uuid.removeprefix("GPU-") for uuid in uuids]
        if address.removeprefix("GPU-") in names:
            return names.index(address.removeprefix("GPU-"))
    elif listed is None or all(name.isdigit() for name in listed):
        index = int(address) if listed is None else listed.index(address) if address in listed else -1
        if 0 <= index < len(uuids):
            return index
    hidden = f", CUDA_VISIBLE_DEVICES is {visible}" if visible else ""
    raise InfrastructureError(
        f"Spark gave a task on {socket.gethostname()} the GPU {address}, but torch sees "
        f"{', '.join(uuids) or 'no GPU'}{hidden}: install torch with CUDA and the driver on every host, use "
        "conf/gpu_discovery.sh as the discovery script, or set model.device=cpu")


def map_in_dedicated_workers(frame: DataFrame, function: Callable, schema: StructType | str,
                             name: str = "model") -> DataFrame:
    """``frame.mapInArrow`` in Python workers that run nothing else, one per slot of an executor.

    Parameters
    ----------
    name
        Name of the loaded content; different names have different workers.
    """
    environment = frame.sparkSession.sparkContext.environment
    environment[_NAME] = name
    try:
        return frame.mapInArrow(function, schema)
    finally:
        del environment[_NAME]
