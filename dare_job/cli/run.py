"""The command ``run``: all stages for one date, or a range of them."""

from typing import Annotated

import typer

from dare_job.cli import options
from dare_job.cli.options import Config, Curve, Day, Input, Model, Out, Set, Target
from dare_job.cli.result import AsJson, print_result
from dare_job.errors import ConfigError

_STAGES, _RECOMMENDATIONS = "Stages", "Recommendations"


def run(
    config: Config, date: Day, input: Input = None, out: Out = None, model: Model = None, set_: Set = None,
    first: Annotated[str | None, typer.Option(
        "--from", metavar="STAGE", rich_help_panel=_STAGES, help="First stage to run: plan, embed, group, "
        "route, pools, generate, gate, publish, encode or recommend.")] = None,
    last: Annotated[str | None, typer.Option(
        "--to", metavar="STAGE", rich_help_panel=_STAGES, help="Last stage to run. One stage alone: "
        "--from X --to X.")] = None,
    limit: Annotated[int | None, typer.Option(
        "--limit", min=0, metavar="N", rich_help_panel=_STAGES, help="Generate at most N texts of each "
        "entity type, and recommendations for at most N users.")] = None,
    dry_run: Annotated[bool, typer.Option(
        "--dry-run", rich_help_panel=_STAGES, help="Only count rows and tokens and estimate the time.")]
    = False,
    if_set: Annotated[bool, typer.Option(
        "--if-set", rich_help_panel=_STAGES, help="Stage recommend: do nothing, instead of failing, if "
        "recommend.model is not set.")] = False,
    target: Target = None, curve: Curve = None,
    recommender: Annotated[str | None, typer.Option(
        "--recommender", rich_help_panel=_RECOMMENDATIONS, help="Folder of the recommender "
        "(recommend.model).")] = None,
    k: Annotated[int | None, typer.Option(
        "--k", rich_help_panel=_RECOMMENDATIONS, help="Recommendations for each user (recommend.k).")] = None,
    drafter: Annotated[str | None, typer.Option(
        "--recommend-drafter", rich_help_panel=_RECOMMENDATIONS, help="trie, popularity, transitions, or the "
        "folder of a small recommender (recommend.drafter).")] = None,
    as_json: AsJson = False,
) -> None:
    """Generate the texts of one date and publish them.

    A run that was interrupted continues where it stopped, if started again. Stages, in order: plan, embed,
    group, route, pools, generate, gate, publish, encode, recommend.
    """
    from dare_job import pipeline
    from dare_job.cli.output import writing
    from dare_job.observe.command import observed

    if dry_run and (first or last):
        raise ConfigError("--dry-run estimates the whole run; leave out --from and --to")
    flags = {"recommend.model": ("--recommender", recommender),
             "recommend.drafter": ("--recommend-drafter", drafter)}
    overrides = [*(set_ or []), *([] if k is None else [f"recommend.k={k}"])]
    job = options.job(config, date, input, out, model, limit, overrides, target, curve, flags=flags)
    stages = pipeline.stages(job, first, last)
    if stages == pipeline.ALONE and job.config.recommend.model is None:
        if if_set:
            print_result(as_json, dict)
            return
        raise ConfigError("recommend.model is not set: name a recommender's folder with --recommender; "
                          "`dare-job recommender train` makes one")
    whole = first is None and last is None

    def work() -> dict:
        with observed(job, "run" if whole else stages[-1], counted=not dry_run), writing(job.space.out):
            if dry_run:
                return pipeline.dry_run(job)
            return pipeline.run(job) if whole else pipeline.run(job, first, last)

    print_result(as_json, work)
