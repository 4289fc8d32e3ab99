"""Python workers of their own for what loads the model, so that a task slot never holds it twice.

Spark lends a task the Python worker of its executor that has been idle longest, and a task with several
Python steps takes several. What loads the model would by and by load it in each of them.
"""

from collections.abc import Callable

from pyspark.sql import DataFrame

_NAME = "DARE_JOB_WORKERS"  # Spark keeps the workers of another environment apart


def map_rows(frame: DataFrame, function: Callable, schema: str, name: str = "model") -> DataFrame:
    """``frame.mapInArrow`` in Python workers that run nothing else: as many an executor as it has slots.

    name  of what they load: another one has workers of its own
    """
    environment = frame.sparkSession.sparkContext.environment
    environment[_NAME] = name
    try:
        return frame.mapInArrow(function, schema)
    finally:
        del environment[_NAME]
