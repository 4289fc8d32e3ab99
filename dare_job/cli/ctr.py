"""The command ``dare-job ctr``."""

from dataclasses import replace

from dare_job.cli import options
from dare_job.cli.from_dataclass import takes
from dare_job.cli.result import print_result
from dare_job.evaluate.ctr.options import Options


@takes(Options)
def ctr(args: Options, as_json: bool) -> None:
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
