"""The commands under ``dare-job bench``: what the figures in the documents come from.

Each prints tables as it goes and ends standard output with one JSON object.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from dare_job import cli_options as options

app = typer.Typer(no_args_is_help=True, help="Measure: the figures of the README and docs/benchmarks.md.")


@app.callback()
def bench() -> None:
    """Measure: the figures of the README and docs/benchmarks.md."""


@app.command()
def budget(
    text: options.Text, column: options.Column, tokenizer: options.Tokenizer,
    latency: Annotated[list[Path], typer.Option(
        "--latency", help="Latency curve, as in conf/latency or of `tune --save-latency`; repeatable.")],
    id_column: options.IdColumn = None, held_out: options.HeldOut = 500,
    batch: Annotated[str, typer.Option("--batch", help="Batch sizes.")] = "1,2,4,8,16,32,64,128,256",
    nodes: Annotated[str, typer.Option(
        "--nodes", help="Fixed budgets to compare with; 0 is plain decoding.")] = "0,1,2,4,8,16,32,64",
) -> None:
    """Replay recorded texts in batches: the scheduler's node budgets against every row's having the same.

    What is accepted follows the texts; what a step costs follows the latency curves, with drafting added as
    timed here. The last line of standard output is one JSON object.
    """
    from dare_job.bench.budget import Options, run

    batches, fixed = options.numbers("--batch", batch), options.numbers("--nodes", nodes)
    print(json.dumps(run(Options(text, column, tokenizer, id_column, held_out, curves=latency,
                                 batches=batches, nodes=fixed))), flush=True)
