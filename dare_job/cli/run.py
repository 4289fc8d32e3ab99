"""The command ``run``: all stages for one date, or a range of them."""

from dataclasses import dataclass

from dare_job.cli import options
from dare_job.cli.from_dataclass import takes
from dare_job.cli.result import print_result
from dare_job.config.options import PLUG_IN, option
from dare_job.errors import ConfigError

_STAGES, _RECOMMENDATIONS = "Stages", "Recommendations"


@dataclass(frozen=True)
class RunOptions(options.Night):
    """Options of ``dare-job run``."""

    first: str | None = option(
        "First stage to run: plan, embed, group, route, pools, generate, gate, publish, encode or recommend.",
        None, flag="--from", metavar="STAGE", panel=_STAGES)
    last: str | None = option("Last stage to run. One stage alone: --from X --to X.", None, flag="--to",
                              metavar="STAGE", panel=_STAGES)
    limit: int | None = option("Generate at most N texts of each entity type, and recommendations for at "
                               "most N users.", None, min=0, metavar="N", panel=_STAGES)
    dry_run: bool = option("Only estimate rows, tokens, time and cost.", False, panel=_STAGES)
    if_set: bool = option("Stage recommend: do nothing, instead of failing, if recommend.model is not set.",
                          False, panel=_STAGES)
    target: str | None = option(
        "Limit of quality, for example auc=0.0005, cosine=0.98 or rouge_l=0.95 (verify.target). The run uses "
        "the fastest setting of --curve that keeps it, or strict verification if none does.", None,
        metavar="MEASURE=LIMIT")
    curve: str | None = option("curve.json of `dare-job curve`, for --target (verify.curve).", None)
    drafter: str | None = option("A drafter of your own (drafter.plugin).", None, metavar=PLUG_IN)
    verifier: str | None = option("A verifier of your own (verify.rule).", None, metavar=PLUG_IN)
    recommender: str | None = option("Folder of the recommender (recommend.model).", None,
                                     panel=_RECOMMENDATIONS)
    k: int | None = option("Recommendations for each user (recommend.k).", None, panel=_RECOMMENDATIONS)
    recommend_drafter: str | None = option(
        "trie, popularity, transitions, or the folder of a small recommender (recommend.drafter).", None,
        panel=_RECOMMENDATIONS)


@takes(RunOptions)
def run(args: RunOptions, as_json: bool) -> None:
    """Generate the texts of one date and publish them.

    A run that was interrupted continues where it stopped, if started again. Stages, in order: plan, embed,
    group, route, pools, generate, gate, publish, encode, recommend.
    """
    from dare_job import pipeline
    from dare_job.cli.output import writing
    from dare_job.observe.observed import observed

    first, last = args.first, args.last
    if args.dry_run and (first or last):
        raise ConfigError("--dry-run estimates the whole run; leave out --from and --to")
    flags = {"verify.target": ("--target", args.target), "verify.curve": ("--curve", args.curve),
             "recommend.model": ("--recommender", args.recommender),
             "recommend.drafter": ("--recommend-drafter", args.recommend_drafter),
             "drafter.plugin": ("--drafter", args.drafter), "verify.rule": ("--verifier", args.verifier)}
    overrides = [] if args.k is None else [f"recommend.k={args.k}"]
    job = options.job(args, args.limit, overrides=overrides, flags=flags)
    stages = pipeline.stages(job, first, last)
    if stages == pipeline.ALONE and job.config.recommend.model is None:
        if args.if_set:
            print_result(as_json, dict)
            return
        raise ConfigError("recommend.model is not set: name a recommender's folder with --recommender; "
                          "`dare-job recommender train` makes one")
    whole = first is None and last is None

    def work() -> dict:
        with observed(job, "run" if whole else stages[-1], counted=not args.dry_run), writing(job.space.out):
            if args.dry_run:
                return pipeline.dry_run(job)
            return pipeline.run(job) if whole else pipeline.run(job, first, last)

    print_result(as_json, work)
