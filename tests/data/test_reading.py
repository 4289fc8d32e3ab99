"""Folders whose names look like patterns."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dare_job.spark.reading import read_parquet


@pytest.mark.parametrize("name", ["o[1]{x}", "a*b?", "back\\slash", "plain"])
def test_a_path_is_no_pattern(spark, tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    pq.write_table(pa.table({"x": [7]}), folder / "part-0.parquet")
    assert read_parquet(spark, folder).first()["x"] == 7
    assert read_parquet(spark, folder / "part-0.parquet").count() == 1
    read_parquet(spark, folder).write.parquet(str(folder / "again"))
    assert read_parquet(spark, folder / "again").count() == 1
