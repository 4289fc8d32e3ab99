"""Commands of ``python -m dare_job.bench``: the measurements of the README and the documents.

Each prints tables and ends standard output with one JSON object.
"""

import importlib
import json

import typer
from typer.core import TyperGroup

# The module of each command, which has the function ``main``.
_MODULES = {
    "sample": "sampling.command", "beam": "beam.command", "recommend": "recommend.command",
    "budget": "budget", "decode": "decode.command", "dare": "dare.command", "pools": "pools.command",
    "modes": "modes", "prepacked": "prepacked", "overhead": "overhead", "waves": "waves", "growth": "growth",
    "ctr-input": "ctr_input", "train-profiles": "profiles.train",
    "train-profiles-drafter": "profiles.drafter"}


class _Commands(TyperGroup):
    """Imports the module of a command when it is asked for."""

    def list_commands(self, context) -> list[str]:
        return [*super().list_commands(context), *_MODULES]

    def get_command(self, context, name: str):
        if name not in _MODULES:
            return super().get_command(context, name)
        found = typer.Typer(add_completion=False)
        found.command(name)(importlib.import_module(f"dare_job.bench.{_MODULES[name]}").main)
        return typer.main.get_command(found)


app = typer.Typer(cls=_Commands, no_args_is_help=True,
                  help="Measure: the figures of the README and docs/figures.md.")


@app.callback()
def bench() -> None:
    """Measure the figures of the README and the documents."""


@app.command(add_help_option=False,
             context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def gpu(context: typer.Context) -> None:
    """The engine on a GPU with random weights, in one run of under 8 minutes.

    Strict equality with generate; latency curves beside the ceilings measured in the same run; text, recorded
    or made up, replayed at full cost, beside generate and generate_batch; joules per token. The last line of
    standard output is one JSON object. `python -m dare_job.bench.gpu` is the same with torch and
    transformers alone.
    """
    from dare_job.bench.gpu.command import parsed, run

    print(json.dumps(run(parsed(context.args))), flush=True)
