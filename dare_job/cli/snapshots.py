"""The commands on published dates: show, report, history, diff, clean."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare_job.cli import options
from dare_job.cli.from_dataclass import takes
from dare_job.cli.result import console, print_result
from dare_job.config.options import option
from dare_job.errors import ConfigError
from dare_job.storage.paths import AnyPath, path


def _published() -> Any:
    return option("Published date. Default: the newest.", None, metavar="YYYY-MM-DD")


@dataclass(frozen=True)
class Runs:
    """Options that name the output folder of runs."""

    out: str | None = option("Output folder of the runs, or its URL. Default: that of --config, or `out`.",
                             None)
    config: list[Path] | None = options.config_option(
        "YAML settings of the runs, which name the output folder; repeatable.")


@dataclass(frozen=True)
class ShowOptions:
    """Options of ``dare-job show``."""

    out: str = option("Output folder of a run, or its URL.", argument=True)
    entity: str = option("Whose text: user:ID or item:ID.", argument=True, metavar="user:ID")
    date: str | None = _published()


@takes(ShowOptions, json=False)
def show(args: ShowOptions) -> None:
    """Print one text and mark which tokens were drafted, step by step.

    The output is text in a pipe, too.
    """
    from dare_job.publish.report.show_text import show_text

    show_text(args.out, args.entity, options.day(args.date).isoformat() if args.date else None)


@dataclass(frozen=True)
class ReportOptions(Runs):
    """Options of ``dare-job report``."""

    date: str | None = _published()


@takes(ReportOptions, json=False)
def report(args: ReportOptions) -> None:
    """Write the report of a published date again and print its path.

    The path is OUT/reports/dt=D/index.html, printed as text in a pipe, too. `dare-job run` writes the report
    as well, when it publishes the date.
    """
    from dare_job.cli.output import writing
    from dare_job.observe import log
    from dare_job.publish.report import write_again

    log.to_stderr()
    folder = _out(args)
    with writing(folder):
        print(write_again(folder, options.day(args.date).isoformat() if args.date else None))


@dataclass(frozen=True)
class HistoryOptions(Runs):
    """Options of ``dare-job history``."""

    last: int | None = option("Only the last N dates.", None, min=1, metavar="N")


@takes(HistoryOptions)
def history(args: HistoryOptions, as_json: bool) -> None:
    """List the published dates, and what changed between them."""
    from dare_job.publish.snapshots.history import history, print_history

    folder = _out(args)
    print_result(as_json, lambda: {"out": str(folder), "dates": history(folder, args.last)},
                 lambda result: print_history(result["dates"], console()))


@dataclass(frozen=True, kw_only=True)
class DiffOptions(Runs):
    """Options of ``dare-job diff``."""

    before: str = option("A published date, YYYY-MM-DD.", argument=True, metavar="D1")
    after: str = option("Another published date, usually a later one.", argument=True, metavar="D2")
    examples: int = option("Changed texts of each entity type to print side by side.", 2, min=0, max=1000,
                           metavar="N")


@takes(DiffOptions)
def diff(args: DiffOptions, as_json: bool) -> None:
    """Compare two published dates: rows, texts, lengths, acceptance, model, prompts and settings."""
    from dare_job.publish.snapshots.diff import diff, print_diff

    folder = _out(args)
    print_result(as_json, lambda: diff(folder, args.before, args.after, args.examples),
                 lambda result: print_diff(result, console()))


@dataclass(frozen=True, kw_only=True)
class CleanOptions(Runs):
    """Options of ``dare-job clean``."""

    keep: int | None = option("Number of published dates to keep; the newest are kept.", None, min=1,
                              metavar="N")
    older_than: int | None = option(
        "Remove dates that are more than this many days before today (UTC), and their reports. The newest "
        "date is always kept.", None, min=0, metavar="DAYS")
    dry_run: bool = option("Only print which dates would be removed, and their size.", False)


@takes(CleanOptions)
def clean(args: CleanOptions, as_json: bool) -> None:
    """Remove published dates, and their working files: all but the newest N, or those older than some days.

    With both options a date is removed if either rule removes it. --older-than also removes old reports.

    Dates that another command still needs are kept: previous texts for a date that is not published yet, and
    for running the newest date again. Safe to run next to other commands, and again after it was killed.
    """
    from dare_job.cli.output import writing
    from dare_job.publish.snapshots.clean import clean

    if args.keep is None and args.older_than is None:
        raise ConfigError("clean needs --keep N, the number of dates to keep, or --older-than DAYS")
    folder = _out(args)

    def work() -> dict:
        with writing(folder):
            return clean(folder, args.keep, args.dry_run, args.older_than)

    print_result(as_json, work, lambda result: _print_removed(result, args.dry_run))


def _print_removed(result: dict, dry_run: bool) -> None:
    for date in result["removed"]:
        print(f"{'would remove' if dry_run else 'removed'} {date['date']}  {_size(date['bytes'])}")
    for date in result["kept"]:
        print(f"kept {date['date']}: {date['reason']}")
    if result["reports"]:
        print(f"{'would remove' if dry_run else 'removed'} the reports of {', '.join(result['reports'])}")
    print(f"{len(result['kept'])} dates kept, {len(result['removed'])} "
          f"{'would be removed' if dry_run else 'removed'} ({_size(result['bytes'])})")


def _out(runs: Runs) -> AnyPath:
    from dare_job.storage import errors

    out = runs.out
    if out is None and runs.config:
        from dare_job.config.settings import load

        out = load(runs.config).out
    folder = path(out or "out", "out")
    errors.check_access(folder, "out")
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder: name the output folder of the runs with --out FOLDER "
                          "or --config FILE")
    return folder


def _size(count: int) -> str:
    from rich.filesize import decimal

    return decimal(count)
