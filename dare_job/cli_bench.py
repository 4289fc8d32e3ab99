"""The commands under ``dare-job bench``: what the figures in the documents come from.

Each prints tables as it goes and ends standard output with one JSON object.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from dare_job import cli_options as options
from dare_job.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Measure: the figures of the README and docs/benchmarks.md.")


@app.callback()
def bench() -> None:
    """Measure: the figures of the README and docs/benchmarks.md."""


@app.command()
def dare(
    work: Annotated[Path, typer.Option(
        "--work", help="Folder for models, old text, pools and cells; a stopped run goes on there.")]
    = Path("out/bench-dare"),
    data: Annotated[str, typer.Option(
        "--data", help="ml-1m (of the folder in DARE_DATA), sample. Default: ml-1m where DARE_DATA is set, "
        "else sample.")] = "",
    prompts: Annotated[str, typer.Option(
        "--prompts", help="Prompt sets by name, and advertisement; without it all there are.")] = "",
    architectures: Annotated[str, typer.Option(
        "--architectures", help="Models; the first is that of table 2.")] = "llama,qwen2,mistral",
    batch: Annotated[str, typer.Option("--batch", help="Batch sizes.")] = "1,8",
    nodes: Annotated[str, typer.Option("--nodes", help="Draft nodes a row for each batch size.")] = "16,8",
    rows: Annotated[int, typer.Option("--rows", help="Test rows of users and of items.")] = 100,
    users: Annotated[int, typer.Option("--users", help="Users with old text.")] = 1000,
    items: Annotated[int, typer.Option("--items", help="Items with old text, of the existing half.")] = 1000,
    pool_texts: Annotated[int, typer.Option(
        "--pool-texts", help="Texts in the pool of a group, at most.")] = 500,
    steps: Annotated[int, typer.Option("--steps", help="Training steps of each architecture.")] = 100,
    repeats: Annotated[int, typer.Option("--repeats", help="Times each method runs; medians.")] = 3,
    threads: Annotated[int, typer.Option("--threads", help="torch threads, as one Spark worker has.")] = 1,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", help="Tokens of a text, at most.")] = 192,
) -> None:
    """DARE's speed tables: plain decoding, ReSD and DARE by prompt set, side and architecture.

    Trains small models, lets them write the old text of old histories and existing items, then writes test
    rows of new histories and new items by every method. The last line of standard output is one JSON object.
    """
    from dare_job.bench.dare import command, tables

    budgets, sizes = options.numbers("--nodes", nodes), options.numbers("--batch", batch)
    if len(budgets) != len(sizes):
        raise ConfigError(f"--batch {batch} and --nodes {nodes}: give as many node budgets as batch sizes")
    result = command.run(command.Options(
        work, options.words(data) or [tables.default()], options.words(prompts), options.words(architectures),
        dict(zip(sizes, budgets, strict=True)), rows, users, items, pool_texts, steps, repeats, threads,
        max_new_tokens))
    print(json.dumps(result), flush=True)
