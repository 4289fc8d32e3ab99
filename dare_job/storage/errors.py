"""Turns errors of object stores and HDFS into one line that names the setting and the fix."""

from collections.abc import Iterator
from contextlib import contextmanager

from dare_job.errors import ConfigError, InfrastructureError
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath

_PACKAGES = ("botocore", "aiobotocore", "aiohttp", "s3fs", "dare_job.storage.hdfs")


def check_access(path: AnyPath, setting: str) -> None:
    """Check with one request that this process may list a URL. Local paths are not checked.

    Raises
    ------
    ConfigError
        The bucket does not exist.
    InfrastructureError
        The store does not respond, or credentials or permissions are missing.
    """
    if paths.is_local(path):
        return
    try:
        if path.protocol == "s3":  # raises FileNotFoundError if the bucket is missing, but not for a folder
            bucket, _, key = path.path.partition("/")
            path.fs.call_s3("list_objects_v2", Bucket=bucket, Prefix=key, MaxKeys=1)
        else:
            path.fs.exists(path.path)
    except FileNotFoundError:
        bucket = path.path.split("/")[0]
        raise ConfigError(f"{setting} = {path}: there is no bucket {bucket}; create it, or name another"
                          ) from None
    except Exception as error:
        refused = store_message(error) or (str(error) if isinstance(error, OSError) else None)
        if refused is None:
            raise
        raise InfrastructureError(f"{setting} = {path} cannot be used: {refused}") from error


@contextmanager
def suppress_store_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Like ``contextlib.suppress``, for the given exceptions and all errors of stores."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, kinds) and store_message(error) is None:
            raise


def store_message(error: Exception) -> str | None:
    """The store's error message, also from a Spark task; None for errors that no store raised."""
    text = str(error)
    if type(error).__module__.split(".")[0] in ("pyspark", "py4j"):
        lines = [line.strip() for line in text.splitlines()]
        text = next((line for line in lines if line.startswith(_PACKAGES)), "")
        kind = text.partition(":")[0].rpartition(".")[2]
    else:
        kind = type(error).__name__
        if not type(error).__module__.startswith(_PACKAGES) and not isinstance(error, PermissionError):
            return None
    if not text:
        return None
    if kind in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"):
        return ("no credentials were found where this process runs: set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or give the host a role (executors need them too)")
    if isinstance(error, PermissionError):
        return f"permission denied ({text})"
    return f"{kind}: {text.partition(': ')[2] or text}" if kind not in text else text
