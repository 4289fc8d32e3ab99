"""Commands that measure and tune: ``check``, ``preview``, ``tune``, ``curve``, ``ctr``, ``dare-job lab``."""

import json
import shlex
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import typer

from dare_job.cli import options
from dare_job.cli.from_dataclass import takes
from dare_job.cli.result import console, print_result
from dare_job.config import options as option_types
from dare_job.config.options import ChatTemplate, Device, Dtype, option
from dare_job.errors import ConfigError
from dare_job.evaluate.acceptance.options import Options as AcceptanceOptions
from dare_job.evaluate.ctr.options import Options as CtrOptions
from dare_job.evaluate.curve.options import Options as MeasureOptions
from dare_job.evaluate.methods.options import Options as MethodOptions
from dare_job.evaluate.preview import PreviewOptions
from dare_job.evaluate.refresh.options import Options as RefreshOptions
from dare_job.evaluate.replay.options import ReplayOptions, TuneOptions


def _mapping(flag: str, text: str) -> dict:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"{flag} {text!r} is not a JSON object; write for example "
                          "'{\"enable_thinking\": true}'")
    return value


@dataclass(frozen=True)
class CheckOptions:
    """Options of ``dare-job check``."""

    model: str = option(f"{option_types.MODEL}.")
    prompts: Path | None = option("Text file with one prompt per line, or JSON lines with \"prompt\".", None,
                                  flag="--prompt-file")
    rows: int = option("Number of prompts to compare.", 8, min=1)
    max_new_tokens: int | None = option(
        "Tokens to decode per prompt; with this option, check also warns if most texts would be cut off "
        "there. Default: 48.", None, min=1)
    dtype: Dtype = option_types.dtype(
        "Type of the weights. In float32 all tokens must be equal. In bfloat16 (float16) rows may differ "
        "after a near-tie: two logits within 3 % (0.4 %) of the largest, or closer than twice the difference "
        "that a cache makes to transformers' own logits.")
    device: Device = option_types.device()
    trust_remote_code: bool = option_types.trust_remote_code()
    chat_template: ChatTemplate = option(f"{option_types.CHAT_TEMPLATE}.", "auto", metavar="MODE")
    template_arguments: dict | None = option(
        "Arguments of the chat template, such as '{\"enable_thinking\": true}'.", None, metavar="JSON",
        parse=_mapping)


@takes(CheckOptions)
def check(args: CheckOptions, as_json: bool) -> None:
    """Check that the engine supports a model: its greedy tokens must equal those of transformers' `generate`.

    Exit code 0 if they are equal, 1 if not.
    """
    from dare_job.evaluate.check import run_check

    result = print_result(as_json, lambda: run_check(**vars(args)))
    if not result["equal"]:
        raise typer.Exit(1)


@dataclass(frozen=True)
class PreviewNight(options.Night):
    """Options of ``dare-job preview``."""

    date: str | None = option("Date; input up to and including this date counts. Default: today.", None,
                              metavar="YYYY-MM-DD")
    preview: PreviewOptions = field(default_factory=PreviewOptions)


@takes(PreviewNight)
def preview(args: PreviewNight, as_json: bool) -> None:
    """Generate the texts of a few users and items in this process, and show them beside their prompts.

    Starts no Spark, writes nothing to OUT, and shows each text as soon as it is generated. It says what the
    gates would find, how many tokens the texts need, and how fast they are generated with and without drafts.
    """
    from datetime import UTC, datetime

    from dare_job.evaluate.preview import screen, variants
    from dare_job.observe import log
    from dare_job.storage.paths import atomic_writer

    night = replace(args, date=args.date or datetime.now(UTC).date().isoformat())
    if args.preview.page:
        options.writable("--page", args.preview.page)
    chosen = variants.variants(args.preview, lambda flags: options.job(night, pick=False, flags=flags))
    log.to_stderr(chosen[0].job.config.log.format)

    def work() -> dict:
        result = variants.run(chosen, args.preview)
        if args.preview.page:
            with atomic_writer(args.preview.page, f".{args.preview.page.name}.partial") as file:
                file.write(screen.page(result).encode("utf-8", "replace"))
            print(f"page: {args.preview.page}")
        return result

    print_result(as_json, work)


@takes(TuneOptions)
def tune(args: TuneOptions, as_json: bool) -> None:
    """Find the fastest draft settings by replaying recorded texts, and write them as YAML.

    The speed is computed from the latency curve of the model, so that the search needs no GPU.
    """
    from dare_job.evaluate.replay.tune import run
    from dare_job.observe import log

    log.to_stderr()
    options.writable("--save", args.out)

    def work() -> dict:
        curve, name = _latency_curve(args)
        command = shlex.join(["dare-job", *sys.argv[1:]])
        return run(replace(args, curve=curve, curve_name=name, command=command))

    print_result(as_json, work)


