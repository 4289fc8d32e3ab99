"""Paths as Spark takes them: a folder named ``o[1]`` is that folder, not a pattern."""

import re
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession


def literal(path: Path | str) -> str:
    """The absolute path with the characters of Spark's patterns escaped."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", str(Path(path).absolute()))


def read_parquet(spark: SparkSession, *paths: Path | str) -> DataFrame:
    """The Parquet files or folders of exactly these paths, as one table."""
    return spark.read.parquet(*[literal(path) for path in paths])
