"""The commands under ``dare-job bench``: what the figures in the documents come from.

Each prints tables as it goes and ends standard output with one JSON object.
"""

import typer

app = typer.Typer(no_args_is_help=True, help="Measure: the figures of the README and docs/benchmarks.md.")


@app.callback()
def bench() -> None:
    """Measure: the figures of the README and docs/benchmarks.md."""
