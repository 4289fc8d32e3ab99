"""What an output folder can fail with that is no fault of the program: a full disk, a wrong place."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from dare_job import files, store_errors
from dare_job.errors import ConfigError, InfrastructureError
from dare_job.files import AnyPath

_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR,
         errno.ENAMETOOLONG, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ESTALE}
_JAVA = ("No space left on device", "Disk quota exceeded", "Read-only file system", "Permission denied",
         "Mkdirs failed", "Input/output error")


@contextmanager
def writing(out: AnyPath) -> Iterator[None]:
    """Around everything that writes below ``out``.

    Raises ConfigError where ``out`` is or lies below a file, InfrastructureError for what the disk refused,
    from Python or from Spark; any other error passes.
    """
    try:
        store_errors.require(out, "out")
        _require_folder(out)
        yield
    except OSError as error:
        if error.errno in _DISK or _cannot_be_made(out, error):
            reason = error.strerror or str(error)
            place = error.filename or f"output folder {out}"
            raise InfrastructureError(f"{place}: {reason}") from error
        raise
    except Exception as error:
        reason = _java_reason(error)
        if reason is None and (refused := store_errors.reason(error)):
            raise InfrastructureError(f"a store refused the job, which writes to {out}: {refused}") from error
        if reason is None:
            raise
        raise InfrastructureError(f"Spark could not write for output folder {out}: {reason}") from error


def _require_folder(out: AnyPath) -> None:
    if not files.is_local(out):
        return
    found = next((path for path in (out, *out.parents) if path.exists()), None)
    if found is not None and not found.is_dir():
        raise ConfigError(f"out = {out}: {found} is a file; name a folder (--out FOLDER)")


def _cannot_be_made(out: AnyPath, error: OSError) -> bool:
    """True where the folder itself is missing still, as below /proc, where nothing can be made."""
    if not files.is_local(out):
        return False
    return isinstance(error, FileNotFoundError) and not out.exists() and str(error.filename) in {
        str(path) for path in (out, *out.parents)}


def _java_reason(error: Exception) -> str | None:
    if type(error).__module__.split(".")[0] not in ("pyspark", "py4j"):
        return None
    return next((reason for reason in _JAVA if reason in str(error)), None)
