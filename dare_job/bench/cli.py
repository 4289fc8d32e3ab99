"""Commands of ``python -m dare_job.bench``: the measurements of the README and the documents.

The fields of a dataclass are the options of a command, except for ``gpu``. Each ends standard output with one
JSON object, except for ``roofline``, which writes files and names them.
"""

import importlib
import json
import logging
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from dare_job.cli.from_dataclass import paragraphs, takes
from dare_job.config import options
from dare_job.errors import ConfigError

# The module of each command, which has the function ``main``.
_MODULES = {
    "sample": "sampling.compare", "beam": "beam.compare", "recommend": "recommend.compare",
    "budget": "budget", "decode": "decode.compare", "dare": "dare.cells", "pools": "pools.compare",
    "run-pools": "pools.of_run",
    "modes": "modes", "overhead": "overhead", "memory": "memory", "growth": "growth",
    "ctr-input": "ctr_input", "train-profiles": "profiles.train",
    "train-profiles-drafter": "profiles.drafter", "writer-texts": "profiles.writer_texts",
    "writer-claims": "profiles.claims",
    "two-date-input": "profiles.two_date_input",
    "sweep": "sweep.sweep", "hybrid": "hybrid", "layers": "layers",
    "gpu": "gpu.measure", "peers": "peers.compare_engines", "time-shares": "peers.time_shares",
    "roofline": "roofline"}
_OWN_PARSER = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


class _Commands(TyperGroup):
    """Imports the module of a command when it is run."""

    def list_commands(self, context) -> list[str]:
        return list(_MODULES)

    def get_command(self, context, name: str):
        if name not in _MODULES:
            return None
        commands = typer.Typer(add_completion=False)
        module = importlib.import_module(f"dare_job.bench.{_MODULES[name]}")
        if name == "gpu":  # reads its options with argparse, because it also runs without typer
            def gpu(context: typer.Context) -> None:
                module.measure(context.args)

            commands.command(name, help=module.HELP, context_settings=_OWN_PARSER)(gpu)
        else:
            commands.command(name, help=paragraphs(module.main), context_settings=_HELP)(module.main)
        return typer.main.get_command(commands)


_HELP = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, context_settings=_HELP)


@app.callback()
def bench() -> None:
    """Measure the figures of the README and docs/figures.md."""


def ints(flag: str, text: str) -> tuple[int, ...]:
    """Integers separated by commas.

    Raises
    ------
    ConfigError
        A word is not an integer; the message names the option.
    """
    return tuple(options.numbers(flag, text))


def floats(flag: str, text: str) -> tuple[float, ...]:
    """Numbers separated by commas.

    Raises
    ------
    ConfigError
        A word is not a number; the message names the option.
    """
    try:
        return tuple(map(float, options.words(flag, text)))
    except ValueError:
        raise ConfigError(f"{flag} {text!r} is not a list of numbers; write for example 0,1") from None


def command(kind: type, missed: Callable[[Any, dict], bool] = lambda options, result: False):
    """Make a function of these options a command that prints as JSON what the function returns, if anything.

    Parameters
    ----------
    missed
        Whether the command ends with exit code 1, by its options and its result.
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
