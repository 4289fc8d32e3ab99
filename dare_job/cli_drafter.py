"""The options of ``dare-job train-drafter``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from dare_job import cli_night as night
from dare_job.cli_options import Device, Dtype


def train_drafter(
    out: Annotated[str, typer.Option(
        "--out", help="Output folder of the runs whose texts are learned, or its URL.")],
    to: Annotated[Path, typer.Option("--to", help="Folder for the draft model.")] = Path("drafter"),
    date: Annotated[str | None, typer.Option(
        "--date", metavar="YYYY-MM-DD", help="Published date; the newest where not given.")] = None,
    model: Annotated[str | None, typer.Option(
        "--model", help="Target: 'embedded', a folder or a hub name; else who wrote the texts.")] = None,
    revision: Annotated[str | None, typer.Option(
        "--revision", help="Branch, tag or commit of a hub model.")] = None,
    layers: Annotated[int, typer.Option("--layers", help="Of the draft model.")] = 2,
    width: Annotated[int, typer.Option("--width", help="Of its hidden states.")] = 256,
    heads: Annotated[int, typer.Option("--heads", help="Of its attention.")] = 4,
    steps: Annotated[int, typer.Option("--steps", help="Updates.")] = 300,
    batch_tokens: Annotated[int, typer.Option("--batch-tokens", help="Tokens of an update, about.")] = 2048,
    kl: Annotated[float, typer.Option(
        "--kl", help="Share of the loss that compares with the target's probabilities; the rest is the "
        "texts' cross-entropy.")] = 0.5,
    temperature: Annotated[float, typer.Option(
        "--temperature", help="Of the target's probabilities that are learned: that at which it will be "
        "sampled.")] = 1.0,
    kept: Annotated[int, typer.Option(
        "--kept", help="Most probable tokens of a place that are learned; 256 for beams and high "
        "temperatures.")] = 16,
    rate: Annotated[float, typer.Option("--rate", help="Peak learning rate.")] = 4e-3,
    context: Annotated[int, typer.Option(
        "--context", help="Tokens of a row in training; a longer prompt loses its beginning.")] = 1024,
    rows: Annotated[int, typer.Option(
        "--rows", help="Texts to learn from, at most, drawn by hash.")] = 20_000,
    held_out: Annotated[int, typer.Option(
        "--held-out", help="Texts to measure on, before and after.")] = 32,
    seed: Annotated[int, typer.Option("--seed", help="Of weights and order.")] = 0,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="Type of the target's weights.")] = Dtype.float32,
    device: Annotated[Device, typer.Option(
        "--device", help="auto: cuda where torch finds a GPU.")] = Device.auto,
    chat_template: Annotated[str, typer.Option(
        "--chat-template", help="As model.chat_template of the runs: auto, always or never.")] = "auto",
    trust_remote_code: Annotated[bool, typer.Option(
        "--trust-remote-code", help="Run the Python code that comes with the target.")] = False,
) -> None:
    """Train a small draft model on texts that the target wrote, with the target's tokenizer.

    A few minutes on one core for the sample. Prints as JSON how much of the target's greedy text it says
    itself, before and after, on texts held out.
    """
    from dare_job.drafter.command import Options, run
    from dare_job.drafter.settings import Settings
    from dare_job.observe import log
    from dare_job.output import writing

    settings = Settings(width, layers, heads, steps, batch_tokens, kl, rate, context, rows, held_out, seed,
                        temperature, kept)
    log.to_stderr()
    day = night.day(date).isoformat() if date else None
    with writing(to):
        found = run(Options(out, to, day, model, revision, dtype.value, device.value, chat_template,
                            trust_remote_code, settings))
    print(json.dumps(found), flush=True)
