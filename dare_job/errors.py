"""Exceptions of the project. Each message says what is wrong, with which value, and how to fix it.

The command line prints the message on standard error and exits with the class's exit code.
"""

from collections.abc import Sequence


class DareJobError(Exception):
    """Base class of errors that a user can cause or fix."""

    exit_code = 1


class ConfigError(DareJobError):
    """A setting, option or template is unknown or invalid."""

    exit_code = 2


class ThresholdError(DareJobError):
    """More rows failed, more texts are bad, or fewer rows are in the input than a limit allows; nothing was
    published.
    """

    exit_code = 3


class DataError(DareJobError):
    """An input file or table cannot be used, the input is empty, an earlier stage has not run, the previous
    date has changed since the plan was made, or `data erase` has found something that no run wrote.
    """

    exit_code = 4


class InfrastructureError(DareJobError):
    """A disk, a device, Java, Spark or the model hub is missing or failed, or another command writes the same
    date or took its lock.
    """

    exit_code = 5


class DeviceError(InfrastructureError):
    """A device failed. ``ids`` are the rows that it was decoding, if the raising worker knows them."""

    def __init__(self, message: str, ids: Sequence[str] = ()):
        super().__init__(message)
        self.ids = list(ids)


class ModelError(DareJobError):
    """The model cannot be loaded, or the engine does not support it (also `check`)."""

    exit_code = 6


class PoolError(DareJobError):
    """A pool file is damaged, or of another version or tokenizer."""

    exit_code = 7


class RowError(DareJobError):
    """One row cannot be generated. It is written with ``error`` set; other rows are not affected."""


UNEXPECTED = 1


def exit_code(error: BaseException) -> int:
    """The command's exit code for an exception."""
    if isinstance(error, DareJobError):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, KeyboardInterrupt):
        return 130
    if type(error).__name__ == "PoolError":  # the package `pools` has its own class of this name
        return PoolError.exit_code
    return UNEXPECTED


def describe(error: Exception) -> str:
    """One line for a row's ``error`` column."""
    first = str(error).strip().splitlines()
    if isinstance(error, RowError):
        return str(error)
    return f"{type(error).__name__}: {first[0]}" if first else type(error).__name__


def install_hint(extra: str) -> str:
    """How to install an optional part of dare-job, which no package index has."""
    return f"run `make install EXTRAS={extra}` (with a wheel: pip install 'FILE.whl[{extra}]')"
