"""``dare-job train-recommender``: sequences and item ids in, a recommender's folder out.

The folder that a training leaves: what it may replace, and how it is written, whole or not at all.
"""

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import transformers

from dare_job import __version__
from dare_job.errors import ConfigError
from dare_job.models.files import fingerprint
from dare_job.recommend.item_ids import ItemIds
from dare_job.recommend.vocabulary import Recommender
from dare_job.storage import atomic
from dare_job.training.checkpoint import Checkpoint
from dare_job.training.loop import Schedule, Training, fit
from dare_job.training.recommender import histories, network
from dare_job.training.recommender import network as recommender_network
from dare_job.training.recommender.sequences import Sequences
from dare_job.training.recommender.settings import Options, Settings
from dare_job.workspace import digest, write_json

TRAINING = "training.json"


def require_place(to: Path, kind: str, made_of: Mapping[str, str | Path | None]) -> None:
    """Raises ConfigError where a folder holds anything but an earlier result of this kind, or where it is one
    that the result is made of; made_of: these by their options.
    """
    if to.exists() and not to.is_dir():
        raise ConfigError(f"--save {to} is a file; name a folder")
    for option, other in made_of.items():
        if other is not None and to.is_dir() and Path(other).is_dir() and to.samefile(other):
            raise ConfigError(f"--save {to} is the folder of {option}, which would be replaced; name another")
    if to.is_dir() and any(to.iterdir()) and (there := _kind(to)) != kind:
        why = f"no readable {TRAINING}" if there is None else f"by its {TRAINING}: {there}"
        raise ConfigError(f"--save {to} holds something else than this command makes ({why}), which would be "
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
    staging = atomic.stage_folder(to)
    with atomic.remove_on_error(staging):
        model.save_pretrained(staging)
        tokenizer.save_pretrained(staging)
        recommender.write(staging)
        write_json(staging / TRAINING, record)
        atomic.replace(staging, to)


def versions() -> dict[str, str]:
    """Of the packages that made a model."""
    return {"dare_job": __version__, "torch": torch.__version__, "transformers": transformers.__version__}

KIND = "recommender"

_LOG = logging.getLogger("dare_job")


def run(options: Options) -> dict:
    """Train and write the folder whole, or leave what was there. Returns what was trained.

    A run that was killed goes on from its last checkpoint when it is started with the same options.
    """
    began, settings = time.monotonic(), options.settings
    require_place(options.to, KIND, {"--base": options.model})
    ids = ItemIds.load(options.ids)
    data = options.data.read(ids)
    model, tokenizer, recommender = (
        network.given(options.model, options.revision, ids, settings) if options.model
        else network.fresh(ids, settings, options.to))
    checkpoint = Checkpoint(training_folder(options.to), digest(
        [asdict(settings), content_of(data), digest(recommender.tokens.tolist()),
         options.model and fingerprint(recommender.folder)]))
    model = recommender_network.added(model, settings.lora, recommender) if settings.lora else model
    _LOG.info("%d parameters, %d of them trained, on %d users", _count(model), _count(model, True),
              len(data.users))
    record = train(model.to(options.device), recommender, data, settings, checkpoint)
    model = recommender_network.merged(model) if settings.lora else model
    found = {"kind": KIND, "model": options.model, "training": record, "settings": _told(options),
             **options.data.told(data), "items": len(ids.items),
             "parameters": _count(model), "minutes": round((time.monotonic() - began) / 60, 2),
             "versions": versions()}
    write_folder(options.to, model.cpu(), tokenizer, recommender, found)
    shutil.rmtree(checkpoint.folder, ignore_errors=True)
    return {"recommender": str(options.to), **found}


def train(model: torch.nn.Module, recommender: Recommender, data: Sequences, settings: Settings,
          checkpoint: Checkpoint | None = None) -> dict:
    """Train in place on the part to learn from, stopped by the validation part. Returns its record."""
    asked = histories.asked(recommender, watched(data, settings.valid_users, settings.seed))
    training = Training(
        lambda number: histories.epoch(recommender, data.train, settings.batch_tokens, settings.item_dropout,
                                       np.random.default_rng((settings.seed, number))),
        lambda batch: _loss(model, batch),
        lambda: float(np.mean([histories.next_token_loss(model, batch).item() for batch in asked])),
        name="recommender")
    schedule = Schedule(settings.epochs, settings.rate, settings.weight_decay, settings.warmup,
                        settings.patience)
    with network.dropping(model, settings.dropout):
        return fit(model, training, schedule, checkpoint)


def watched(data: Sequences, count: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(history, targets) of ``count`` users with validation items. Raises ConfigError: there are none."""
    found = sample(data.tests("valid"), count, seed)
    if not found:
        raise ConfigError("no user has items for validation: give more data, or --split leave-one-out")
    return found


def sample(rows: list, count: int, seed: int) -> list:
    """``count`` of the rows at most, drawn with a seed, in their order."""
    if len(rows) <= count:
        return rows
    chosen = np.random.default_rng(seed).choice(len(rows), count, replace=False)
    return [rows[place] for place in sorted(chosen)]


def _loss(model, batch) -> torch.Tensor:
    with torch.autocast(model.device.type, torch.bfloat16):
        return histories.next_token_loss(model, batch)


def content_of(data: Sequences) -> str:
    """sha256 hex of the parts that a training sees."""
    sha = hashlib.sha256()
    for part in (data.train, data.valid):
        sha.update(np.array([len(row) for row in part], np.int64).tobytes())
        sha.update(np.concatenate(part).astype(np.int64).tobytes())
    return sha.hexdigest()


def _told(options: Options) -> dict:
    """Settings of the result, without those of a new model where one was given."""
    unused = ("width", "layers", "heads") if options.model else ()
    return {name: value for name, value in asdict(options.settings).items() if name not in unused}


def _count(model: torch.nn.Module, trained: bool = False) -> int:
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad or not trained)
