"""Options that several commands take, and lists as options write them.

What commands on a night share: their options, and the job that these make.
"""

import os
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dare_job.config import options as option_types
from dare_job.errors import ConfigError


class Dtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


OnDevice = Annotated[Device, typer.Option("--device", help="auto: cuda where torch finds a GPU.")]

Text = Annotated[Path, typer.Option("--text", help="Texts: jsonl, csv or Parquet, gzipped or not.")]

Column = Annotated[str, typer.Option("--column", help="Column of the text.")]

Tokenizer = Annotated[list[Path], typer.Option(
    "--tokenizer", help="Folder or file: tokenizer.json, or GPT-2's vocabulary and merges; repeatable.")]

IdColumn = Annotated[str | None, typer.Option(
    "--id-column", help="Column of the id; without it the row number.")]

HeldOut = Annotated[int, typer.Option(
    "--held-out", help="Texts replayed: those whose ids have the smallest SHA-256.")]

Pool = Annotated[str, typer.Option(
    "--pool", help="Where drafts come from, beside the text so far: own, group, global.")]

Groups = Annotated[Path | None, typer.Option(
    "--groups", help="Table of entity_id and group, as the stage route leaves it (entity_id, pool).")]

Old = Annotated[Path | None, typer.Option(
    "--old", help="The same ids' texts of an earlier date: the pools are made of these.")]


def numbers(option: str, text: str) -> list[int]:
    """Integers separated by commas. Raises ConfigError naming the option."""
    return option_types.numbers(option, text)


def writable(option: str, path: Path) -> Path:
    """The path, its folder made, before anything that takes long. Raises ConfigError naming the option."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        reason = "it is a folder" if path.is_dir() else None
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            reason = "no permission"
    except OSError as error:
        reason = error.strerror
    if reason:
        raise ConfigError(f"{option} {path} cannot be written: {reason}")
    return path


def words(text: str) -> list[str]:
    """What stands between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def torch_device(device: str) -> str:
    """The device that torch knows by name."""
    if device != "auto":
        return str(device)
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"

Config = Annotated[list[Path], typer.Option(
    "--config", help="YAML settings, for example conf/demo.yaml; repeatable, later files win key by key.")]

Day = Annotated[str, typer.Option(
    "--date", metavar="YYYY-MM-DD", help="The night; input up to and including this date counts.")]

Input = Annotated[str | None, typer.Option(
    "--input", help="Folder, file or zip of the input (input.path).")]

Out = Annotated[str | None, typer.Option("--out", help="Output folder (out).")]

Model = Annotated[str | None, typer.Option(
    "--model", help="'embedded', a folder or a hub name (model.name).")]

Set = Annotated[list[str] | None, typer.Option(
    "--set", metavar="KEY=VALUE", help="Override a setting, as in decode.batch_size=16; repeatable.")]

Target = Annotated[str | None, typer.Option(
    "--target", metavar="MEASURE=LIMIT", help="Take the fastest setting that --curve shows to keep it: "
    "auc=0.0005, cosine=0.98 or rouge_l=0.95 (verify.target); strict, where it shows none.")]

Curve = Annotated[str | None, typer.Option(
    "--curve", help="curve.json of `dare-job curve`, for --target (verify.curve).")]


def job(config, day_, input_path, out, model, limit, overrides, target=None, curve=None, pick=True,
        flags=None):
    """Settings with the command line's on top, and with ``pick`` the rule that their target picks, as a Job.

    flags  more values by key, each with its flag's name, as in ``config.load``
    Raises ConfigError, before anything is written.
    """
    from dare_job.config.settings import load
    from dare_job.job import Job
    from dare_job.storage import paths
    from dare_job.workspace import Workspace

    given = {"input.path": ("--input", input_path), "out": ("--out", out), "model.name": ("--model", model),
             "verify.target": ("--target", target), "verify.curve": ("--curve", curve), **(flags or {})}
    settings = load(config, overrides, {key: flag for key, flag in given.items() if flag[1] is not None})
    space = Workspace(paths.path(settings.out, "out"), day(day_))
    made = Job(settings, space, _run_id(space.dt), limit)
    if settings.verify.target is None or not pick:
        return made
    from dare_job.evaluate.curve.choose import chosen

    return chosen(made)


def day(text: str, option: str = "--date") -> date:
    """A date of the command line. Raises ConfigError naming the option."""
    return option_types.day(option, text)


def _run_id(dt: str) -> str:
    import secrets
    import time

    return f"{dt}.{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.{secrets.token_hex(3)}"
