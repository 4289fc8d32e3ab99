"""Encodes texts in Spark tasks. The tasks commit chunk files of vectors, with which a killed run continues.

    _work/dt=D/encode/<encoder>/entity=E/part-<task>-<rows>-<token>.parquet

The key of a row is the SHA-256 of its text, so no text is encoded twice. The folder is removed when the
features are published. Each Python worker loads the encoder once.
"""

import os
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from dare_job.errors import ConfigError, InfrastructureError, describe, install_hint
from dare_job.job import Job
from dare_job.models import files
from dare_job.observe import progress
from dare_job.publish.features import encoder_files
from dare_job.publish.features.encoder import Encoded, Encoder
from dare_job.spark import executors, shipping, workers
from dare_job.spark.shipping import Archive
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath
from dare_job.tables import chunk_files


@dataclass(frozen=True)
class EncodeTask:
    """What a worker needs, as plain values; equal tasks share one loaded encoder.

    Attributes
    ----------
    folder
        Folder of the encoder on the driver; ``archive`` if it is shipped (spark.ship).
    sha256
        Fingerprint that the files on an executor must have; empty: not checked.
    threads
        Torch threads of one worker.
    """

    folder: str
    archive: Archive | None
    sha256: str
    device: str
    threads: int
    batch_size: int

    @classmethod
    def of(cls, job: Job, folder: Path, sha256: str) -> "EncodeTask":
        """The task for an encoder with this fingerprint; ships the encoder if executors may lack it."""
        settings, folder = job.config.encode, folder.absolute()
        archive, expected = shipping.ship_model(job, folder, sha256, encoder_files.files)
        return cls(str(folder), archive, expected, job.config.model.device,
                   workers.task_threads(job.spark), settings.batch_size)


def loaded(task: EncodeTask):
    """In a Spark task: the encoder, on the task's GPU or on the device of model.device.

    Raises
    ------
    ModelError
        This host has another encoder, or it cannot be loaded.
    ConfigError
        This host lacks a package.
    InfrastructureError
        The encoder does not fit into memory, its device failed, or its archive cannot be unpacked.
    """
    return _load(task, workers.task_gpu())


@lru_cache(maxsize=1)
def _load(task: EncodeTask, gpu: str | None):
    """Raises ModelError if this host has another encoder, ConfigError if it lacks a package."""
    host = socket.gethostname()
    folder = shipping.unpack_archive(task.archive) if task.archive else task.folder
    files.require_same_files(folder, task.sha256, encoder_files.fingerprint)
    try:
        import torch

        from dare_job.publish.features.encoder import Encoder

        torch.set_num_threads(task.threads)
        device = workers.select_device(task.device, gpu)
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        return Encoder(Path(folder), device, task.batch_size)
    except ImportError as error:
        raise ConfigError(f"{host} lacks {error.name}: {install_hint('encode')}, also where executors "
                          "run") from error
    except (RuntimeError, MemoryError) as error:
        raise InfrastructureError(f"{host}: the encoder does not fit, or its device failed: {describe(error)}"
                                  ) from error


_CHUNK = 1024  # maximum texts per chunk file
_MIN_TEXTS = 64  # per task; for fewer, loading the encoder takes too long

Batches = Iterator[pa.RecordBatch]

# Statistics of a chunk file.
_STATS = pa.schema([("texts", pa.int64()), ("long", pa.int64()), ("windows", pa.int64()),
                    ("tokens", pa.int64()), ("padded", pa.int64()), ("busy_s", pa.float64()),
                    ("worker", pa.string())])


def encode(job: Job, task: EncodeTask, texts, rows: int, folder: AnyPath) -> dict:
    """Write chunk files of a DataFrame's ``rows`` texts (text_sha256, knowledge) to a folder.

    Returns ``record``.
    """
    target, slots = str(folder.resolve()), job.spark.sparkContext.defaultParallelism
    paths.make_folder(folder)
    parts = texts.repartition(max(1, min(-(-rows // _MIN_TEXTS), 4 * slots)), "text_sha256")
    before = committed(folder)
    counted = progress.counting("encoding", rows, lambda: committed(folder) - before)
    with counted, executors.one_line_errors():
        chunks = workers.map_in_dedicated_workers(parts, lambda batches: write_chunks(batches, task, target),
                                                  from_arrow_schema(_STATS), "encoder").toArrow()
    return record(chunks.to_pylist())


def record(chunks: list[dict]) -> dict:
    """The manifest entries about chunks that were encoded now; rates are per worker."""
    sums = {name: sum(chunk[name] for chunk in chunks) for name in _STATS.names if name != "worker"}
    return {**{name: sums[name] for name in ("texts", "windows", "tokens")},
            "workers": len({chunk["worker"] for chunk in chunks}), "busy_s": round(sums["busy_s"], 3),
            "texts_per_s": _ratio(sums["texts"], sums["busy_s"]),
            "long_share": _ratio(sums["long"], sums["texts"]),
            "padding_share": _ratio(sums["padded"] - sums["tokens"], sums["padded"])}


def committed(folder: AnyPath) -> int:
    """Number of rows in the chunk files of a folder, read from the file names."""
    return sum(int(path.name.split("-")[2]) for path in folder.glob("part-*.parquet"))


def write_chunks(batches: Batches, task: EncodeTask, folder: str) -> Batches:
    """In a Spark task: write chunk files and yield the statistics of each (``_STATS``)."""
    from pyspark import TaskContext

    part, worker = TaskContext.get().partitionId(), f"{socket.gethostname()}:{os.getpid()}"
    chunks = (batch[start:start + _CHUNK] for batch in batches for start in range(0, len(batch), _CHUNK))
    for chunk in chunks:
        encoder, began = loaded(task), time.perf_counter()
        result = encoded(encoder, chunk["knowledge"].to_pylist())
        busy_s = time.perf_counter() - began
        _write(paths.path(folder), part, chunk["text_sha256"], result.vectors)
        statistics = {"texts": len(chunk), "long": result.long, "windows": result.windows,
                      "tokens": result.tokens, "padded": result.padded, "busy_s": busy_s, "worker": worker}
        yield pa.RecordBatch.from_pylist([statistics], schema=_STATS)


def encoded(encoder: Encoder, texts: list[str]) -> Encoded:
    """Encode texts, in their order.

    Raises
    ------
    ModelError
        As ``Encoder.encode``.
    InfrastructureError
        Memory ran out, or the device failed.
    """
    try:
        return encoder.encode(texts)
    except (RuntimeError, MemoryError) as error:
        raise InfrastructureError(f"{socket.gethostname()}: encoding failed: {describe(error)}; lower "
                                  "encode.batch_size to use less memory") from error


def _write(folder: AnyPath, part: int, names: pa.Array, vectors: np.ndarray) -> None:
    name = f"part-{part:05d}-{len(vectors)}-{uuid.uuid4().hex[:8]}.parquet"
    lists = pa.ListArray.from_arrays(
        pa.array(np.arange(len(vectors) + 1, dtype=np.int32) * vectors.shape[1]), pa.array(vectors.ravel()))
    chunk_files.write_table(folder / name, pa.table([names, lists], names=["text_sha256", "vector"]))


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None
