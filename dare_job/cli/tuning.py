"""The options of ``dare-job tune``.

The options of ``dare-job curve``.
"""

import json
import math
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dare_job.cli import options
from dare_job.cli import options as night
from dare_job.cli.options import Device, Dtype, OnDevice
from dare_job.cli.result import AsJson, print_result
from dare_job.errors import ConfigError


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


def tune(
    text: options.Text, column: options.Column, tokenizer: options.Tokenizer,
    id_column: options.IdColumn = None,
    latency: Annotated[Path | None, typer.Option(
        "--latency", help="What a forward costs: JSON of milliseconds by batch size, then by queries a row, "
        "such as conf/latency/*.json or the last line of `dare-job check`.")] = None,
    model: Annotated[str | None, typer.Option(
        "--model", help="Measure that here instead, with this model: 'embedded', a folder or a hub name. On "
        "a CPU set OMP_NUM_THREADS to the threads of a worker.")] = None,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="Type of its weights.")] = Dtype.float32,
    device: Annotated[Device, typer.Option(
        "--device", help="Where it is measured; auto: cuda where torch finds a GPU.")] = Device.auto,
    save_latency: Annotated[Path | None, typer.Option(
        "--save-latency", help="Keep what --model measured in this file, for --latency.")] = None,
    out: Annotated[Path, typer.Option(
        "--save", help="File to write: settings to use as the last --config of a run.")] = Path("tuned.yaml"),
    held_out: options.HeldOut = 1000,
    screen: Annotated[int, typer.Option(
        "--screen", help="How many of them screen settings; the others confirm what was found.")] = 100,
    pool: options.Pool = "global", groups: options.Groups = None, old: options.Old = None,
    batch: Annotated[str, typer.Option(
        "--batch", help="Batch sizes, such as 1,8,32; without it those of the latency curve.")] = "",
    nodes: Annotated[str, typer.Option(
        "--nodes", help="Draft nodes a step to try; plain decoding and the default always are.")]
    = "1,2,3,4,6,8,12,16,24,32,48,64,96,128",
    sizes: Annotated[str, typer.Option(
        "--sizes", help="Texts in a pool to try; all of them always are.")] = "100,500,2000",
    contexts: Annotated[str, typer.Option("--contexts", help="Longest contexts to try.")] = "4,8,12,15",
    depths: Annotated[str, typer.Option("--depths", help="Longest draft paths to try.")] = "6,12,20",
    lambdas: Annotated[str, typer.Option(
        "--lambdas", help="Lambdas of the blend to try, beside the weights that pools learn.")]
    = "2,4,8,16,32",
    drafting_us: Annotated[str, typer.Option(
        "--drafting-us", help="Microseconds of drafting a row and of each of its nodes, such as 12,0.6: the "
        "same result on every machine. Without it drafting is measured here.")] = "",
    threads: Annotated[int, typer.Option(
        "--threads", min=0, help="Threads that draft a batch; 0: the processors of this machine.")] = 0,
    rows: Annotated[int | None, typer.Option(
        "--rows", min=1, help="Rows of a first night, for its waves; else the texts of the file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find draft settings by replaying recorded text, and write them as YAML, before a GPU hour is spent.

    Searches node budget, context orders, depth, lambda and pool size for the most tokens a second that the
    latency curve promises.
    """
    from dare_job.evaluate.replay.tune import Options, run
    from dare_job.observe import log

    log.to_stderr()
    options.writable("--save", out)
    budgets, batches = options.numbers("--nodes", nodes), options.numbers("--batch", batch)

    def work() -> dict:
        curve, name = _curve(latency, model, batches, budgets, dtype.value, device.value, save_latency)
        return run(Options(
            text, column, tokenizer, id_column, held_out, options.words(pool), groups, old, curve=curve,
            curve_name=name, batch=batches, nodes=budgets, sizes=options.numbers("--sizes", sizes),
            contexts=options.numbers("--contexts", contexts), depths=options.numbers("--depths", depths),
            lambdas=_lambdas(lambdas), screen=screen, drafting=_drafting(drafting_us), threads=threads,
            rows=rows, out=out, command=shlex.join(["dare-job", *sys.argv[1:]])))

    print_result(as_json, work)


def _curve(latency, model, batches, budgets, dtype, device, save):
    """The curve that was given or is measured now, and where it comes from."""
    from dare_job.decode.engine.latency import LatencyCurve
    from dare_job.evaluate.replay import latency as curves

    if (latency is None) == (model is None):
        raise ConfigError("tune needs to know what a forward costs: give --latency FILE (conf/latency holds "
                          "computed ones), or --model NAME to measure it here, and not both")
    if save and model is None:
        raise ConfigError("--save-latency keeps what --model measures; give --model NAME")
    if latency:
        return curves.read(latency), str(latency)
    if save:
        options.writable("--save-latency", save)
    print(f"measuring forwards of {model}", flush=True)
    table = curves.measure(model, batches or (1, 8, 32), max(budgets, default=1), dtype, device)
    if save:
        save.write_text(json.dumps({"latency_ms": table}, indent=1) + "\n", encoding="utf-8")
    return LatencyCurve.of(table, f"--model {model}"), f"{model} in {dtype}, measured here"


def _lambdas(text: str) -> list[float | None]:
    try:
        found = [None if part == "learned" else float(part) for part in options.words(text)]
    except ValueError:
        found = [math.nan]
    if not all(value is None or math.isfinite(value) for value in found):
        raise ConfigError(f"--lambdas {text!r} is no list of numbers and 'learned'; write for example 4,8")
    return found


def _drafting(text: str) -> tuple[float, float] | None:
    if not text:
        return None
    try:
        base, node = map(float, text.split(","))
    except ValueError:
        base = node = math.nan
    if not (0 <= base < math.inf and 0 <= node < math.inf):
        raise ConfigError(f"--drafting-us {text!r} is not two numbers from 0; write for example 12,0.6")
    return base, node

_CURVE = "2:0.1,2:0.05,4:0.05,4:0.01,8:0.001,16:0.0001"


def curve(
    config: night.Config, date: night.Day, input: night.Input = None, out: night.Out = None,
    model: night.Model = None, set_: night.Set = None,
    work: Annotated[Path, typer.Option(
        "--save", help="Folder for curve.json, curve.svg and the working files.")] = Path("curve"),
    settings: Annotated[str, typer.Option(
        "--settings", metavar="K:P,...", help="Settings of the relaxed rule to measure.")] = _CURVE,
    rows: Annotated[int, typer.Option(
        "--rows", min=1, help="Rows that are timed, drawn by seed; without --data also those compared.")]
    = 1000,
    turns: Annotated[int, typer.Option("--turns", min=1, help="How often each setting is timed.")] = 3,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the rows drawn.")] = 0,
    level: Annotated[float, typer.Option("--level", help="Of the bounds, for all settings together.")] = 0.95,
    data: Annotated[str | None, typer.Option(
        "--data", help="Clicks for `dare-job ctr`: measures AUC too; then every row is written.")] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=2, help="Of the CTR models' trainings.")] = 10,
    ctr_model: Annotated[str, typer.Option("--ctr-model", help="CTR models: din, dcnv2.")] = "din,dcnv2",
    labels_from: Annotated[str | None, typer.Option(
        "--labels-from", metavar="YYYY-MM-DD", help="First day whose interactions are predicted.")] = None,
    min_rating: Annotated[float, typer.Option("--min-rating", help="A click is a rating from this on.")] = 4,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Of a CTR model, at most.")] = 30,
    device: Annotated[Device, typer.Option(
        "--device", help="Of the CTR models; auto: cuda where torch finds a GPU.")] = Device.auto,
    as_json: AsJson = False,
) -> None:
    """Measure what looser verification costs in quality and gains in speed, over settings (k, p).

    The same rows are written strictly and by each setting, on this machine, with tonight's pools and drafts.
    Writes SAVE/curve.json, which `dare-job run --target ... --curve` picks a setting from, and curve.svg.
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
