"""The options of ``dare-job train-drafter``.

The options of ``dare-job acceptance``.
"""

import re
from pathlib import Path
from typing import Annotated

import typer

from dare_job.cli import options
from dare_job.cli.from_dataclass import takes
from dare_job.cli.options import Device, Dtype
from dare_job.cli.result import AsJson, print_result, show_values
from dare_job.errors import ConfigError
from dare_job.training.drafter.settings import Options


@takes(Options)
def train(asked: Options, as_json: bool) -> None:
    """Train a small draft model on texts that the target generated, with the target's tokenizer.

    Reports how often both models have the same top-1 token, on held-out texts, before and after."""
    from dare_job.cli.output import writing
    from dare_job.observe import log
    from dare_job.training.drafter.command import run

    log.to_stderr()
    if asked.date:
        options.day(asked.date)

    def work() -> dict:
        with writing(asked.to):
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
