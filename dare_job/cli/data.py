"""The commands under ``dare-job data``: a look at an input, erasing users and items, a synthetic data set,
the paper's data sets.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import typer

from dare_job.cli import options
from dare_job.cli.from_dataclass import paragraphs, takes
from dare_job.cli.result import console, print_result
from dare_job.config.options import day, option
from dare_job.data.paper import AmazonOptions, Options
from dare_job.errors import ConfigError, DataError
from dare_job.storage import paths

_NAMED = 20  # names that no table had, of which the command prints a line each
app = typer.Typer(no_args_is_help=True, help="Look at an input; erase users and items; make a synthetic data "
                  "set, or the paper's data sets.")
prepare = typer.Typer(no_args_is_help=True)
app.add_typer(prepare, name="prepare")


@dataclass(frozen=True)
class JobSettings:
    """Options of ``data prepare`` that read the settings of the job."""

    config: list[Path] | None = options.config_option(
        "YAML settings (input.max_reject_share, spark, log); repeatable.")
    set_: list[str] | None = options.set_option("spark.master=local[4]")


@dataclass(frozen=True)
class MovieLens:
    """Options of ``dare-job data prepare movielens-10m``."""

    prepared: Options
    input: Path = option("ml-10m.zip, or a folder with ratings.dat and movies.dat; other MovieLens sets with "
                         "ratings work too.")
    settings: JobSettings = field(default_factory=JobSettings)


@dataclass(frozen=True)
class AmazonBooks:
    """Options of ``dare-job data prepare amazon-books``."""

    prepared: AmazonOptions
    reviews: Path = option("Reviews as JSON lines (2014, 2018, 2023), or the csv of ratings; .gz or not.")
    meta: Path = option("Items as JSON lines, or in Python notation as in 2014.")
    settings: JobSettings = field(default_factory=JobSettings)


@prepare.callback()
def _prepare() -> None:
    """Make the data sets of DARE's paper from their original files (docs/how-to/datasets.md)."""


@dataclass(frozen=True)
class SampleOptions:
    """Options of ``dare-job data sample``."""

    save: str = option("Folder for the synthetic data set, on a local disk.")
    users: int = option("Number of users.", 400, min=1)
    items: int = option("Number of items.", 300, min=8)
    seed: int = option("The same seed writes the same files.", 0, min=0)
    text_date: date | None = option("Date of the previous texts. Default: the day before the last one.", None,
                                    parse=day, metavar="YYYY-MM-DD")


@app.command()
@takes(SampleOptions, json=False)
def sample(args: SampleOptions) -> None:
    """Write the synthetic data set: users, items, interactions and previous texts, as Parquet."""
    from dare_job.cli.output import writing
    from dare_job.data.sample_world.write import write_world

    folder = paths.path(args.save, "--save")
    if not paths.is_local(folder):
        raise ConfigError(f"--save {args.save}: this command writes to a local disk; name a folder there")
    with writing(folder):
        world = write_world(folder, users=args.users, items=args.items, seed=args.seed,
                            text_date=args.text_date)
    print(f"{world.out}: {world.users} users, {world.items} items, {world.interactions} interactions up to "
          f"{world.date}, {world.previous_user_texts} + {world.previous_item_texts} previous texts of users "
          "and items")


@dataclass(frozen=True)
class InspectOptions:
    """Options of ``dare-job data inspect``."""

    input: str | None = option("Folder, file or zip of the input (input.path).", None)
    config: list[Path] | None = options.config_option()
    set_: list[str] | None = options.set_option("input.tables.items.attributes=[genre]")
    on: date | None = option("Date of the prompts that are shown. Default: the date of the last interaction.",
                             None,
                             parse=day, metavar="YYYY-MM-DD", flag="--date")
    save: Path | None = option("New file for the proposed mapping (YAML), for --config.", None)


@app.command()
@takes(InspectOptions)
def inspect(args: InspectOptions, as_json: bool) -> None:
    """Show what an input holds before a run: tables, columns, dates, rejected rows, prompts.

    It starts no Spark. If the input is not recognized, it proposes a mapping of its columns.
    """
    from dare_job.cli.inspect_screen import show
    from dare_job.config.settings import load
    from dare_job.data.inspect import inspect as facts_of

    if args.save is not None and args.save.exists():
        raise ConfigError(f"--save {args.save} exists: name another file, or remove it")
    flags = {} if args.input is None else {"input.path": ("--input", args.input)}
    settings = load(args.config or [], args.set_, flags)
    result = print_result(as_json, lambda: facts_of(settings, args.on), show)
    if args.save is not None and result["proposal"] is not None:
        args.save.write_text(result["proposal"], "utf-8")
    elif args.save is not None:
        typer.echo(f"{args.save} was not written: dare-job reads this input without a mapping",
                   err=True)
    if result["error"]:
        raise DataError(f"with the proposed mapping: {result['error']}")


