"""The command line: options, help texts, exit codes. Everything heavy is imported when a command runs.

Standard output ends with one JSON object for ``run`` and ``check``; progress and errors go to standard error.
"""

import json
import sys
import traceback
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dare_job import errors
from dare_job.cli import ctr, datasets, options, recommender, snapshots, tuning
from dare_job.cli import drafter as cli_drafter
from dare_job.cli import options as night
from dare_job.cli.options import Config, Curve, Day, Device, Dtype, Input, Model, Out, Set, Target
from dare_job.errors import ConfigError, DareJobError
from dare_job.observe import redact
from dare_job.storage import paths

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="LLM knowledge text for recommenders, written nightly; the text of similar users drafts tonight's.",
    epilog="Exit codes: 0 done, 2 settings, 3 errors or texts beyond a limit, 4 input data, "
           "5 Java, Spark or disk, 6 model, 7 pools, 1 anything else.",
)

Limit = Annotated[int | None, typer.Option(
    "--limit", min=0, metavar="N", help="Only the first N stale rows of each entity type.")]
DryRun = Annotated[bool, typer.Option(
    "--dry-run", help="Only count rows and tokens and estimate the time; nothing is published.")]
First = Annotated[str | None, typer.Option(
    "--from", metavar="STAGE", help="Run the stages from this one on too, in the same Spark application.")]

STAGE_HELP = {
    "plan": "Read the input and find who needs text tonight, with which prompt.",
    "embed": "Make vectors of users and items (LightGCN), or read ready-made ones.",
    "group": "Group similar entities, by vectors and by attributes.",
    "route": "Choose the pool of each entity, with the reason.",
    "pools": "Index the old text of each pool.",
    "generate": "Write the text with the model on Spark; goes on where a killed run stopped.",
    "gate": "Check tonight's texts: errors, empty, short, cut off, loops, unprintable, lengths, relaxed.",
    "publish": "Check the rows and commit the date's snapshot with its manifest.",
    "encode": "Turn the published texts into vectors, ids and clusters for CTR models (encode.model).",
}


@app.command()
def run(config: Config, date: Day, input: Input = None, out: Out = None, model: Model = None,
        limit: Limit = None, dry_run: DryRun = False, set_: Set = None, target: Target = None,
        curve: Curve = None) -> None:
    """Run every stage for one date and publish its snapshot.

    The last line of standard output is one JSON object.
    """
    from dare_job import pipeline
    from dare_job.cli.output import writing
    from dare_job.observe.command import observed

    job = night.job(config, date, input, out, model, limit, set_, target, curve)
    with observed(job, "run", counted=not dry_run), writing(job.space.out):
        result = pipeline.dry_run(job) if dry_run else pipeline.run(job)
    _print_json(result)


def _stage_command(name: str):
    def command(config: Config, date: Day, input: Input = None, out: Out = None, model: Model = None,
                limit: Limit = None, set_: Set = None, first: First = None, target: Target = None,
                curve: Curve = None) -> None:
        from dare_job import pipeline
        from dare_job.cli.output import writing
        from dare_job.observe.command import observed

        job = night.job(config, date, input, out, model, limit, set_, target, curve)
        with observed(job, name), writing(job.space.out):
            result = pipeline.run_stage(job, name, first)
        _print_json(result)

    return command


