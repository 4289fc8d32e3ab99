"""The options of ``dare-job curve``."""

import json
import math
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from dare_job import cli_night as night
from dare_job import cli_options as options
from dare_job.cli_options import Device
from dare_job.errors import ConfigError

_CURVE = "2:0.1,2:0.05,4:0.05,4:0.01,8:0.001,16:0.0001"


def curve(
    config: night.Config, date: night.Day, input: night.Input = None, out: night.Out = None,
    model: night.Model = None, set_: night.Set = None,
    work: Annotated[Path, typer.Option(
        "--work", help="Folder for curve.json, curve.svg and the working files.")] = Path("curve"),
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
) -> None:
    """Measure what looser verification costs in quality and gains in speed, over settings (k, p).

    The same rows are written strictly and by each setting, on this machine, with tonight's pools and drafts.
    Writes WORK/curve.json, which `dare-job run --target ... --curve` picks a setting from, and curve.svg.
    The last line of standard output is one JSON object.
    """
    from dare_job.curve import report
    from dare_job.curve.command import Options, run
    from dare_job.observe import log
    from dare_job.output import writing

    wanted = _settings(settings)
    if not 0.5 <= level < 1:
        raise ConfigError(f"--level {level:g} must be from 0.5 to below 1, such as 0.95")
    check = _check(data, ctr_model, seeds, labels_from, min_rating, epochs, device)
    options.writable("--work", work / "curve.json")
    job = night.job(config, date, input, out, model, None, set_, pick=False)
    log.to_stderr(job.config.log.format)
    with writing(work):
        found = run(job, Options(work, wanted, rows, turns, seed, level, check,
                                 shlex.join(["dare-job", *sys.argv[1:]])))
    report.show(found)
    kept = found.model_dump(mode="json", include={"date", "rows", "seeds", "level", "entries"})
    places = {"curve": str(work / "curve.json"), "plot": str(work / "curve.svg")}
    print(json.dumps({**places, **kept}), flush=True)


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
    from dare_job.ctr.models import MODELS
    from dare_job.curve.loss import Check

    named = options.words(models)
    if not named or set(named) - set(MODELS):
        raise ConfigError(f"--ctr-model {models!r}: choose from {', '.join(MODELS)}")
    since = night.day(labels_from, "--labels-from") if labels_from else None
    return Check(data, named, seeds, since, options.torch_device(device), epochs, min_rating)
