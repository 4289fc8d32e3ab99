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
        raise ConfigError(f"{flag} {text!r} is no list of numbers; write for example 0,1") from None


def command(asked: type, missed: Callable[[Any, dict], bool] = lambda asked, found: False):
    """Make a function of these options a command that prints as JSON what the function returns, if anything.

    missed: whether the command ends with exit code 1, by its options and its result
    """
    def decorate(function: Callable[[Any], dict]) -> Callable[..., None]:
        def run(given: Any) -> None:
            logging.basicConfig(level=logging.INFO, format="%(message)s")
            found = function(given)
            if found is not None:
                print(json.dumps(found), flush=True)
            if missed(given, found):
                raise typer.Exit(1)

        run.__name__, run.__doc__ = function.__name__, function.__doc__
        return takes(asked, json=False)(run)

    return decorate


def target_missed(asked: Any, found: dict) -> bool:
    """Whether a target is missed, which ``--quick`` may."""
    return not asked.quick and not all(one["met"] for one in found["targets"])
