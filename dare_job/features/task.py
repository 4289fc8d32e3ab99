"""What travels to a worker that encodes, and the encoder that it loads: once a Python worker and device."""

import socket
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dare_job.errors import ConfigError, InfrastructureError, ModelError, describe
from dare_job.features import encoder_files
from dare_job.job import Job
from dare_job.spark import gpus, shipping
from dare_job.spark.session import is_local
from dare_job.spark.shipping import Archive
from dare_job.spark.task import threads


@dataclass(frozen=True)
class EncodeTask:
    """Plain values; equal tasks share one loaded encoder.

    folder   of the encoder, on the driver; ``archive`` where it is shipped (spark.ship)
    sha256   what its files must be on a host that is not the driver's; empty: not asked
    threads  of torch, of one worker
    """

    folder: str
    archive: Archive | None
    sha256: str
    device: str
    threads: int
    batch_size: int
    window: int | None

    @classmethod
    def of(cls, job: Job, folder: Path, sha256: str) -> "EncodeTask":
        """The task for an encoder with this fingerprint; ships it where executors may not have it."""
        settings, archive, folder = job.config.encode, None, folder.absolute()
        if shipping.wanted(job, "model"):
            archive = shipping.ship(job.spark, folder, sha256, encoder_files.files(folder))
        asked = archive is None and not is_local(job.spark.sparkContext.master)
        return cls(str(folder), archive, sha256 if asked else "", job.config.model.device,
                   threads(job), settings.batch_size, settings.window)


def loaded(task: EncodeTask):
    """In a Spark task: the encoder, on the GPU that Spark gave the task, or where model.device says."""
    return _load(task, gpus.address())


@lru_cache(maxsize=1)
def _load(task: EncodeTask, gpu: str | None):
    """Raises ModelError where this host has another encoder, ConfigError where it lacks a package."""
    host = socket.gethostname()
    folder = shipping.unpacked(task.archive) if task.archive else task.folder
    if task.sha256 and encoder_files.fingerprint(Path(folder)) != task.sha256:
        raise ModelError(f"{host} has another encoder in {folder} than the driver: copy the driver's there, "
                         "or let spark.ship=auto send it")
    try:
        import torch

        from dare_job.features.encoder import Encoder

        torch.set_num_threads(task.threads)
        device = gpus.take(task.device, gpu)
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        return Encoder(Path(folder), device, task.batch_size, task.window)
    except ImportError as error:
        raise ConfigError(f"{host} lacks {error.name}: the environment of the executors needs dare-job with "
                          "its extra encode") from error
    except (RuntimeError, MemoryError) as error:
        raise InfrastructureError(f"{host}: the encoder does not fit, or its device failed: {describe(error)}"
                                  ) from error
