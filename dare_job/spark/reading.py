"""Tables by path: a folder named ``o[1]`` is that folder, not a pattern; URLs go their own way."""

import re
from collections.abc import Collection
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from dare_job import files
from dare_job.files import AnyPath


def literal(path: Path | str) -> str:
    """The absolute path with the characters of Spark's patterns escaped."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", str(Path(path).absolute()))


def read_parquet(spark: SparkSession, *paths: AnyPath | str, columns: Collection[str] | None = None,
                 located: bool = False) -> DataFrame:
    """The Parquet files or folders of exactly these paths, as one table.

    columns  all that are needed, where that is known: only these are read from a URL
    located  ``_metadata`` is needed: file_name and row_index
    """
    if all(map(files.is_local, map(files.path, paths))):
        return spark.read.parquet(*[literal(path) for path in paths])
    from dare_job.spark import remote

    return remote.read_parquet(spark, [files.path(path) for path in paths], columns, located)


def write_parquet(table: DataFrame, folder: AnyPath, mode: str = "error") -> None:
    """Write a table as a folder of Parquet files, or with mode "append" add it to one."""
    if files.is_local(folder):
        table.write.mode(mode).parquet(str(folder))
        return
    from dare_job.spark import remote

    remote.write_parquet(table, folder)
