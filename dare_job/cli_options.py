"""Options that several commands take, and lists as options write them."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

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
    """Whole numbers between commas. Raises ConfigError naming the option."""
    try:
        return [int(part) for part in words(text)]
    except ValueError:
        raise ConfigError(f"{option} {text!r} is no list of numbers; write for example 16,64") from None


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


def torch_device(device: Device) -> str:
    """The device that torch knows by name."""
    if device is not Device.auto:
        return device.value
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
