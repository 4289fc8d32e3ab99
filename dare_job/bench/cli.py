"""Commands of ``python -m dare_job.bench``: the measurements of the README and the documents.

Each prints tables and ends standard output with one JSON object.
"""

import importlib
import json
import logging
from pathlib import Path
from typing import Annotated

import typer

from dare_job.bench import cli_drafted
from dare_job.cli import options
from dare_job.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Measure: the figures of the README and docs/figures.md.")
app.add_typer(cli_drafted.app)
# Commands whose module has the function ``main``, imported only when it is needed.
_MODULES = {"modes": "modes", "prepacked": "prepacked", "overhead": "overhead", "waves": "waves",
            "growth": "growth", "ctr-input": "ctr_input", "train-profiles": "profiles.train",
            "train-profiles-drafter": "profiles.drafter"}


def with_commands(name: str | None) -> typer.Typer:
    """The application with the command ``name`` of a module, or with all where none has that name."""
    own = {command.name or command.callback.__name__ for command in
           [*app.registered_commands, *cli_drafted.app.registered_commands]}
    if name not in own:
        for each in [name] if name in _MODULES else _MODULES:
            app.command(each)(importlib.import_module(f"dare_job.bench.{_MODULES[each]}").main)
    return app


@app.callback()
def bench() -> None:
    """Measure the figures of the README and the documents."""


@app.command()
def budget(
    text: options.Text, column: options.Column, tokenizer: options.Tokenizer,
    latency: Annotated[list[Path] | None, typer.Option(
        "--latency", help="Latency curve, as in conf/latency; repeatable.")] = None,
    model: Annotated[str | None, typer.Option(
        "--model", help="Measure a curve here too: 'embedded', a folder or a hub name.")] = None,
    save_latency: Annotated[Path | None, typer.Option(
        "--save-latency", help="Write the measured curve to this file.")] = None,
    id_column: options.IdColumn = None, held_out: options.HeldOut = 500,
    batch: Annotated[str, typer.Option("--batch", help="Batch sizes.")] = "1,2,4,8,16,32,64,128,256",
    nodes: Annotated[str, typer.Option(
        "--nodes", help="Fixed budgets to compare with; 0: no drafts.")] = (
        "0,1,2,3,4,6,8,12,16,24,32,48,64,96,128,192,256"),
) -> None:
    """Replay recorded texts in batches: the draft budget against a fixed number of draft tokens per row.

    Acceptance comes from the texts; step times come from the latency curves, plus the drafting time measured
    here. The last line of standard output is one JSON object. Exit code 1 if the draft budget reaches less
    than 0.95 times the best fixed budget.
    """
    from dare_job.bench.budget import Options, run

    batches, fixed = options.numbers("--batch", batch), options.numbers("--nodes", nodes)
    result = run(Options(text, column, tokenizer, id_column, held_out, curves=latency or (), model=model,
                         save=save_latency, batches=batches, nodes=fixed))
    print(json.dumps(result), flush=True)
    if result["worst"] < result["target"]:
        raise typer.Exit(1)


