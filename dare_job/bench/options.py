"""Commands of the bench: the fields of a dataclass are their options, one JSON object ends their output."""

import json
import logging
from collections.abc import Callable
from typing import Any

import typer

from dare_job.cli.from_dataclass import takes
from dare_job.config import options
from dare_job.errors import ConfigError


def ints(flag: str, text: str) -> tuple[int, ...]:
    """Integers separated by commas. Raises ConfigError naming the option."""
    return tuple(options.numbers(flag, text))


def floats(flag: str, text: str) -> tuple[float, ...]:
    """Numbers separated by commas. Raises ConfigError naming the option."""
    try:
        return tuple(map(float, options.words(flag, text)))
    except ValueError:
        raise ConfigError(f"{flag} {text!r} is not a list of numbers; write for example 0,1") from None


def command(kind: type, missed: Callable[[Any, dict], bool] = lambda options, result: False):
    """Make a function of these options a command that prints as JSON what the function returns, if anything.

    missed: whether the command ends with exit code 1, by its options and its result
    """
    def decorate(function: Callable[[Any], dict]) -> Callable[..., None]:
        def run(options: Any) -> None:
            logging.basicConfig(level=logging.INFO, format="%(message)s")
            result = function(options)
            if result is not None:
                print(json.dumps(result), flush=True)
            if missed(options, result):
                raise typer.Exit(1)

        run.__name__, run.__doc__ = function.__name__, function.__doc__
        return takes(kind, json=False)(run)

    return decorate


def target_missed(options: Any, result: dict) -> bool:
    """Whether a target is missed, which is no failure with ``--quick``."""
    return not options.quick and not all(each["met"] for each in result["targets"])
