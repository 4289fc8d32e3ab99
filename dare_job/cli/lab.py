"""The command ``lab replay``: recorded texts against drafts, without a model."""

from typing import Annotated

import typer

from dare_job.cli import options
from dare_job.cli.result import AsJson, print_result


def replay(
    text: options.Text, column: options.Column, tokenizer: options.Tokenizer,
    id_column: options.IdColumn = None, held_out: options.HeldOut = 1000,
    nodes: Annotated[str, typer.Option(
        "--nodes", help="Draft tokens per step, separated by commas.")] = "16,64",
    pool: options.Pool = "global", groups: options.Groups = None, old: options.Old = None,
    against: Annotated[str, typer.Option(
        "--against", help="Methods to compare with in the same run: published (the rule in DARE's code), "
        "arctic.")] = "",
    as_json: AsJson = False,
) -> None:
    """Replay recorded texts with drafts, without a model: how many tokens are accepted, and at what cost."""
    from dare_job.evaluate.replay.command import Options, run

    budgets = options.numbers("--nodes", nodes)
    asked = Options(text, column, tokenizer, id_column, held_out, options.words(pool), groups, old,
                    nodes=budgets, against=options.words(against))
    print_result(as_json, lambda: run(asked))
