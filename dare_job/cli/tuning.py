"""The options of ``dare-job tune``.

The options of ``dare-job curve``.
"""

import json
import math
import shlex
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dare_job.cli import options
from dare_job.cli import options as night
from dare_job.cli.from_dataclass import takes
from dare_job.cli.options import Device, Dtype, OnDevice
from dare_job.cli.result import AsJson, print_result
from dare_job.errors import ConfigError
from dare_job.evaluate.replay.options import TuneOptions


class ChatTemplate(StrEnum):
    auto = "auto"
    always = "always"
    never = "never"


def check(
    model: Annotated[str, typer.Option("--model", help="'embedded', a folder or a hub name.")],
    prompts: Annotated[Path | None, typer.Option(
        "--prompts", help="Text file with one prompt per line, or JSON lines with \"prompt\".")] = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Number of prompts to compare.")] = 8,
    dtype: Annotated[Dtype, typer.Option(
        "--dtype", help="Type of the weights. In float32 all tokens must be equal. In bfloat16 (float16) "
        "rows may differ after a near-tie: two logits within 3 % (0.4 %) of the largest.")]
    = Dtype.float32,
    device: OnDevice = Device.auto,
    revision: Annotated[str | None, typer.Option(
        "--revision", help="Branch, tag or commit of a hub model.")] = None,
    trust_remote_code: Annotated[bool, typer.Option(
        "--trust-remote-code", help="Run the Python code in the model's repository.")] = False,
    chat_template: Annotated[ChatTemplate, typer.Option(
        "--chat-template", help="auto: format each prompt as a user message if the tokenizer has a chat "
        "template; always: require one; never: use the prompt as it is.")] = ChatTemplate.auto,
    as_json: AsJson = False,
) -> None:
    """Check that the engine supports a model: its greedy tokens must equal those of transformers' `generate`.

    Exit code 0 if they are equal, 1 if not.
    """
    from dare_job.evaluate.check import run_check

    result = print_result(as_json, lambda: run_check(
        model, prompts, rows, revision=revision, dtype=dtype.value, device=device.value,
        chat_template=chat_template.value, trust_remote_code=trust_remote_code))
    if not result["equal"]:
        raise typer.Exit(1)


@takes(TuneOptions)
def tune(asked: TuneOptions, as_json: bool) -> None:
    """Find the fastest draft settings by replaying recorded texts, and write them as YAML.

    The speed is computed from the latency curve of the model, so that the search needs no GPU.
    """
    from dare_job.evaluate.replay.tune import run
    from dare_job.observe import log

    log.to_stderr()
    options.writable("--save", asked.out)

    def work() -> dict:
        curve, name = _latency_curve(asked)
        command = shlex.join(["dare-job", *sys.argv[1:]])
        return run(replace(asked, curve=curve, curve_name=name, command=command))

    print_result(as_json, work)


def _latency_curve(asked: TuneOptions):
    """The latency curve that was named or is measured now, and where it comes from."""
    from dare_job.decode.engine.latency import LatencyCurve
    from dare_job.evaluate.replay import latency as curves

    if (asked.latency is None) == (asked.model is None):
        raise ConfigError("tune needs the cost of forward passes: give --latency FILE (conf/latency has "
                          "computed ones), or --model NAME to measure it here, and not both")
    if asked.save_latency and asked.model is None:
        raise ConfigError("--save-latency saves what --model measures; give --model NAME")
    if asked.latency:
        return curves.read(asked.latency), str(asked.latency)
    if asked.save_latency:
        options.writable("--save-latency", asked.save_latency)
    print(f"measuring forward passes of {asked.model}", flush=True)
    table = curves.measure(asked.model, asked.batch or (1, 8, 32), max(asked.nodes, default=1), asked.dtype,
                           asked.device)
    if asked.save_latency:
        asked.save_latency.write_text(json.dumps({"latency_ms": table}, indent=1) + "\n", encoding="utf-8")
    return LatencyCurve.of(table, f"--model {asked.model}"), f"{asked.model} in {asked.dtype}, measured here"


_CURVE = "2:0.1,2:0.05,4:0.05,4:0.01,8:0.001,16:0.0001"