@app.command()
def recommend(config: Config, date: Day, input: Input = None, out: Out = None,
              model: Annotated[str | None, typer.Option(
                  "--model", help="The recommender's folder (recommend.model).")] = None,
              k: Annotated[int | None, typer.Option("--k", help="Items of a list (recommend.k).")] = None,
              drafter: Annotated[str | None, typer.Option(
                  "--drafter", help="trie, popularity, transitions, or a small recommender's folder "
                  "(recommend.drafter).")] = None,
              limit: Annotated[int | None, typer.Option(
                  "--limit", min=0, metavar="N", help="Only the first N users.")] = None,
              set_: Set = None,
              if_set: Annotated[bool, typer.Option(
                  "--if-set", help="Do nothing where no recommender is named, in place of an error: for a "
                  "schedule that serves several configurations.")] = False) -> None:
    """Write the top K items of each user by a generative recommender: OUT/candidates/dt=D.

    Needs the input alone; goes on where a killed run stopped. A part of `run` where recommend.model is set.
    """
    from dare_job import pipeline
    from dare_job.cli.output import writing
    from dare_job.observe.command import observed

    given = {"recommend.model": ("--model", model), "recommend.drafter": ("--drafter", drafter)}
    overrides = [*(set_ or []), *([] if k is None else [f"recommend.k={k}"])]
    job = night.job(config, date, input, out, None, limit, overrides, flags=given)
    if job.config.recommend.model is None:
        if if_set:
            return _print_json({})
        raise ConfigError("recommend.model is not set: name a recommender's folder with --model; "
                          "`dare-job train-recommender` makes one")
    with observed(job, "recommend"), writing(job.space.out):
        result = pipeline.run_stage(job, "recommend")
    _print_json(result)


for _name, _help in STAGE_HELP.items():
    app.command(_name, help=f"{_help} One stage of `run`.")(_stage_command(_name))


@app.command()
def sample(
    out: Annotated[str, typer.Option("--out", help="Folder for the sample world, on this host's disk.")],
    users: Annotated[int, typer.Option("--users", min=1, help="Number of users.")] = 400,
    items: Annotated[int, typer.Option("--items", min=8, help="Number of items.")] = 300,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed writes the same files.")] = 0,
    text_date: Annotated[str | None, typer.Option(
        "--text-date", metavar="YYYY-MM-DD", help="Date of the old text; else the last day but one.")] = None,
) -> None:
    """Write a sample world: users, items, interactions and old knowledge, as Parquet."""
    from dare_job.cli.output import writing
    from dare_job.data.sample_world.write import write_world

    folder = paths.path(out, "--out")
    if not paths.is_local(folder):
        raise ConfigError(f"--out {out}: a sample world is written to this host's disk; name a folder there")
    with writing(folder):
        world = write_world(folder, users=users, items=items, seed=seed,
                            text_date=night.day(text_date) if text_date else None)
    print(f"{world.out}: {world.users} users, {world.items} items, {world.interactions} interactions up to "
          f"{world.date}, {world.old_user_texts} + {world.old_item_texts} old texts")


@app.command()
def show(
    out: Annotated[str, typer.Argument(help="Output folder of a run, or its URL.")],
    entity: Annotated[str, typer.Argument(metavar="user:ID", help="Whose text: user:ID or item:ID.")],
    date: Annotated[str | None, typer.Option(
        "--date", metavar="YYYY-MM-DD", help="Snapshot to read; the newest where not given.")] = None,
) -> None:
    """Print a text with the borders of each decoding step and what came from a draft."""
    from dare_job.publish.report.texts import show_text

    show_text(out, entity, night.day(date).isoformat() if date else None)


@app.command()
def report(
    out: Annotated[str, typer.Option("--out", help="Output folder of a run, or its URL.")],
    date: Annotated[str | None, typer.Option(
        "--date", metavar="YYYY-MM-DD", help="Published date; the newest where not given.")] = None,
) -> None:
    """Write the report of a published date again: OUT/reports/dt=D/index.html.

    Publishing writes it too. Prints where it is.
    """
    from dare_job.cli.output import writing
    from dare_job.observe import log
    from dare_job.publish.report import write_again
    from dare_job.storage import paths

    log.to_stderr()
    folder = paths.path(out, "out")
    with writing(folder):
        print(write_again(folder, night.day(date).isoformat() if date else None))


class ChatTemplate(StrEnum):
    auto = "auto"
    always = "always"
    never = "never"


