"""What a command prints at its end: text on a terminal, one JSON object for programs."""

import io
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option(
    "--json", metavar="", help="Print JSON; the default in a pipe.")]


def prints_json(as_json: bool) -> bool:
    """Whether a command with ``--json`` prints JSON: if asked to, or if no terminal shows the output."""
    return as_json or not sys.stdout.isatty()


def print_result(as_json: bool, work: Callable[[], dict], show: Callable[[dict], None] | None = None) -> dict:
    """Run a command and print its result: JSON alone for programs, what ``show`` prints on a terminal.

    In a pipe, what the command prints while it runs goes to standard error, for a log; with ``--json`` it is
    not printed.
    """
    if not prints_json(as_json):
        result = work()
        if show:
            show(result)
        return result
    with redirect_stdout(io.StringIO() if as_json else sys.stderr):
        result = work()
    print_json(result)
    return result


def print_json(value: dict) -> None:
    """One line of JSON, after everything else that is on its way to standard output."""
    sys.stdout.flush()
    print(json.dumps(value, default=str), flush=True)


def show_values(result: Mapping, indent: str = "") -> None:
    """A result as lines of ``name: value``, nested results indented."""
    for name, value in result.items():
        if isinstance(value, Mapping) and value:
            print(f"{indent}{name.replace('_', ' ')}:")
            show_values(value, f"{indent}  ")
        else:
            print(f"{indent}{name.replace('_', ' ')}: {_value(value)}")


def _value(value) -> str:
    if isinstance(value, list):
        return ", ".join(map(_value, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else "none" if value is None else str(value)


def console():
    """A console as wide as the terminal; elsewhere wide enough that no table is cut."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    return Console(highlight=False, width=width)
