"""Checks of the options of commands that train or measure; each error names the option."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dare_job.errors import ConfigError


def option(name: str) -> str:
    """Command-line option of a field."""
    return f"--{name.replace('_', '-')}"


def require_at_least(settings: Any, **minimums: int) -> None:
    """Check fields of settings against their minimum values.

    Raises
    ------
    ConfigError
        A value is below its minimum.
    """
    for name, bound in minimums.items():
        if getattr(settings, name) < bound:
            raise ConfigError(f"{option(name)} is {getattr(settings, name)}; it must be at least {bound}")


def require_below_one(settings: Any, *names: str) -> None:
    """Check that fields of settings are from 0 to below 1.

    Raises
    ------
    ConfigError
        A value is not in that range.
    """
    for name in names:
        if not 0 <= getattr(settings, name) < 1:
            raise ConfigError(f"{option(name)} is {getattr(settings, name):g}; it must be from 0 to below 1")


def require_each(flag: str, values: Iterable[int]) -> None:
    """Check all numbers of an option that takes any number of them.

    Raises
    ------
    ConfigError
        A number is below 1.
    """
    if (smallest := min(values, default=1)) < 1:
        raise ConfigError(f"{flag}: {smallest} is among them; each must be at least 1")


def require_heads(width: int, heads: int) -> None:
    """Check that each head has an even width, as rotary positions need.

    Raises
    ------
    ConfigError
        ``width`` is not a multiple of ``2 * heads``.
    """
    if width % (2 * heads):
        raise ConfigError(f"--width {width} is not a multiple of 2 x --heads = {2 * heads}")


def require_rate(rate: float) -> None:
    """Check a learning rate.

    Raises
    ------
    ConfigError
        The rate is not above 0 and at most 1.
    """
    if not 0 < rate <= 1:
        raise ConfigError(f"--rate is {rate:g}; it must be above 0 and at most 1")


def require_folder(flag: str, path: Path | None) -> None:
    """Check that a path is a folder or does not exist.

    Raises
    ------
    ConfigError
        The path is a file.
    """
    if path is not None and path.exists() and not path.is_dir():
        raise ConfigError(f"{flag} {path} is a file; name a folder")


def require_temperatures(flag: str, values: Iterable[float], greedy: bool = True) -> None:
    """Check temperatures; greedy: 0 is allowed.

    Raises
    ------
    ConfigError
        A temperature is invalid, or 0 although ``greedy`` is False.
    """
    from dare_job.decode.settings import Warp

    for value in values:
        try:
            Warp(value)
        except ConfigError as error:
            raise ConfigError(f"{flag}: {error}") from error
        if value == 0 and not greedy:
            raise ConfigError(f"{flag}: temperature 0 does not sample; it must be above 0")
