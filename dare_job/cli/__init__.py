"""The command line: commands in families, exit codes. Everything heavy is imported when a command runs."""

import sys
import traceback
from typing import Annotated

import typer

from dare_job import __version__, errors
from dare_job.cli import config, data, locales, pools, run, snapshots, training, tuning
from dare_job.cli.from_dataclass import paragraphs
from dare_job.cli.names import Root
from dare_job.errors import DareJobError
from dare_job.observe import redact

_HELP = {"help_option_names": ["-h", "--help"]}


def _family(summary: str, **commands) -> typer.Typer:
    family = typer.Typer(no_args_is_help=True, help=summary)
    for name, command in commands.items():
        family.command(name.replace("_", "-"), help=paragraphs(command))(command)
    family.callback(help=summary)(lambda: None)  # a family of one command keeps that command's name
    return family


app = typer.Typer(
    cls=Root, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    context_settings=_HELP,
    epilog="Exit codes: 0 success, 2 settings or options, 3 quality gate or too many errors, 4 input data, "
           "5 Java, Spark, disk or device, 6 model, 7 pool files, 1 any other error.",
)


def _version(requested: bool) -> None:
    if requested:
        print(f"dare-job {__version__}")
        raise typer.Exit


@app.callback()
def dare_job(version: Annotated[bool, typer.Option(
        "--version", metavar="", callback=_version, is_eager=True,
        help="Print the version and exit.")] = False) -> None:
    """Generate LLM texts about users and items for recommenders, every night.

    Earlier texts of similar users and items are the drafts of speculative decoding.
    """


for _panel, _commands in {
    "Generate": [run.run],
    "Inspect": [snapshots.show, snapshots.report, snapshots.history, snapshots.diff],
    "Clean up": [snapshots.clean],
    "Measure and tune": [tuning.check, tuning.preview, tuning.tune, tuning.curve, tuning.ctr],
}.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel, help=paragraphs(_command))(_command)

for _panel, _families in {
    "Inspect": {"config": _family("Show the settings.", show=config.show, schema=config.schema)},
    "Measure and tune": {"lab": _family(
        "Compare drafts, verification and refresh policies.",
        replay=tuning.replay, decode=tuning.decode, acceptance=tuning.acceptance, refresh=tuning.refresh)},
    "Prepare": {
        "recommender": _family(
            "Train and evaluate generative recommenders, for the stage recommend.",
            train=training.train_recommender, evaluate=training.evaluate,
            align=training.align, item_ids=training.item_ids),
        "drafter": _family("Train draft models.", train=training.train_drafter),
        "writer": _family("Train small models that write the texts.", train=training.train_writer),
        "data": data.app,
        "pools": _family("Export pools, and learn from texts of several dates.",
                         export=pools.export, corrections=pools.corrections),
    },
}.items():
    for _name, _group in _families.items():
        app.add_typer(_group, name=_name, rich_help_panel=_panel)


def main() -> None:
    """Entry point of ``dare-job``."""
    run_app(app)


def run_app(app: typer.Typer) -> None:
    """Run a command line: a known error becomes one line on standard error and its exit code."""
    try:
        locales.check_arguments()
        app()
    except Exception as raised:
        error = locales.explained(raised)
        code = errors.exit_code(error)
        if code == errors.UNEXPECTED and type(error) is not DareJobError:
            print(redact.text(traceback.format_exc()), end="", file=sys.stderr, flush=True)
            sys.exit(code)
        line = redact.printable(redact.text(" ".join(str(error).split())))
        print(f"dare-job: {line}", file=sys.stderr, flush=True)
        sys.exit(code)
