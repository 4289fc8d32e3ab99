"""The command ``preview``: texts of a few rows, before a run."""

from dataclasses import dataclass, field

from dare_job.cli import options
from dare_job.cli.from_dataclass import takes
from dare_job.cli.result import print_result
from dare_job.config.options import option
from dare_job.evaluate.preview.options import PreviewOptions


@dataclass(frozen=True)
class Options(options.Night):
    """Options of ``dare-job preview``."""

    date: str | None = option("Date; input up to and including this date counts. Default: today.", None,
                              metavar="YYYY-MM-DD")
    preview: PreviewOptions = field(default_factory=PreviewOptions)


@takes(Options)
def preview(args: Options, as_json: bool) -> None:
    """Generate the texts of a few users and items in this process, and show them beside their prompts.

    Starts no Spark, writes nothing to OUT, and shows each text as soon as it is generated. It says what the
    gates would find, how many tokens the texts need, and how fast they are generated with and without drafts.
    """
    from dataclasses import replace
    from datetime import UTC, datetime

    from dare_job.evaluate.preview import command
    from dare_job.observe import log

    night = replace(args, date=args.date or datetime.now(UTC).date().isoformat())
    if args.preview.page:
        options.writable("--page", args.preview.page)
    chosen = command.variants(args.preview, lambda flags: options.job(night, pick=False, flags=flags))
    log.to_stderr(chosen[0].job.config.log.format)

    def work() -> dict:
        result = command.run(chosen, args.preview)
        if args.preview.page:
            from dare_job.evaluate.preview.page import render

            args.preview.page.write_text(render(result), encoding="utf-8", errors="replace")
            print(f"page: {args.preview.page}")
        return result

    print_result(as_json, work)