@app.command()
def check(
    model: Annotated[str, typer.Option("--model", help="'embedded', a folder or a hub name.")],
    prompts: Annotated[Path | None, typer.Option(
        "--prompts", help="Text file with one prompt a line, or JSON lines with \"prompt\".")] = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Number of prompts to compare.")] = 8,
    dtype: Annotated[Dtype, typer.Option(
        "--dtype", help="Type of the weights. In float32 every token must be equal. In a narrower type a "
        "row may leave the text at a near-tie, shown with its gap: two logits within 3 % (bfloat16) or "
        "0.4 % (float16) of the largest.")] = Dtype.float32,
    device: Annotated[Device, typer.Option(
        "--device", help="auto: cuda where torch finds a GPU.")] = Device.auto,
    revision: Annotated[str | None, typer.Option(
        "--revision", help="Branch, tag or commit of a hub model.")] = None,
    trust_remote_code: Annotated[bool, typer.Option(
        "--trust-remote-code", help="Run the Python code that comes with the model.")] = False,
    chat_template: Annotated[ChatTemplate, typer.Option(
        "--chat-template", help="auto: wrap each prompt as a user's message where the tokenizer has a "
        "template; always: it must have one; never: the bare text.")] = ChatTemplate.auto,
) -> None:
    """Tell whether the engine supports a model: strict decoding must equal `generate` token for token.

    Exit code 0 only if equal. The last line of standard output is one JSON object.
    """
    from dare_job.evaluate.check import run_check

    result = run_check(model, prompts, rows, revision=revision, dtype=dtype.value, device=device.value,
                       chat_template=chat_template.value, trust_remote_code=trust_remote_code)
    _print_json(result)
    if not result["equal"]:
        raise typer.Exit(1)


@app.command()
def replay(
    text: options.Text, column: options.Column, tokenizer: options.Tokenizer,
    id_column: options.IdColumn = None, held_out: options.HeldOut = 1000,
    nodes: Annotated[str, typer.Option("--nodes", help="Draft nodes a step, separated by commas.")] = "16,64",
    pool: options.Pool = "global", groups: options.Groups = None, old: options.Old = None,
    against: Annotated[str, typer.Option(
        "--against", help="Peers in the same run: published (the rule of DARE's authors), arctic.")] = "",
) -> None:
    """Write recorded text again with drafts, without a model: what is accepted and what it costs.

    The last line of standard output is one JSON object.
    """
    from dare_job.evaluate.replay.command import Options, run

    budgets = options.numbers("--nodes", nodes)
    _print_json(run(Options(text, column, tokenizer, id_column, held_out, options.words(pool), groups, old,
                            nodes=budgets, against=options.words(against))))


for _command in (tuning.tune, tuning.curve, cli_drafter.acceptance, ctr.ctr,
                 snapshots.history, snapshots.diff, snapshots.clean):
    app.command()(_command)
app.command("train-drafter")(cli_drafter.train_drafter)
app.command("item-ids")(recommender.item_ids)
app.command("train-recommender")(recommender.train_recommender)
app.command("evaluate-recommender")(recommender.evaluate_recommender)
app.command("align")(recommender.align)
app.add_typer(datasets.app, name="prepare")


def _print_json(value: dict) -> None:
    sys.stdout.flush()
    print(json.dumps(value, default=str), flush=True)


def main() -> None:
    """Entry point of ``dare-job``."""
    run_app(app)


def run_app(app: typer.Typer) -> None:
    """Run a command line: a known error becomes one line on standard error and its exit code."""
    try:
        app()
    except Exception as error:
        code = errors.exit_code(error)
        if code == errors.UNEXPECTED and type(error) is not DareJobError:
            print(redact.text(traceback.format_exc()), end="", file=sys.stderr, flush=True)
            sys.exit(code)
        print(f"dare-job: {redact.text(' '.join(str(error).split()))}", file=sys.stderr, flush=True)
        sys.exit(code)
