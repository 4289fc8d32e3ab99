"""The commands on published dates: history, diff, clean."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from dare_job.errors import ConfigError
from dare_job.storage.paths import AnyPath, path

Out = Annotated[str | None, typer.Option(
    "--out", help="Output folder of the runs, or its URL; without it that of --config, or `out`.")]
Config = Annotated[list[Path] | None, typer.Option(
    "--config", help="YAML settings of the runs, for their output folder; repeatable.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


def history(
    out: Out = None, config: Config = None,
    last: Annotated[int | None, typer.Option(
        "--last", min=1, metavar="N", help="Only the last N dates.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the published dates: rows, errors, acceptance, rates, time, and what changed between them."""
    from dare_job.publish.snapshots.history import history, print_history

    folder = _out(out, config)
    rows = history(folder, last)
    if as_json:
        _print_json({"out": str(folder), "dates": rows})
    else:
        print_history(rows, _console())


def diff(
    before: Annotated[str, typer.Argument(metavar="D1", help="A published date, YYYY-MM-DD.")],
    after: Annotated[str, typer.Argument(metavar="D2", help="Another one, as a rule a later one.")],
    out: Out = None, config: Config = None,
    examples: Annotated[int, typer.Option(
        "--examples", min=0, max=1000, metavar="N",
        help="Changed texts of each entity type shown side by side.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Compare two published dates: rows, texts, lengths, acceptance, model, prompts and settings."""
    from dare_job.publish.snapshots.diff import diff, print_diff

    found = diff(_out(out, config), before, after, examples)
    if as_json:
        _print_json(found)
    else:
        print_diff(found, _console())


def clean(
    keep: Annotated[int, typer.Option(
        "--keep", min=1, metavar="N", help="Published dates to keep, the newest.")],
    out: Out = None, config: Config = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go, and its size.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove snapshots older than the newest N, with their working files.

    What another command reads stays: the text that a date being written or not yet published starts from, and
    what a further run of the newest date would. Safe beside running commands; killed, the next one finishes.
    """
    from dare_job.cli.output import writing
    from dare_job.publish.snapshots.clean import clean

    folder = _out(out, config)
    with writing(folder):
        found = clean(folder, keep, dry_run)
    if as_json:
        _print_json(found)
        return
    for verdict in found["removed"]:
        print(f"{'would remove' if dry_run else 'removed'} {verdict['date']}  {_size(verdict['bytes'])}")
    for verdict in found["kept"]:
        print(f"kept {verdict['date']}  {verdict['reason']}")
    print(f"{len(found['kept'])} dates kept, {len(found['removed'])} {'would go' if dry_run else 'removed'}, "
          f"{_size(found['bytes'])}")


def _out(out: str | None, config: list[Path] | None) -> AnyPath:
    from dare_job.storage import errors

    if out is None and config:
        from dare_job.config.settings import load

        out = load(config).out
    folder = path(out or "out", "out")
    errors.check_access(folder, "out")
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder: name the output folder of the runs, by --out FOLDER or "
                          "--config FILE")
    return folder


def _console():
    """Of the terminal's width; elsewhere wide enough that nothing is cut."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    return Console(highlight=False, width=width)


def _size(count: int) -> str:
    from rich.filesize import decimal

    return decimal(count)


def _print_json(value: dict) -> None:
    print(json.dumps(value, default=str), flush=True)
