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


@app.command()
def gpu(
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    small: Annotated[bool, typer.Option(
        "--small", help="Tiny shapes: exercises the command, measures nothing of interest.")] = False,
    seconds: Annotated[float, typer.Option(
        "--seconds", help="Of the whole run; what does not fit is shortened or left out.")] = 440,
    shapes: Annotated[str | None, typer.Option(
        "--shapes", show_default="llama-2-7b,qwen2.5-0.5b,mistral-7b",
        help="Models of the curves; the first one is replayed.")] = None,
    batches: Annotated[str, typer.Option(
        "--batches", help="Rows decoded together in the replay.")] = "1,32,128",
    texts: Annotated[Path | None, typer.Option(
        "--texts", help="Recorded texts, JSON lines (.gz or not); without it they are made up.")] = None,
    column: Annotated[str, typer.Option("--column", help="Field of --texts that holds the text.")] = "text",
    tokenizer: Annotated[Path | None, typer.Option(
        "--tokenizer", help="Folder with the tokenizer.json that --texts is read with.")] = None,
    prompt_tokens: Annotated[int, typer.Option(
        "--prompt-tokens", min=1, help="Tokens of each prompt.")] = 256,
    new_tokens: Annotated[int, typer.Option("--new-tokens", min=8, help="Tokens of each text.")] = 192,
) -> None:
    """The engine on a GPU with random weights, in one run of under 8 minutes.

    Strict equality with generate; latency curves beside the ceilings measured in the same run; recorded text
    replayed at full cost, beside generate and generate_batch; joules a token. The last line of standard
    output is one JSON object. `python -m dare_job.bench.gpu` is the same with torch and transformers alone.
    """
    from dare_job.bench.gpu.command import Options, run

    found = run(Options(device, small, seconds, shapes or Options.shapes, batches, texts, column, tokenizer,
                        prompt_tokens, new_tokens))
    print(json.dumps(found), flush=True)
