"""Reads from input files, with Arrow and without Spark, the few rows that a preview needs.

The same rows as in the stage plan: each module follows the one of the same name in ``dare_job/data/readers``,
and tests compare both on the same files. Large inputs are read in batches, in bounded memory.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dare_job.config.settings import InputSettings
from dare_job.data import readers
from dare_job.data.without_spark import amazon, movielens, parquet
from dare_job.data.without_spark.source import InputTables
from dare_job.errors import DataError
from dare_job.storage import paths

_READERS = {"parquet": parquet, "movielens": movielens, "amazon": amazon}


@contextmanager
def opened(settings: InputSettings) -> Iterator[InputTables]:
    """The raw tables of ``input.path``; a zip archive is unpacked for the time of the block.

    Raises DataError if the path is missing or its format is unknown.
    """
    if not settings.path:
        raise DataError("input.path is not set: set it to a folder or file with interactions (--input PATH)")
    path = paths.path(settings.path, "input.path")
    if not path.exists():
        raise DataError(f"input.path = {path}: no such file or folder")
    with tempfile.TemporaryDirectory(prefix="dare-job-") as folder:
        unpacked = readers.unpack(path, Path(folder) / "input")
        form = settings.format if settings.format != "auto" else readers.detect_format(unpacked)
        yield _READERS[form].read(readers.single_subfolder(unpacked))