@dataclass(frozen=True)
class EraseOptions:
    """Options of ``dare-job data erase``."""

    out: str = option("Output folder of the runs, on a local disk.", argument=True)
    names: list[str] | None = option("Whose data: user:ID or item:ID; several are erased together.", None,
                                     argument=True, metavar="[user:ID]...")
    ids: Path | None = option("Text file with one user:ID or item:ID on each line.", None, metavar="FILE")


@takes(EraseOptions)
def erase(args: EraseOptions, as_json: bool) -> None:
    """Erase users or items from all dates, working files, logs and reports, and prove it by a search.

    Run it while no other command uses the output folder. If it is killed, the same command finishes. Exit
    code 4 if the search finds something that no run wrote; the message names the files. The input is not
    changed: remove the same users and items there, or the next run generates their texts again. Logs and
    rejected input rows of all dates are deleted whole, because they quote the input in any spelling.
    """
    from dare_job.cli.output import writing
    from dare_job.observe import log, progress
    from dare_job.publish.erase import subjects
    from dare_job.publish.erase.erasure import erase, require_folder

    folder, wanted = paths.path(args.out, "OUT"), subjects.parse(args.names or [], args.ids)
    require_folder(folder)
    log.to_stderr()

    def work() -> dict:
        with writing(folder), progress.reporting("reading the output folder"):
            return erase(folder, wanted)

    print_result(as_json, work, _print_erased)


app.command(help=paragraphs(erase))(erase)


def _print_erased(result: dict) -> None:
    from rich.filesize import decimal

    from dare_job.observe.redact import printable

    removed, searched = result["removed"], result["searched"]
    words = {"rows": "rows", "logs": "files of logs", "ids": "ids of features", "reports": "reports",
             "folders": "folders of indexes or unfinished work"}
    counts = ", ".join(f"{removed[name]} {word}" for name, word in words.items() if removed.get(name))
    print(f"{len(result['erased'])} users and items: {f'removed {counts}' if counts else 'nothing was left'}")
    print(f"searched {searched['files']} files ({decimal(searched['bytes'])}, {searched['rows']} rows in "
          f"{searched['tables']} tables) for their ids and {searched['texts']} texts and prompts: nothing "
          "found")
    for name in result["not_found"][:_NAMED]:
        print(f"{printable(name)} was in no table: check the spelling, unless it was erased before")
    if len(result["not_found"]) > _NAMED:
        print(f"{len(result['not_found']) - _NAMED} more were in no table: --json lists them as not_found")
    if result["by_type_only"]:
        print(f"{len(result['by_type_only'])} ids are short. Outside of columns of ids, the search looked "
              "for user:ID or \"user_id\": \"ID\", not for the ID alone")


@prepare.command("movielens-10m")
@takes(MovieLens)
def movielens_10m(args: MovieLens, as_json: bool) -> None:
    """Write the data set MovieLens-10M with labels, history windows, item halves and splits.

    By default, no user or item is filtered out.
    """
    from dare_job.config.settings import load
    from dare_job.data.input import prepare

    path = args.input
    settings = load(args.settings.config or [], args.settings.set_,
                    {"input.path": ("--input", str(path)), "input.format": ("movielens-10m", "movielens")})
    _require(path, "--input", "ml-10m.zip or a folder with ratings.dat and movies.dat",
             path.is_dir() or path.suffix == ".zip")
    _run("movielens-10m", [path], lambda into, spark: prepare.read_input(settings.input, into, spark),
         args.prepared, settings, as_json)


@prepare.command("amazon-books")
@takes(AmazonBooks)
def amazon_books(args: AmazonBooks, as_json: bool) -> None:
    """Write the data set Amazon-Books with labels, history windows, item halves and splits.

    The filters are those of KAR, because those of DARE are not published.
    """
    from dare_job.config.settings import load
    from dare_job.data.input import prepare

    settings, reviews, meta = load(args.settings.config or [], args.settings.set_), args.reviews, args.meta
    share = settings.input.max_reject_share
    _require(reviews, "--reviews", "a file such as Books.json.gz", reviews.is_file())
    _require(meta, "--meta", "a file such as meta_Books.json.gz", meta.is_file())
    _run("amazon-books", [reviews, meta],
         lambda into, spark: prepare.read_amazon(reviews, meta, into, share, spark), args.prepared, settings,
         as_json)


def _require(path: Path, option: str, expected: str, fits: bool) -> None:
    if not path.exists():
        raise DataError(f"{option} {path}: no such file or folder; give {expected}")
    if not fits:
        raise DataError(f"{option} {path} is not {expected}")


def _run(name: str, sources: list[Path], read: Callable, args, settings, as_json: bool) -> None:
    from dare_job.cli.output import writing
    from dare_job.data.paper import conversion, report
    from dare_job.observe import log, progress
    from dare_job.spark.session import session

    args.require()
    log.to_stderr(settings.log.format)

    def work() -> dict:
        with (log.bound(stage=f"prepare {name}"), writing(args.out),
              progress.reporting("starting Spark")):
            manifest = conversion.prepare(name, sources, read, args, session(settings.spark))
        report.print_manifest(manifest, console())
        return {"out": str(args.out), **manifest}

    print_result(as_json, work)
