"""Divides files into the tasks of Spark that read them."""

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

TASK_BYTES, _FILE_COSTS_BYTES = 128 << 20, 4 << 20  # defaults of Spark's own reader


def divide(pieces: Sequence[tuple[Any, int]], spark: SparkSession) -> list[list]:
    """Pieces of files for each task, in order: about 128 MB, or less if some task slots would have no work.

    Parameters
    ----------
    pieces
        Each with its bytes.
    """
    costs = [size + _FILE_COSTS_BYTES for _, size in pieces]
    most = min(TASK_BYTES, max(_FILE_COSTS_BYTES, sum(costs) // spark.sparkContext.defaultParallelism))
    tasks: list[list] = []
    size = most
    for (piece, _), cost in zip(pieces, costs, strict=True):
        if size >= most:
            tasks.append([])
            size = 0
        tasks[-1].append(piece)
        size += cost
    return tasks
