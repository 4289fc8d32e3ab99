"""Reports errors of writing as the project's own: a full disk, a wrong folder, lost executors."""

import errno
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import unquote

from dare_job.errors import ConfigError, DareJobError, DataError, InfrastructureError
from dare_job.spark import executors
from dare_job.spark.session import refused_resource
from dare_job.storage import errors, paths
from dare_job.storage.paths import AnyPath

_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR,
         errno.ENAMETOOLONG, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ESTALE}
_ENDS_WITHIN_S = 2.0  # a killed process closes its sockets a moment before it has ended


@contextmanager
def writing(out: AnyPath) -> Iterator[None]:
    """Use around everything that writes below ``out``. Other errors than the following pass unchanged.

    Raises
    ------
    ConfigError
        ``out`` is a file or below one.
    InfrastructureError
        The disk refused to write, Spark's Java process was killed, or executors were lost.
    DataError
        Spark found a damaged file.
    DareJobError
        The project's own error that a Spark task raised.
    """
    try:
        errors.check_access(out, "out")
        _require_folder(out)
        yield
    except DareJobError:
        raise
    except OSError as error:
        _raise_if_java_ended(error)
        if error.errno in _DISK or _cannot_be_made(out, error):
            reason = error.strerror or str(error)
            place = error.filename or f"output folder {out}"
            raise InfrastructureError(f"{place}: {reason}") from error
        raise
    except Exception as error:
        _raise_if_java_ended(error)
        of_spark = type(error).__module__.split(".")[0] in ("pyspark", "py4j")
        if of_spark:
            executors.raise_task_error(error)
            _raise_if_damaged(error)
            if reason := refused_resource(error):
                raise InfrastructureError(f"Spark could not write to {out}: {reason}") from error
        if message := errors.store_message(error):
            raise InfrastructureError(f"a store refused the job, which writes to {out}: {message}") from error
        if of_spark:
            executors.raise_if_lost(error)
        raise


def _require_folder(out: AnyPath) -> None:
    if not paths.is_local(out):
        return
    existing = next((path for path in (out, *out.parents) if path.exists()), None)
    if existing is not None and not existing.is_dir():
        raise ConfigError(f"out = {out}: {existing} is a file; name a folder (--out FOLDER)")


def _cannot_be_made(out: AnyPath, error: OSError) -> bool:
    """Whether the folder itself could not be made, as below /proc."""
    if not paths.is_local(out):
        return False
    return isinstance(error, FileNotFoundError) and not out.exists() and str(error.filename) in {
        str(path) for path in (out, *out.parents)}


def _raise_if_damaged(error: Exception) -> None:
    """Raise DataError if Spark could not read a file while it ran."""
    match = re.search(r"FAILED_READ_FILE.*?reading file (?:file:/*(?=/))?(\S+?)\.?\s", str(error))
    if match:
        raise DataError(f"{unquote(match[1])} is damaged or missing: restore it from a copy, or remove its "
                        "folder and run the command that writes it again") from error


def _raise_if_java_ended(error: Exception) -> None:
    """Raise InfrastructureError if the Java process that this process started has ended."""
    spark = sys.modules.get("pyspark.core.context")
    java = spark and getattr(spark.SparkContext._gateway, "proc", None)
    if java is None:
        return
    with suppress(subprocess.TimeoutExpired):
        code = java.wait(_ENDS_WITHIN_S)
        raise InfrastructureError(
            f"Spark's Java process has ended with {code} (-9: killed, often for its memory: "
            "spark.driver.memory in spark.conf). Finished work is kept: run the command again") from error