@app.command()
def gpu(
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    small: Annotated[bool, typer.Option(
        "--small", help="Tiny shapes: tests the command; its measurements mean nothing.")] = False,
    seconds: Annotated[float, typer.Option(
        "--seconds", help="Time limit of the run; parts that do not fit are shortened or left out.")] = 440,
    shapes: Annotated[str | None, typer.Option(
        "--shapes", show_default="llama-2-7b,qwen2.5-0.5b,mistral-7b",
        help="Models whose latency is measured; the first one is replayed.")] = None,
    batches: Annotated[str, typer.Option(
        "--batches", help="Rows decoded together in the replay.")] = "1,32,128",
    texts: Annotated[Path | None, typer.Option(
        "--texts", help="Recorded texts as JSON lines, gzipped or not. Default: synthetic texts.")] = None,
    column: Annotated[str, typer.Option("--column", help="Field of --texts that holds the text.")] = "text",
    tokenizer: Annotated[Path | None, typer.Option(
        "--tokenizer", help="tokenizer.json, or a folder with it or with GPT-2's files, to read --texts "
                            "with.")] = None,
    prompt_tokens: Annotated[int, typer.Option(
        "--prompt-tokens", min=1, help="Tokens of each prompt.")] = 256,
    new_tokens: Annotated[int, typer.Option("--new-tokens", min=8, help="Tokens of each text.")] = 192,
) -> None:
    """The engine on a GPU with random weights, in one run of under 8 minutes.

    Strict equality with generate; latency curves beside the ceilings measured in the same run; text, recorded
    or made up, replayed at full cost, beside generate and generate_batch; joules per token. The last line of
    standard output is one JSON object. `python -m dare_job.bench.gpu` is the same with torch and
    transformers alone.
    """
    from dare_job.bench.gpu.command import Options, run

    found = run(Options(device, small, seconds, shapes or Options.shapes, batches, texts, column, tokenizer,
                        prompt_tokens, new_tokens))
    print(json.dumps(found), flush=True)


@app.command()
def decode(
    data: Annotated[Path, typer.Option(
        "--data", envvar="DARE_DATA", help="Folder with knowledge/ml1m_users_llama3chatqa.jsonl.gz and "
        "ml-1m.")],
    work: Annotated[Path | None, typer.Option(
        "--work", help="Folder that keeps the trained model and its texts for the next call; without it they "
        "are made again.")] = None,
    batch: Annotated[str, typer.Option("--batch", help="Batch sizes.")] = "1,8,32",
    nodes: Annotated[str, typer.Option(
        "--nodes", help="Draft tokens per row, one number for each batch size, for example 16,8,4. "
        "auto: chosen for each forward pass from measured latency.")] = "auto",
    rows: Annotated[int, typer.Option("--rows", help="Test users whose texts each method generates.")] = 32,
    repeats: Annotated[int, typer.Option("--repeats", help="Times that each method runs.")] = 3,
    pool: Annotated[int, typer.Option("--pool", help="Other users whose previous texts are drafts.")] = 1000,
    tokens: Annotated[int, typer.Option("--tokens", help="Maximum number of new tokens per row.")] = 256,
    architecture: Annotated[str, typer.Option(
        "--architecture", help="Architecture of the model: llama, qwen2 or gpt2.")] = "llama",
    steps: Annotated[int, typer.Option(
        "--steps", help="Training updates of 2,048 tokens.")] = 300,
    noise: Annotated[float, typer.Option(
        "--noise", help="Standard deviation, in nats, of the fixed noise on its logits that makes texts of "
        "different prompts differ; 0: none.")] = 1.1,
    seed: Annotated[int, typer.Option("--seed", help="Random seed of the model.")] = 0,
    test_users: Annotated[int, typer.Option(
        "--test-users", help="Users left out of its training; the measured rows are theirs.")] = 500,
    threads: Annotated[int, typer.Option("--threads", help="torch threads while measuring.")] = 1,
) -> None:
    """Measure every decoding method on the CPU with a model trained on real profiles.

    Trains a model of 5.5 M parameters on ML-1M profiles with titles as prompts (minutes) and generates the
    texts of an earlier date. Then generates those of the next date with `generate`, prompt lookup, the
    engine without drafts, resd, dare strict and dare relaxed. The last line is one JSON object.
    """
    from dare_job.bench.decode.command import Options, run
    from dare_job.bench.profiles.train import Settings

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    settings = Settings(architecture, steps, seed, noise, test_users)
    batches = options.numbers("--batch", batch)
    budgets = [] if nodes == "auto" else options.numbers("--nodes", nodes)
    result = run(Options(data, work, tuple(batches), tuple(budgets), rows, repeats, pool, tokens, settings,
                         threads))
    print(json.dumps(result), flush=True)


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
    nodes: Annotated[str, typer.Option("--nodes", help="Draft tokens per row for each batch size.")] = "16,8",
    rows: Annotated[int, typer.Option("--rows", help="Test rows of users and of items.")] = 100,
    users: Annotated[int, typer.Option("--users", help="Users with old text.")] = 1000,
    items: Annotated[int, typer.Option("--items", help="Items with old text, of the existing half.")] = 1000,
    pool_texts: Annotated[int, typer.Option(
        "--pool-texts", help="Maximum number of texts in the pool of a group.")] = 500,
    steps: Annotated[int, typer.Option("--steps", help="Training steps of each architecture.")] = 100,
    repeats: Annotated[int, typer.Option("--repeats", help="Times each method runs; medians.")] = 3,
    threads: Annotated[int, typer.Option("--threads", help="torch threads, as one Spark worker has.")] = 1,
    max_new_tokens: Annotated[int, typer.Option(
        "--max-new-tokens", help="Maximum number of tokens per text.")] = 192,
) -> None:
    """DARE's speed tables: autoregressive decoding, ReSD and DARE by prompt set, side and architecture.

    Trains small models, lets them write the old text of old histories and existing items, then writes test
    rows of new histories and new items by every method. The last line of standard output is one JSON object.
    """
    from dare_job.bench.dare import command, tables

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    budgets, sizes = options.numbers("--nodes", nodes), options.numbers("--batch", batch)
    if len(budgets) != len(sizes):
        raise ConfigError(f"--batch {batch} and --nodes {nodes}: give as many node budgets as batch sizes")
    result = command.run(command.Options(
        work, options.words(data) or [tables.default()], options.words(prompts), options.words(architectures),
        dict(zip(sizes, budgets, strict=True)), rows, users, items, pool_texts, steps, repeats, threads,
        max_new_tokens))
    print(json.dumps(result), flush=True)


