"""The folder that a training leaves: what it may replace, and how it is written, whole or not at all."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
import transformers

from dare_job import __version__, swap
from dare_job.errors import ConfigError
from dare_job.recommend.ids.vocabulary import Recommender
from dare_job.workspace import write_json

TRAINING = "training.json"


def require_place(to: Path, kind: str, made_of: Mapping[str, str | Path | None]) -> None:
    """Raises ConfigError where a folder holds anything but an earlier result of this kind, or where it is one
    that the result is made of; made_of: these by their options.
    """
    if to.exists() and not to.is_dir():
        raise ConfigError(f"--to {to} is a file; name a folder")
    for option, other in made_of.items():
        if other is not None and to.is_dir() and Path(other).is_dir() and to.samefile(other):
            raise ConfigError(f"--to {to} is the folder of {option}, which would be replaced; name another")
    if to.is_dir() and any(to.iterdir()) and (there := _kind(to)) != kind:
        why = f"no readable {TRAINING}" if there is None else f"by its {TRAINING}: {there}"
        raise ConfigError(f"--to {to} holds something else than this command makes ({why}), which would be "
                          "replaced; name another folder")


def _kind(folder: Path) -> str | None:
    try:
        return json.loads((folder / TRAINING).read_text("utf-8"))["kind"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def training_folder(to: Path) -> Path:
    """Where a training that is not finished keeps its state: beside its result."""
    return to.with_name(f".{to.name}.training")


def write_folder(to: Path, model, tokenizer, recommender: Recommender, record: dict) -> None:
    """A recommender's folder; record: what ``training.json`` says, its kind among it."""
    staging = swap.staged(to)
    with swap.discarding(staging):
        model.save_pretrained(staging)
        tokenizer.save_pretrained(staging)
        recommender.write(staging)
        write_json(staging / TRAINING, record)
        swap.replace(staging, to)


def versions() -> dict[str, str]:
    """Of the packages that made a model."""
    return {"dare_job": __version__, "torch": torch.__version__, "transformers": transformers.__version__}
