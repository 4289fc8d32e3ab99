"""Writes a Parquet file from batches, atomically."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from dare_job.storage import paths
from dare_job.storage.paths import AnyPath

_GROUP_BYTES = 64 << 20


@contextmanager
def parquet_writer(path: AnyPath, schema: pa.Schema) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Yield a function that adds a batch to the file, which appears, complete, after the block.

    Batches are combined into row groups of about 64 MiB, and cast to the schema. There is no file if no batch
    has rows. A file of the same name is replaced, so that a task can be tried again.
    """
    group: list[pa.RecordBatch] = []
    size = 0
    files: list[pq.ParquetWriter] = []
    with ExitStack() as opened:
        def write() -> None:
            if not files:
                partial = f".{path.name}.{uuid.uuid4().hex}.partial"
                sink = opened.enter_context(paths.atomic_writer(path, partial))
                files.append(opened.enter_context(pq.ParquetWriter(sink, schema, compression="zstd")))
            files[0].write_table(pa.Table.from_batches(group).cast(schema))

        def add(batch: pa.RecordBatch) -> None:
            nonlocal size
            if len(batch):
                group.append(batch)
                size += batch.nbytes
                if size >= _GROUP_BYTES:
                    write()
                    group.clear()
                    size = 0

        yield add
        if group:
            write()
