"""The commands under ``dare-job data``: a sample world, and the paper's data sets."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dare_job.cli import options
from dare_job.cli.result import AsJson, console, print_result
from dare_job.errors import ConfigError, DataError
from dare_job.storage import paths

app = typer.Typer(no_args_is_help=True, help="Make input data: a sample world, or the paper's data sets.")
prepare = typer.Typer(no_args_is_help=True)
app.add_typer(prepare, name="prepare")


class Untitled(StrEnum):
    drop = "drop"
    keep = "keep"


class Duplicates(StrEnum):
    last = "last"
    all = "all"


class Split(StrEnum):
    time = "time"
    user = "user"


Out = Annotated[Path, typer.Option("--save", help="Folder to write; must not exist.")]
MinUser = Annotated[int, typer.Option("--min-user", min=1, help="Minimum interactions of a user.")]
MinItem = Annotated[int, typer.Option("--min-item", min=1, help="Minimum interactions of an item.")]
Positive = Annotated[float, typer.Option("--positive", help="Lowest rating with label 1.")]
WithoutTitle = Annotated[Untitled, typer.Option(
    "--untitled", help="Interactions with items without a title.")]
Repeated = Annotated[Duplicates, typer.Option(
    "--duplicates", help="Several ratings of an item by a user: keep the last, or all.")]
HistoryShare = Annotated[float, typer.Option(
    "--history-share", help="Share of history in both windows, as history.share.")]
SplitBy = Annotated[Split, typer.Option("--split", help="Split the CTR rows by time or by user.")]
ValidShare = Annotated[float, typer.Option("--valid-share", min=0, max=1, help="Share of the CTR rows.")]
TestShare = Annotated[float, typer.Option("--test-share", min=0, max=1, help="Share of the CTR rows.")]
Sample = Annotated[int, typer.Option("--sample", min=0, help="Users, and items, to measure speed with.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of halves, samples and splits by user.")]
Config = Annotated[list[Path] | None, typer.Option(
    "--config", help="YAML settings (input.max_reject_share, spark, log); repeatable.")]
Set = Annotated[list[str] | None, typer.Option(
    "--set", metavar="KEY=VALUE", help="Override a setting, as in spark.master=local[4]; repeatable.")]


@prepare.callback()
def _prepare() -> None:
    """Make the data sets of DARE's paper from their original files (docs/how-to/datasets.md)."""


@app.command()
def sample(
    save: Annotated[str, typer.Option("--save", help="Folder for the sample world, on a local disk.")],
    users: Annotated[int, typer.Option("--users", min=1, help="Number of users.")] = 400,
    items: Annotated[int, typer.Option("--items", min=8, help="Number of items.")] = 300,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed writes the same files.")] = 0,
    text_date: Annotated[str | None, typer.Option(
        "--text-date", metavar="YYYY-MM-DD", help="Date of the previous texts. Default: the day before the "
        "last one.")] = None,
) -> None:
    """Write a sample world: users, items, interactions and previous texts, as Parquet."""
    from dare_job.cli.output import writing
    from dare_job.data.sample_world.write import write_world

    folder = paths.path(save, "--save")
    if not paths.is_local(folder):
        raise ConfigError(f"--save {save}: a sample world is written to a local disk; name a folder there")
    with writing(folder):
        world = write_world(folder, users=users, items=items, seed=seed,
                            text_date=options.day(text_date, "--text-date") if text_date else None)
    print(f"{world.out}: {world.users} users, {world.items} items, {world.interactions} interactions up to "
          f"{world.date}, {world.previous_user_texts} + {world.previous_item_texts} previous texts of users "
          "and items")


@prepare.command("movielens-10m")
def movielens_10m(
    input: Annotated[Path, typer.Option(
        "--input", help="ml-10m.zip, or a folder with ratings.dat and movies.dat; other MovieLens sets with "
        "ratings will do.")],
    out: Out, min_user: MinUser = 1, min_item: MinItem = 1, positive: Positive = 4.0,
    untitled: WithoutTitle = Untitled.drop, duplicates: Repeated = Duplicates.last,
    history_share: HistoryShare = 0.7, split: SplitBy = Split.time, valid_share: ValidShare = 0.1,
    test_share: TestShare = 0.1, sample: Sample = 100, seed: Seed = 0, config: Config = None,
    set_: Set = None, as_json: AsJson = False,
) -> None:
    """MovieLens-10M: labels, windows, halves and splits; by default no filter."""
    from dare_job.config.settings import load
    from dare_job.data import readers
    from dare_job.data.paper.options import Options

    asked = Options(out, min_user, min_item, positive, untitled.value, duplicates.value, history_share,
                    split.value, valid_share, test_share, sample, seed)
    settings = load(config or [], set_, {"input.path": ("--input", str(input)),
                                         "input.format": ("movielens-10m", "movielens")})
    _require(input, "--input", "ml-10m.zip or a folder with ratings.dat and movies.dat",
             input.is_dir() or input.suffix == ".zip")
    _run("movielens-10m", [input], lambda into, spark: readers.read_input(settings.input, into, spark),
         asked, settings, as_json)


@prepare.command("amazon-books")
def amazon_books(
    reviews: Annotated[Path, typer.Option(
        "--reviews", help="Reviews as JSON lines (2014, 2018, 2023), or the csv of ratings; .gz or not.")],
    meta: Annotated[Path, typer.Option(
        "--meta", help="Items as JSON lines, or in Python notation as in 2014.")],
    out: Out, min_user: MinUser = 60, min_item: MinItem = 40, positive: Positive = 5.0,
    untitled: WithoutTitle = Untitled.drop, duplicates: Repeated = Duplicates.last,
    history_share: HistoryShare = 0.7, split: SplitBy = Split.time, valid_share: ValidShare = 0.1,
    test_share: TestShare = 0.1, sample: Sample = 100, seed: Seed = 0, config: Config = None,
    set_: Set = None, as_json: AsJson = False,
) -> None:
    """Amazon-Books: KAR's filters (DARE's are not published), labels, windows, halves and splits."""
    from dare_job.config.settings import load
    from dare_job.data import readers
    from dare_job.data.paper.options import Options

    asked = Options(out, min_user, min_item, positive, untitled.value, duplicates.value, history_share,
                    split.value, valid_share, test_share, sample, seed)
    settings = load(config or [], set_)
    share = settings.input.max_reject_share
    _require(reviews, "--reviews", "a file such as Books.json.gz", reviews.is_file())
    _require(meta, "--meta", "a file such as meta_Books.json.gz", meta.is_file())
    _run("amazon-books", [reviews, meta],
         lambda into, spark: readers.read_amazon(reviews, meta, into, share, spark), asked, settings, as_json)


def _require(path: Path, option: str, expected: str, fits: bool) -> None:
    if not path.exists():
        raise DataError(f"{option} {path}: no such file or folder; give {expected}")
    if not fits:
        raise DataError(f"{option} {path} is not {expected}")


def _run(name: str, sources: list[Path], read: Callable, asked, settings, as_json: bool) -> None:
    from dare_job.cli.output import writing
    from dare_job.data.paper import command, report
    from dare_job.observe import log, progress
    from dare_job.spark.session import session

    asked.require()
    log.to_stderr(settings.log.format)

    def work() -> dict:
        with (log.bound(stage=f"prepare {name}"), writing(asked.out),
              progress.reporting()):
            manifest = command.prepare(name, sources, read, asked, session(settings.spark))
        report.print_manifest(manifest, console())
        return {"out": str(asked.out), **manifest}

    print_result(as_json, work)