def curve(
    config: night.Config, date: night.Day, input: night.Input = None, out: night.Out = None,
    model: night.Model = None, set_: night.Set = None,
    work: Annotated[Path, typer.Option(
        "--save", help="Folder for curve.json, curve.svg and working files.")] = Path("curve"),
    settings: Annotated[str, typer.Option(
        "--settings", metavar="K:P,...", help="Settings of relaxed verification to measure.")] = _CURVE,
    rows: Annotated[int, typer.Option(
        "--rows", min=1, help="Rows to time, chosen by seed (and to compare, without --data).")]
    = 1000,
    turns: Annotated[int, typer.Option("--turns", min=1, help="Repetitions of the timing.")] = 3,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the rows.")] = 0,
    level: Annotated[float, typer.Option("--level",
                                         help="Confidence level of the bounds, over all settings.")] = 0.95,
    data: Annotated[str | None, typer.Option(
        "--data", help="Clicks, as for `dare-job ctr`: measure AUC, too, with all rows.")] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=2, help="Trainings of each CTR model.")] = 10,
    ctr_model: Annotated[str, typer.Option("--ctr-model", help="CTR models: din, dcnv2.")] = "din,dcnv2",
    labels_from: Annotated[str | None, typer.Option(
        "--labels-from", metavar="YYYY-MM-DD", help="First day whose interactions are predicted.")] = None,
    min_rating: Annotated[float, typer.Option("--min-rating",
                                              help="Lowest rating that counts as a click.")] = 4,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Maximum epochs of a CTR model.")] = 30,
    device: Annotated[Device, typer.Option(
        "--device", help="Device of the CTR models.")] = Device.auto,
    as_json: AsJson = False,
) -> None:
    """Measure what relaxed verification costs in quality and gains in speed, for several settings (k, p).

    The curve is for `dare-job run --target ... --curve`, which picks a setting from it.
    """
    from dare_job.cli.output import writing
    from dare_job.evaluate.curve import table
    from dare_job.evaluate.curve.command import Options, run
    from dare_job.observe import log

    wanted = _settings(settings)
    if not 0.5 <= level < 1:
        raise ConfigError(f"--level {level:g} must be from 0.5 to below 1, such as 0.95")
    check = _check(data, ctr_model, seeds, labels_from, min_rating, epochs, device)
    options.writable("--save", work / "curve.json")
    job = night.job(config, date, input, out, model, None, set_, pick=False)
    log.to_stderr(job.config.log.format)

    def measure() -> dict:
        with writing(work):
            found = run(job, Options(work, wanted, rows, turns, seed, level, check,
                                     shlex.join(["dare-job", *sys.argv[1:]])))
        table.show(found)
        kept = found.model_dump(mode="json", include={"date", "rows", "seeds", "level", "entries"})
        return {"curve": str(work / "curve.json"), "plot": str(work / "curve.svg"), **kept}

    print_result(as_json, measure)


def _settings(text: str) -> list[tuple[int, float]]:
    found = []
    for part in options.words(text):
        k, colon, p = part.partition(":")
        try:
            pair = int(k), float(p) if colon else math.nan
        except ValueError:
            pair = 0, math.nan
        if not (1 <= pair[0] <= 64 and 0 <= pair[1] < 1):
            raise ConfigError(f"--settings {part!r}: write K:P with K from 1 to 64 and P from 0 to below 1, "
                              "for example 2:0.1,4:0.05")
        if pair in found:
            raise ConfigError(f"--settings {part!r} is there twice")
        found.append(pair)
    if not found:
        raise ConfigError("--settings is empty: write K:P,..., for example 2:0.1,4:0.05")
    return found


def _check(data, models, seeds, labels_from, min_rating, epochs, device):
    """What ``ctr`` is asked, checked before anything is written; None without data."""
    if data is None:
        return None
    from dare_job.evaluate.ctr.models import MODELS
    from dare_job.evaluate.curve.loss import Check

    named = options.words(models)
    if not named or set(named) - set(MODELS):
        raise ConfigError(f"--ctr-model {models!r}: choose from {', '.join(MODELS)}")
    since = night.day(labels_from, "--labels-from") if labels_from else None
    return Check(data, named, seeds, since, options.torch_device(device), epochs, min_rating)
