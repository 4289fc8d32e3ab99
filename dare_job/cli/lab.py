"""The command ``ctr`` and those under ``dare-job lab``: measurements without a run."""

from dataclasses import replace

from dare_job.cli import options
from dare_job.cli.from_dataclass import takes
from dare_job.cli.result import print_result
from dare_job.evaluate.acceptance.options import Options as AcceptanceOptions
from dare_job.evaluate.ctr.options import Options as CtrOptions
from dare_job.evaluate.replay.options import ReplayOptions


@takes(CtrOptions)
def ctr(args: CtrOptions, as_json: bool) -> None:
    """Train CTR models with and without the texts, and compare their AUC and log loss.

    Measured on the last part of the time, over several seeds, with confidence intervals and paired tests.
    """
    from dare_job.evaluate.ctr import report
    from dare_job.evaluate.ctr.command import run
    from dare_job.observe import log

    log.to_stderr()

    def work() -> dict:
        result = run(replace(args, device=options.torch_device(args.device)))
        report.show(result)
        return result

    print_result(as_json, work)


@takes(ReplayOptions)
def replay(args: ReplayOptions, as_json: bool) -> None:
    """Replay recorded texts with drafts, without a model: how many tokens are accepted, and at what cost."""
    from dare_job.evaluate.replay.command import run
    from dare_job.observe import log

    log.to_stderr()
    print_result(as_json, lambda: run(args))


@takes(AcceptanceOptions)
def acceptance(args: AcceptanceOptions, as_json: bool) -> None:
    """Acceptance rates of all verification rules, next to the optimum of any exact rule.

    Both models read the same texts; rates are computed from their probabilities at sampled positions.
    """
    if args.plot:
        options.writable("--plot", args.plot)
    from dare_job.evaluate.acceptance.command import draw_chart, run
    from dare_job.observe import log

    log.to_stderr()
    result = print_result(as_json, lambda: run(args))
    if args.plot:
        args.plot.write_text(draw_chart(result["rows"]), encoding="utf-8")