def _latency_curve(args: TuneOptions):
    """The latency curve that was named or is measured now, and where it comes from."""
    from dare_job.decode.engine.latency import LatencyCurve
    from dare_job.decode.settings import EngineSettings
    from dare_job.evaluate.replay import budgets

    if (args.latency is None) == (args.model is None):
        raise ConfigError("tune needs the cost of forward passes: give --latency FILE (conf/latency has "
                          "computed ones), or --model NAME to measure it here, and not both")
    if args.save_latency and args.model is None:
        raise ConfigError("--save-latency saves what --model measures; give --model NAME")
    if args.latency:
        return budgets.read_curve(args.latency), str(args.latency)
    if args.save_latency:
        options.writable("--save-latency", args.save_latency)
    nodes = max(EngineSettings().nodes, *args.nodes)  # the default is tried, too
    table = budgets.measure_curve(args.model, args.batch or (1, 8, 32), nodes, args.dtype, args.device)
    if args.save_latency:
        args.save_latency.write_text(json.dumps({"latency_ms": table}, indent=1) + "\n", encoding="utf-8")
    return LatencyCurve.of(table, f"--model {args.model}"), f"{args.model} in {args.dtype}, measured here"


@dataclass(frozen=True)
class CurveOptions:
    """Options of ``dare-job curve``."""

    night: options.Night
    measure: MeasureOptions = field(default_factory=MeasureOptions)


@takes(CurveOptions)
def curve(args: CurveOptions, as_json: bool) -> None:
    """Measure what lossy verification costs in quality and gains in speed, for several settings.

    The curve is for `dare-job run --target ... --curve`, which picks a setting from it.
    """
    from dare_job.cli.output import writing
    from dare_job.evaluate.curve import table
    from dare_job.evaluate.curve.quality_curve import run
    from dare_job.observe import log

    work, ctr = args.measure.work, args.measure.check
    if ctr.data is not None:
        import dare_job.evaluate.ctr.models  # noqa: F401  # raises ConfigError without the extra ctr
    options.writable("--save", work / "curve.json")
    job = options.job(args.night, pick=False)
    log.to_stderr(job.config.log.format)
    settings = replace(args.measure, check=replace(ctr, device=options.torch_device(ctr.device)),
                   command=shlex.join(["dare-job", *sys.argv[1:]]))

    def measure() -> dict:
        with writing(work):
            result = run(job, settings)
        table.show(result, console())
        kept = result.model_dump(mode="json", include={"date", "rows", "seeds", "level", "entries"})
        return {"curve": str(work / "curve.json"), "plot": str(work / "curve.svg"), **kept}

    print_result(as_json, measure)


@takes(CtrOptions)
def ctr(args: CtrOptions, as_json: bool) -> None:
    """Train CTR models with and without the texts, and compare their AUC and log loss.

    Measured on the last part of the time, over several seeds, with confidence intervals and paired tests.
    """
    from dare_job.evaluate.ctr import report
    from dare_job.evaluate.ctr.comparison import run
    from dare_job.observe import log

    log.to_stderr()

    def work() -> dict:
        result = run(replace(args, device=options.torch_device(args.device)))
        report.show(result, console())
        return result

    print_result(as_json, work)


@takes(ReplayOptions)
def replay(args: ReplayOptions, as_json: bool) -> None:
    """Replay recorded texts with drafts, without a model: how many tokens are accepted, and at what cost."""
    from dare_job.evaluate.replay.replay_texts import run
    from dare_job.observe import log

    log.to_stderr()
    print_result(as_json, lambda: run(args))


@takes(MethodOptions)
def decode(args: MethodOptions, as_json: bool) -> None:
    """Time decoding methods side by side: built-in ones, and drafters and verifiers of your own.

    Each method generates the texts of the same prompts in turn. ratio: of its tokens per second to the first
    method's; drafting_share: of its time in the drafter; rows_that_differ: from the first method's texts.
    """
    from dare_job.evaluate.methods.compare import run
    from dare_job.observe import log

    log.to_stderr()
    print_result(as_json, lambda: run(args))


@takes(RefreshOptions)
def refresh(args: RefreshOptions, as_json: bool) -> None:
    """Compare policies of which texts to write again, on nights of a simulated world replayed day by day.

    Policies have equal budgets. They are compared by the AUC of CTR models with the texts that each policy
    serves, by how far these are from the texts of a full refresh, and by cost. Rules write the texts, as a
    stand-in for an LLM.
    """
    from dare_job.evaluate.refresh import report
    from dare_job.evaluate.refresh.comparison import run
    from dare_job.observe import log

    log.to_stderr()
    if args.save:
        options.writable("--save", args.save)

    def work() -> dict:
        result = run(args)
        report.show(result, console())
        return result

    print_result(as_json, work)


@takes(AcceptanceOptions)
def acceptance(args: AcceptanceOptions, as_json: bool) -> None:
    """Acceptance rates of all verification rules, next to the optimum of any exact rule.

    Both models read the same texts; rates are computed from their probabilities at sampled positions.
    """
    if args.plot:
        options.writable("--plot", args.plot)
    from dare_job.evaluate.acceptance.report import draw_chart, run
    from dare_job.observe import log

    log.to_stderr()
    result = print_result(as_json, lambda: run(args, console()))
    if args.plot:
        args.plot.write_text(draw_chart(result["rows"]), encoding="utf-8")
