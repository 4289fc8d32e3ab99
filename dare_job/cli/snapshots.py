"""The commands on published dates: show, report, history, diff, clean."""

from pathlib import Path
from typing import Annotated

import typer

from dare_job.cli import options
from dare_job.cli.result import AsJson, console, print_result
from dare_job.errors import ConfigError
from dare_job.storage.paths import AnyPath, path

Out = Annotated[str | None, typer.Option(
    "--out", help="Output folder of the runs, or its URL. Default: that of --config, or `out`.")]
Config = Annotated[list[Path] | None, typer.Option(
    "--config", help="YAML settings of the runs, which name the output folder; repeatable.")]
Published = Annotated[str | None, typer.Option(
    "--date", metavar="YYYY-MM-DD", help="Published date. Default: the newest.")]


def show(
    out: Annotated[str, typer.Argument(help="Output folder of a run, or its URL.")],
    entity: Annotated[str, typer.Argument(metavar="user:ID", help="Whose text: user:ID or item:ID.")],
    date: Published = None,
) -> None:
    """Print one text and mark which tokens were drafted, step by step.

    The output is text in a pipe, too.
    """
    from dare_job.publish.report.show_text import show_text

    show_text(out, entity, options.day(date).isoformat() if date else None)


def report(out: Out = None, config: Config = None, date: Published = None) -> None:
    """Write the report of a published date again and print its path.

    The path is OUT/reports/dt=D/index.html, printed as text in a pipe, too. `dare-job run` writes the report
    as well, when it publishes the date.
    """
    from dare_job.cli.output import writing
    from dare_job.observe import log
    from dare_job.publish.report import write_again

    log.to_stderr()
    folder = _out(out, config)
    with writing(folder):
        print(write_again(folder, options.day(date).isoformat() if date else None))


def history(
    out: Out = None, config: Config = None,
    last: Annotated[int | None, typer.Option(
        "--last", min=1, metavar="N", help="Only the last N dates.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the published dates: rows, errors, acceptance, rates, time, and what changed between them."""
    from dare_job.publish.snapshots.history import history, print_history

    folder = _out(out, config)
    print_result(as_json, lambda: {"out": str(folder), "dates": history(folder, last)},
                 lambda result: print_history(result["dates"], console()))


def diff(
    before: Annotated[str, typer.Argument(metavar="D1", help="A published date, YYYY-MM-DD.")],
    after: Annotated[str, typer.Argument(metavar="D2", help="Another published date, usually a later one.")],
    out: Out = None, config: Config = None,
    examples: Annotated[int, typer.Option(
        "--examples", min=0, max=1000, metavar="N",
        help="Changed texts of each entity type to print side by side.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Compare two published dates: rows, texts, lengths, acceptance, model, prompts and settings."""
    from dare_job.publish.snapshots.diff import diff, print_diff

    folder = _out(out, config)
    print_result(as_json, lambda: diff(folder, before, after, examples),
                 lambda result: print_diff(result, console()))


def clean(
    keep: Annotated[int, typer.Option(
        "--keep", min=1, metavar="N", help="Number of published dates to keep; the newest are kept.")],
    out: Out = None, config: Config = None,
    dry_run: Annotated[bool, typer.Option(
        "--dry-run", help="Only print which dates would be removed, and their size.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove published dates, and their working files, except for the newest N.

    Dates that another command still needs are kept: previous texts for a date that is not published yet, and
    for running the newest date again. Safe to run next to other commands, and again after it was killed.
    """
    from dare_job.cli.output import writing
    from dare_job.publish.snapshots.clean import clean

    folder = _out(out, config)

    def work() -> dict:
        with writing(folder):
            return clean(folder, keep, dry_run)

    print_result(as_json, work, lambda result: _print_removed(result, dry_run))


def _print_removed(result: dict, dry_run: bool) -> None:
    for date in result["removed"]:
        print(f"{'would remove' if dry_run else 'removed'} {date['date']}  {_size(date['bytes'])}")
    for date in result["kept"]:
        print(f"kept {date['date']}: {date['reason']}")
    print(f"{len(result['kept'])} dates kept, {len(result['removed'])} "
          f"{'would be removed' if dry_run else 'removed'} ({_size(result['bytes'])})")


def _out(out: str | None, config: list[Path] | None) -> AnyPath:
    from dare_job.storage import errors

    if out is None and config:
        from dare_job.config.settings import load

        out = load(config).out
    folder = path(out or "out", "out")
    errors.check_access(folder, "out")
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder: name the output folder of the runs with --out FOLDER "
                          "or --config FILE")
    return folder


def _size(count: int) -> str:
    from rich.filesize import decimal

    return decimal(count)
