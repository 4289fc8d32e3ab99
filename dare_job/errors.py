"""The project's own errors. Each message names what is wrong, its value and the fix.

The command line turns an error into one line on standard error and the class's exit code.
"""

from collections.abc import Sequence


class DareJobError(Exception):
    """Base of every error that a user can cause or mend."""

    exit_code = 1


class ConfigError(DareJobError):
    """A setting, flag or template is unknown or impossible."""

    exit_code = 2


class ThresholdError(DareJobError):
    """More rows failed, or more texts are bad, than a limit allows: nothing was published."""

    exit_code = 3


class DataError(DareJobError):
    """An input file or table cannot be used."""

    exit_code = 4


class InfrastructureError(DareJobError):
    """Java, Spark, a disk or a device is missing or failed."""

    exit_code = 5


class DeviceError(InfrastructureError):
    """A device has failed; ``ids`` are those of the rows that were on it, where the worker itself asks."""

    def __init__(self, message: str, ids: Sequence[str] = ()):
        super().__init__(message)
        self.ids = list(ids)


class ModelError(DareJobError):
    """The model cannot be loaded or its architecture is not supported."""

    exit_code = 6


class PoolError(DareJobError):
    """A pool file is damaged, of another version, or built with another tokenizer."""

    exit_code = 7


class RowError(DareJobError):
    """One row cannot be written; it becomes a row with ``error`` set and costs no other row."""


UNEXPECTED = 1


def exit_code(error: BaseException) -> int:
    """The command's exit code where it ends with an exception."""
    if isinstance(error, DareJobError):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, KeyboardInterrupt):
        return 130
    if type(error).__name__ == "PoolError":  # the package `pools` knows none of our classes
        return PoolError.exit_code
    return UNEXPECTED


def describe(error: Exception) -> str:
    """One line for a row's ``error`` column."""
    first = str(error).strip().splitlines()
    if isinstance(error, RowError):
        return str(error)
    return f"{type(error).__name__}: {first[0]}" if first else type(error).__name__
