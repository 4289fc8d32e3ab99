"""Parquet files that are written a batch at a time."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dare_job.storage import parquet_writer as module
from dare_job.storage.parquet_writer import parquet_writer

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("name", pa.string())])


def batch(*numbers):
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int32()), "name": pa.nulls(len(numbers))})


def test_batches_are_cast_and_combined_into_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_GROUP_BYTES", batch(1, 2, 3).nbytes)
    path = tmp_path / "part.parquet"
    path.write_bytes(b"of an earlier attempt")
    with parquet_writer(path, SCHEMA) as add:
        for numbers in ((1,), (), (2, 3), (4,)):
            add(batch(*numbers))
        assert path.read_bytes() == b"of an earlier attempt"
    file = pq.ParquetFile(path)
    assert file.schema_arrow == SCHEMA and file.read()["n"].to_pylist() == [1, 2, 3, 4]
    assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [3, 1]
    assert [found.name for found in tmp_path.iterdir()] == ["part.parquet"]


def test_there_is_no_file_without_rows_or_after_an_error(tmp_path, monkeypatch):
    path = tmp_path / "part.parquet"
    with parquet_writer(path, SCHEMA) as add:
        add(batch())
    assert not path.exists()
    monkeypatch.setattr(module, "_GROUP_BYTES", 1)
    with pytest.raises(ValueError, match="broken"), parquet_writer(path, SCHEMA) as add:
        add(batch(1))
        raise ValueError("broken")
    assert not list(tmp_path.glob("[!.]*"))