@app.command()
def pools(
    data: Annotated[Path, typer.Option(
        "--data", envvar="DARE_DATA", help="Folder with knowledge/ml1m_users_llama3chatqa.jsonl.gz and "
        "ml-1m.")],
    work: Annotated[Path | None, typer.Option(
        "--work", help="Folder that keeps the trained model, its texts (those of bench decode serve) and "
        "each block that is measured, so that a stopped run continues. Default: a temporary folder.")] = None,
    sizes: Annotated[str, typer.Option("--sizes", help="Texts of a pool, below --pool.")] = "50,100,250,500",
    group: Annotated[int, typer.Option(
        "--group", help="Texts of the group that is blended with a row's own text and everybody's.")] = 250,
    pool: Annotated[int, typer.Option("--pool", help="Old texts of everybody's pool.")] = 1000,
    rows: Annotated[int, typer.Option("--rows", help="Test users whose texts are decoded.")] = 20,
    repeats: Annotated[int, typer.Option("--repeats", help="Times that each is decoded.")] = 1,
    nodes: Annotated[int, typer.Option("--nodes", help="Draft tokens per forward pass.")] = 16,
    tokens: Annotated[int, typer.Option(
        "--tokens", help="New tokens of a row, at most: so many that texts may run on.")] = 384,
    steps: Annotated[int, typer.Option(
        "--steps", help="Training updates of 2,048 tokens.")] = 300,
    test_users: Annotated[int, typer.Option(
        "--test-users", help="Users left out of its training; the measured rows are theirs.")] = 500,
    threads: Annotated[int, typer.Option("--threads", help="torch threads while measuring.")] = 1,
) -> None:
    """Compare pools, sources and rules of verification, at batch 1 on the CPU.

    With the model of bench decode and two nights of its texts: pools of everybody (GRP), of random users
    (RRP) and of users who rated alike (CRP) by size, strict and relaxed, by our retrieval and by the
    published rule; own, group, global and all blended; top-1, top-k, threshold and both. The last line of
    standard output is one JSON object.
    """
    from dare_job.bench.pools.command import Options, run
    from dare_job.bench.profiles.train import Settings

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    settings = Settings(steps=steps, test_users=test_users)
    result = run(Options(data, work, tuple(options.numbers("--sizes", sizes)), group, pool, rows, repeats,
                         nodes, tokens, settings, threads))
    print(json.dumps(result), flush=True)
