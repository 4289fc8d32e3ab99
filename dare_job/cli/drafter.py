"""The command ``dare-job drafter train``."""



from dare_job.cli import options
from dare_job.cli.from_dataclass import takes
from dare_job.cli.result import print_result, show_values
from dare_job.training.drafter.settings import Options


@takes(Options)
def train(args: Options, as_json: bool) -> None:
    """Train a small draft model on texts that the target generated, with the target's tokenizer.

    Reports how often both models have the same top-1 token, on held-out texts, before and after."""
    from dare_job.cli.output import writing
    from dare_job.observe import log
    from dare_job.training.drafter.command import run

    log.to_stderr()
    if args.date:
        options.day(args.date)

    def work() -> dict:
        with writing(args.to):
            return run(args)

    print_result(as_json, work, show_values)
