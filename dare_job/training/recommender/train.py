"""``dare-job recommender train``: train a generative recommender on sequences of item ids."""

import hashlib
import logging
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from dare_job.errors import ConfigError
from dare_job.models.files import fingerprint
from dare_job.recommend.item_ids import ItemIds
from dare_job.recommend.vocabulary import Recommender
from dare_job.training import result
from dare_job.training.checkpoint import Checkpoint
from dare_job.training.loop import Schedule, Training, autocast, fit
from dare_job.training.recommender import histories, network
from dare_job.training.recommender.sequences import Sequences
from dare_job.training.recommender.settings import Options, Settings
from dare_job.training.result import require_replaceable, training_folder
from dare_job.workspace import digest

KIND = "recommender"
_LOG = logging.getLogger("dare_job")


def finish(to: Path, model, tokenizer, recommender: Recommender, began: float, report: dict) -> dict:
    """``result.finish`` of a recommender."""
    def write(folder: Path) -> None:
        model.cpu().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        recommender.write(folder)

    return result.finish(to, model, write, began, report)


def run(options: Options) -> dict:
    """Train, replace the folder ``to`` atomically, and return the training's record.

    A killed run resumes from its last checkpoint if it is started with the same options.
    """
    began, settings = time.monotonic(), options.settings
    require_replaceable(options.to, KIND, {"--base": options.model})
    ids = ItemIds.load(options.ids)
    data = options.data.read(ids)
    model, tokenizer, recommender = (
        network.existing_model(options.model, ids, settings) if options.model
        else network.new_model(ids, settings, options.to))
    checkpoint = Checkpoint(training_folder(options.to), digest(
        [asdict(settings), data_digest(data), digest(recommender.tokens.tolist()),
         options.model and fingerprint(recommender.folder)]))
    model = network.add_lora(model, settings.lora, recommender) if settings.lora else model
    _LOG.info("%d parameters, %d of them trained, on %d users", model.num_parameters(),
              model.num_parameters(only_trainable=True), len(data.users))
    record = train(model.to(options.device), recommender, data, settings, checkpoint)
    model = model.merge_and_unload() if settings.lora else model
    report = finish(options.to, model, tokenizer, recommender, began, {
        "kind": KIND, "model": options.model, "training": record, "settings": _used_settings(options),
        **options.data.record(data), "items": len(ids.items)})
    return {"recommender": str(options.to), **report}


def train(model: torch.nn.Module, recommender: Recommender, data: Sequences, settings: Settings,
          checkpoint: Checkpoint | None = None) -> dict:
    """Train in place on the training part, stopped by the validation part. Returns the record of ``fit``."""
    rows = validation_rows(data, settings.valid_users, settings.seed)
    held_out = histories.validation_batches(recommender, rows)
    training = Training(
        lambda epoch: histories.epoch_batches(
            recommender, data.train, settings.batch_tokens, settings.item_dropout,
            np.random.default_rng((settings.seed, epoch))),
        lambda batch: _loss(model, batch),
        lambda: float(np.mean([histories.next_token_loss(model, batch).item() for batch in held_out])),
        name="recommender")
    schedule = Schedule(settings.epochs, settings.rate, settings.weight_decay, settings.warmup,
                        settings.patience)
    with network.extra_dropout(model, settings.dropout):
        return fit(model, training, schedule, checkpoint)


def validation_rows(data: Sequences, count: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(history, targets) of at most ``count`` users with validation items.

    Raises
    ------
    ConfigError
        No user has validation items.
    """
    rows = sample(data.tests("valid"), count, seed)
    if not rows:
        raise ConfigError("no user has items for validation: use more data, or --split leave-one-out")
    return rows


def sample(rows: list, count: int, seed: int) -> list:
    """A random sample of at most ``count`` rows, in their order."""
    if len(rows) <= count:
        return rows
    chosen = np.random.default_rng(seed).choice(len(rows), count, replace=False)
    return [rows[place] for place in sorted(chosen)]


def _loss(model, batch) -> torch.Tensor:
    with autocast(model.device):
        return histories.next_token_loss(model, batch)


def data_digest(data: Sequences) -> str:
    """SHA-256 (hex) of the training and validation parts."""
    sha = hashlib.sha256()
    for part in (data.train, data.valid):
        sha.update(np.array([len(row) for row in part], np.int64).tobytes())
        sha.update(np.concatenate(part).astype(np.int64).tobytes())
    return sha.hexdigest()


def _used_settings(options: Options) -> dict:
    """Settings of the result, without those of a new model if the model existed."""
    unused = ("width", "layers", "heads") if options.model else ()
    return {name: value for name, value in asdict(options.settings).items() if name not in unused}
