"""The options of ``dare-job train-drafter``.

The options of ``dare-job acceptance``.
"""

import re
from pathlib import Path
from typing import Annotated

import typer

from dare_job.cli import options
from dare_job.cli import options as night
from dare_job.cli.options import Device, Dtype
from dare_job.cli.result import AsJson, print_result, show_values
from dare_job.errors import ConfigError


def train_drafter(
    out: Annotated[str, typer.Option(
        "--out", help="Output folder of the runs whose texts are learned, or its URL.")],
    to: Annotated[Path, typer.Option("--save", help="Folder for the draft model.")] = Path("drafter"),
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
    as_json: AsJson = False,
) -> None:
    """Train a small draft model on texts that the target wrote, with the target's tokenizer.

    A few minutes on one core for the sample. Prints as JSON how much of the target's greedy text it says
    itself, before and after, on texts held out.
    """
    from dare_job.cli.output import writing
    from dare_job.observe import log
    from dare_job.training.drafter.command import Options, run
    from dare_job.training.drafter.teacher import Settings

    settings = Settings(width, layers, heads, steps, batch_tokens, kl, rate, context, rows, held_out, seed,
                        temperature, kept)
    log.to_stderr()
    day = night.day(date).isoformat() if date else None
    asked = Options(out, to, day, model, revision, dtype.value, device.value, chat_template,
                    trust_remote_code, settings)

    def work() -> dict:
        with writing(to):
            return run(asked)

    print_result(as_json, work, show_values)

_MOST_DRAFTS = 8

_COLDEST, _HOTTEST = 0.01, 100.0


def acceptance(
    target: Annotated[str, typer.Option("--model", help="'embedded', a folder or a hub name.")],
    draft: Annotated[str, typer.Option(
        "--draft", help="Draft model of the same tokens: a folder or a hub name, as dare-job train-drafter "
        "leaves one.")],
    text: Annotated[str | None, typer.Option(
        "--text", help="Texts over whose tokens rates are taken: a jsonl, csv or Parquet file, or the output "
        "folder of a run; without it those of the sample world.")] = None,
    column: Annotated[str, typer.Option("--column", help="Of a file: the texts.")] = "knowledge",
    prompt_column: Annotated[str | None, typer.Option(
        "--prompt-column", help="Of a file: the prompts; else 'prompt' where it has that.")] = None,
    temperature: Annotated[str, typer.Option(
        "--temperature", help="Temperatures of both models, such as 0.1,0.5,1; 0 is greedy.")] = "0.7",
    drafts: Annotated[str, typer.Option(
        "--drafts", help=f"Candidates of a node, such as 3, 1,2,4 or 1..{_MOST_DRAFTS}.")] = "3",
    texts: Annotated[int, typer.Option("--texts", min=1, help="Texts that are read, at most.")] = 128,
    positions: Annotated[int, typer.Option(
        "--positions", min=1, help="Tokens of these that are judged, drawn by the seed.")] = 256,
    draws: Annotated[int, typer.Option(
        "--draws", min=2, help="At each place, for the rates that have no exact form: of distinct, and where "
        "a few tokens have nearly all of q.")] = 16,
    trees: Annotated[str, typer.Option(
        "--trees", metavar="4x2x1[:NODES],...", help="Trees to write texts with: accepted tokens a step; "
        "with NODES only that many of the tree's nodes.")] = "",
    tree_rows: Annotated[int, typer.Option("--tree-rows", min=1, help="Prompts that these write for.")] = 32,
    new_tokens: Annotated[int, typer.Option(
        "--new-tokens", min=2, help="Of a text that is written, at most.")] = 128,
    plot: Annotated[Path | None, typer.Option(
        "--plot", help="SVG file of rates and optima over the temperatures, or over the drafts.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of all that is drawn.")] = 0,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="Type of the weights.")] = Dtype.float32,
    device: Annotated[Device, typer.Option(
        "--device", help="auto: cuda where torch finds a GPU.")] = Device.auto,
    chat_template: Annotated[str, typer.Option(
        "--chat-template", help="Of prompts in a file: auto, always or never.")] = "auto",
    trust_remote_code: Annotated[bool, typer.Option(
        "--trust-remote-code", help="Run the Python code that comes with the models.")] = False,
    as_json: AsJson = False,
) -> None:
    """How often drafts pass each verification rule, beside the most that any exact rule could accept.

    Target and draft model read the same texts; at tokens drawn at random the acceptance rate of every rule
    and the optimum of every draft law are computed from both models' probabilities (estimates are named).
    """
    warm, counts = _temperatures(temperature), _counts(drafts)
    if plot and len(warm) == len(counts) == 1:
        raise ConfigError("--plot draws rates over temperatures or over drafts: give several of either")
    if plot:
        options.writable("--plot", plot)
    from dare_job.evaluate.acceptance.command import Options, run
    from dare_job.evaluate.acceptance.trees import SparseShape
    from dare_job.observe import log

    shapes = [SparseShape.parse(part) for part in options.words(trees)]
    log.to_stderr()
    asked = Options(target, draft, text, column, prompt_column, warm, counts, texts, positions, draws,
                    shapes, tree_rows, new_tokens, seed, dtype.value, device.value, chat_template,
                    trust_remote_code)
    found = print_result(as_json, lambda: run(asked))
    if plot:
        from dare_job.evaluate.acceptance.command import draw_chart

        plot.write_text(draw_chart(found["rows"]), encoding="utf-8")


def _temperatures(text: str) -> list[float]:
    try:
        found = [float(part) for part in options.words(text)]
    except ValueError:
        raise ConfigError(f"--temperature {text!r} is no list of numbers; write for example "
                          "0.1,0.5,1") from None
    wrong = [value for value in found if value != 0 and not _COLDEST <= value <= _HOTTEST]
    if wrong or not found:
        raise ConfigError(f"--temperature {text!r}: each must be 0 (greedy) or from {_COLDEST:g} to "
                          f"{_HOTTEST:g}")
    return list(dict.fromkeys(found))


def _counts(text: str) -> list[int]:
    between = re.fullmatch(r"\s*(\d+)\s*\.\.\s*(\d+)\s*", text)
    if between:
        first, last = map(int, between.groups())
        found = list(range(first, min(last, _MOST_DRAFTS + 1) + 1))
    else:
        found = options.numbers("--drafts", text)
    if not found or not all(1 <= n <= _MOST_DRAFTS for n in found):
        raise ConfigError(f"--drafts {text!r}: each must be from 1 to {_MOST_DRAFTS}, such as 3, 1,2,4 or "
                          f"1..{_MOST_DRAFTS}")
    return list(dict.fromkeys(found))
