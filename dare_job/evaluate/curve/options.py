"""Settings of a quality curve: the options of ``dare-job curve``. Imports no torch."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import NamedTuple

from dare_job.config.options import PLUG_IN, Device, day, option
from dare_job.config.plugins import PlugIn
from dare_job.errors import ConfigError
from dare_job.evaluate.ctr.options import MODELS, ctr_models

_BETWEEN = re.compile(r",(?![^()]*\))")  # commas that are not in parentheses


class RelaxedSetting(NamedTuple):
    """k and p of relaxed verification."""

    k: int
    p: float

    def __str__(self) -> str:
        return f"{self.k}:{self.p:g}"


def _settings(flag: str, text: str) -> list[RelaxedSetting | str]:
    settings = []
    for part in filter(None, map(str.strip, _BETWEEN.split(text))):
        setting = _relaxed(flag, part) if part[0].isdigit() else PlugIn.parse("verifier", flag, part).text
        if setting in settings:
            raise ConfigError(f"{flag} {part!r} is given twice")
        settings.append(setting)
    if not settings:
        raise ConfigError(f"{flag} is empty: write K:P,..., for example 2:0.1,4:0.05")
    return settings


def _relaxed(flag: str, text: str) -> RelaxedSetting:
    k, colon, p = text.partition(":")
    try:
        pair = RelaxedSetting(int(k), float(p) if colon else math.nan)
    except ValueError:
        pair = RelaxedSetting(0, math.nan)
    if not (1 <= pair.k <= 64 and 0 <= pair.p < 1):
        raise ConfigError(f"{flag} {text!r}: write K:P with K from 1 to 64 and P from 0 to below 1, "
                          f"for example 2:0.1,4:0.05, or a verifier as {PLUG_IN}")
    return pair


@dataclass(frozen=True)
class Check:
    """Options of the comparison with ``ctr``; without ``data`` there is none."""

    data: str | None = option(
        "Clicks, as for `dare-job ctr`. With them, AUC is measured, too, on all rows.", None)
    models: Sequence[str] = option(
        "CTR models to train, comma-separated: din, dcnv2.", MODELS, flag="--ctr-model", parse=ctr_models)
    seeds: int = option("Number of trainings of each CTR model.", 10, min=2)
    labels_from: date | None = option("First day whose interactions are predicted.", None,
                                      metavar="YYYY-MM-DD", parse=day)
    min_rating: float = option("Lowest rating that counts as a click.", 4.0)
    epochs: int = option("Maximum number of epochs of each CTR model.", 30, min=1)
    device: Device = option("Device of the CTR models.", "auto", metavar="DEVICE")


@dataclass(frozen=True)
class Options:
    """Options of ``dare-job curve`` beside those of the run.

    Attributes
    ----------
    rows
        Number of timed rows; with ``check.data`` all rows are generated and compared.

    Raises
    ------
    ConfigError
        The level is not from 0.5 to below 1.
    """

    work: Path = option("Folder for curve.json, curve.svg and working files.", Path("curve"), flag="--save")
    settings: Sequence[RelaxedSetting | str] = option(
        "What to measure: K:P of relaxed verification, and verifiers as package.module:Class(option=value).",
        tuple(map(RelaxedSetting, (2, 2, 4, 4, 8, 16), (0.1, 0.05, 0.05, 0.01, 0.001, 0.0001))),
        metavar="K:P,CLASS,...", parse=_settings)
    rows: int = option(
        "Number of rows to time, chosen by --seed. Without --data, only these are compared.", 1000, min=1)
    turns: int = option("Repetitions of the timing.", 3, min=1)
    seed: int = option("Seed of the rows.", 0, min=0)
    level: float = option("Confidence level of the bounds, over all settings.", 0.95)
    check: Check = field(default_factory=Check)
    command: str = ""

    def __post_init__(self):
        if not 0.5 <= self.level < 1:
            raise ConfigError(f"--level {self.level:g} must be from 0.5 to below 1, such as 0.95")
