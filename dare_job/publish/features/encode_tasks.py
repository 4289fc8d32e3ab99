"""Encodes texts in Spark tasks, which leave chunk files of finished vectors: a killed night keeps those.

    _work/dt=D/encode/<encoder>/entity=E/part-<task>-<rows>-<token>.parquet

A chunk's rows are named by their text's SHA-256, so nothing is encoded twice that is there once. The folder
goes once the features are published.

What travels to a worker that encodes, and the encoder that it loads: once a Python worker and device.
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

from dare_job.errors import ConfigError, InfrastructureError, describe
from dare_job.job import Job
from dare_job.models import files
from dare_job.observe import progress
from dare_job.publish.features import encoder_files
from dare_job.publish.features.encoder import Encoded, Encoder
from dare_job.spark import executors, shipping, workers
from dare_job.spark import workers as spark_workers
from dare_job.spark.shipping import Archive
from dare_job.spark.workers import task_threads
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath
from dare_job.tables import chunk_files


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
    task_threads: int
    batch_size: int
    window: int | None

    @classmethod
    def of(cls, job: Job, folder: Path, sha256: str) -> "EncodeTask":
        """The task for an encoder with this fingerprint; ships it where executors may not have it."""
        settings, folder = job.config.encode, folder.absolute()
        archive, expected = shipping.ship_model(job, folder, sha256, encoder_files.files)
        return cls(str(folder), archive, expected, job.config.model.device,
                   task_threads(job.spark), settings.batch_size, None)


def loaded(task: EncodeTask):
    """In a Spark task: the encoder, on the GPU that Spark gave the task, or where model.device says."""
    return _load(task, workers.task_gpu())


@lru_cache(maxsize=1)
def _load(task: EncodeTask, gpu: str | None):
    """Raises ModelError where this host has another encoder, ConfigError where it lacks a package."""
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
        return Encoder(Path(folder), device, task.batch_size, task.window)
    except ImportError as error:
        raise ConfigError(f"{host} lacks {error.name}: the environment of the executors needs dare-job with "
                          "its extra encode") from error
    except (RuntimeError, MemoryError) as error:
        raise InfrastructureError(f"{host}: the encoder does not fit, or its device failed: {describe(error)}"
                                  ) from error

CHUNK = 1024  # texts of a file; sorted by length within it

_LEAST = 64  # texts for which a task is worth loading an encoder

Batches = Iterator[pa.RecordBatch]

_STATS = pa.schema([("texts", pa.int64()), ("long", pa.int64()), ("windows", pa.int64()),
                    ("tokens", pa.int64()), ("padded", pa.int64()), ("busy_s", pa.float64()),
                    ("worker", pa.string())])


@dataclass(frozen=True)
class Stats:
    """Sums over the texts that this run encoded; ``busy_s`` without loading, ``workers`` that took part."""

    texts: int = 0
    long: int = 0
    windows: int = 0
    tokens: int = 0
    padded: int = 0
    busy_s: float = 0.0
    workers: int = 0

    def record(self) -> dict:
        """Figures of the manifest: rates of one worker, shares."""
        return {"texts": self.texts, "windows": self.windows, "tokens": self.tokens, "workers": self.workers,
                "busy_s": round(self.busy_s, 3),
                "texts_per_s": _ratio(self.texts, self.busy_s),
                "long_share": _ratio(self.long, self.texts),
                "padding_share": _ratio(self.padded - self.tokens, self.padded)}


def encode(job: Job, task: EncodeTask, texts, rows: int, folder: AnyPath) -> Stats:
    """Write chunks of a DataFrame's texts (text_sha256, knowledge), ``rows`` of them, to a folder."""
    target, slots = str(folder.resolve()), job.spark.sparkContext.defaultParallelism
    paths.make_folder(folder)

    def write(batches: Batches) -> Batches:
        yield from write_chunks(batches, task, target)

    cut = texts.repartition(max(1, min(-(-rows // _LEAST), 4 * slots)), "text_sha256")
    names = ", ".join(f"{field.name} {_SQL[field.type]}" for field in _STATS)
    begun = committed(folder)
    counted = progress.counting("encoding", rows, lambda: committed(folder) - begun)
    with counted, executors.one_line_errors():
        found = spark_workers.map_in_dedicated_workers(cut, write, names, "encoder").toArrow().to_pylist()
    sums = {name: sum(row[name] for row in found) for name in _STATS.names if name != "worker"}
    return Stats(**sums, workers=len({row["worker"] for row in found}))


_SQL = {pa.int64(): "long", pa.float64(): "double", pa.string(): "string"}


def committed(folder: AnyPath) -> int:
    """Rows of the chunks that are there, by their names."""
    return sum(int(path.name.split("-")[2]) for path in folder.glob("part-*.parquet"))


def write_chunks(batches: Batches, task: EncodeTask, folder: str) -> Batches:
    """Runs in a Spark task: a file for each ``CHUNK`` texts, and its figures."""
    from pyspark import TaskContext

    part, worker = TaskContext.get().partitionId(), f"{socket.gethostname()}:{os.getpid()}"
    for chunk in _chunks(batches):
        encoder, began = loaded(task), time.perf_counter()
        found = encoded(encoder, chunk["knowledge"].to_pylist())
        busy_s = time.perf_counter() - began
        _write(paths.path(folder), part, chunk["text_sha256"], found.vectors)
        row = {"texts": len(chunk), "long": found.long, "windows": found.windows, "tokens": found.tokens,
               "padded": found.padded, "busy_s": busy_s, "worker": worker}
        yield pa.RecordBatch.from_pylist([row], schema=_STATS)


def encoded(encoder: Encoder, texts: list[str]) -> Encoded:
    """Vectors of texts. Raises ModelError, InfrastructureError where memory is short or a device fails."""
    try:
        return encoder.encode(texts)
    except (RuntimeError, MemoryError) as error:
        raise InfrastructureError(f"{socket.gethostname()}: encoding failed: {describe(error)}; a lower "
                                  "encode.batch_size takes less memory") from error


def _chunks(batches: Batches) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        while sum(len(part) for part in waiting) >= CHUNK:
            table = pa.Table.from_batches(waiting)
            yield table[:CHUNK]
            waiting = table[CHUNK:].to_batches()
    if any(len(part) for part in waiting):
        yield pa.Table.from_batches(waiting)


def _write(folder: AnyPath, part: int, names: pa.ChunkedArray, vectors: np.ndarray) -> None:
    name = f"part-{part:05d}-{len(vectors)}-{uuid.uuid4().hex[:8]}.parquet"
    lists = pa.ListArray.from_arrays(
        pa.array(np.arange(len(vectors) + 1, dtype=np.int32) * vectors.shape[1]), pa.array(vectors.ravel()))
    chunk_files.write_table(folder / name, pa.table([names, lists], names=["text_sha256", "vector"]))


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None
