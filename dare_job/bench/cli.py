"""Commands of ``python -m dare_job.bench``: the measurements of the README and the documents.

Each prints tables and ends standard output with one JSON object.
"""

import importlib

import typer
from typer.core import TyperGroup

# The module of each command, which has the function ``main``.
_MODULES = {
    "sample": "sampling.command", "beam": "beam.command", "recommend": "recommend.command",
    "budget": "budget", "decode": "decode.command", "dare": "dare.command", "pools": "pools.command",
    "modes": "modes", "overhead": "overhead", "growth": "growth", "ctr-input": "ctr_input",
    "train-profiles": "profiles.train", "train-profiles-drafter": "profiles.drafter"}


class _Commands(TyperGroup):
    """Imports the module of a command when it is run."""

    def list_commands(self, context) -> list[str]:
        return list(_MODULES)

    def get_command(self, context, name: str):
        if name not in _MODULES:
            return None
        commands = typer.Typer(add_completion=False)
        commands.command(name)(importlib.import_module(f"dare_job.bench.{_MODULES[name]}").main)
        return typer.main.get_command(commands)


app = typer.Typer(cls=_Commands, no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure the figures of the README and docs/figures.md; on a GPU: python -m dare_job.bench.gpu."""
