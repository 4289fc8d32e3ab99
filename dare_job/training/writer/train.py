"""``dare-job writer train``: prompts and texts in, the folder of a fine-tuned model out."""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from dare_job.decode.model import loading
from dare_job.decode.prompt.answers import add_end_of_turn, end_of_turn
from dare_job.decode.prompt.template import PromptFormat
from dare_job.decode.prompt.tokens import prompt_ids
from dare_job.errors import ConfigError, DataError
from dare_job.models.files import fingerprint, resolve
from dare_job.training.batches import Batch, batches, text_loss
from dare_job.training.checkpoint import Checkpoint, write_model
from dare_job.training.loop import Schedule, Training, fit
from dare_job.training.result import finish, require_replaceable, training_folder
from dare_job.training.writer.settings import Options, Settings
from dare_job.workspace import digest

KIND = "writer"
_WARMUP = 0.05  # of all updates
_SAVE_EVERY_S = 300.0  # not more often, because a checkpoint is three times as large as the weights
_LOG = logging.getLogger("dare_job")


@dataclass(frozen=True)
class Row:
    """Token ids of a prompt with its chat template, and of the text with the token that ends the turn."""

    prompt: list[int]
    text: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.text)


def run(options: Options) -> dict:
    """Fine-tune all weights, replace the folder ``to`` atomically, and return the training's record.

    A training that was killed continues from its last checkpoint if it is started with the same options.

    Raises
    ------
    ConfigError
        The options are invalid.
    DataError
        The texts cannot be read or are too few.
    ModelError
        The model is missing or damaged, or the loss is not finite.
    """
    began, settings = time.monotonic(), options.settings
    if options.threads:
        torch.set_num_threads(options.threads)
    require_replaceable(options.to, KIND, {"--base": options.model})
    folder = resolve(options.model, options.trust_remote_code, "--base")
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=options.trust_remote_code)
    rows, left_out = read_rows(options.texts, tokenizer, settings.context)
    learned, held_out = _split(rows, settings.held_out, options.texts)
    torch.manual_seed(settings.seed)
    model = loading.load(folder, "float32", trust_remote_code=options.trust_remote_code).to(options.device)
    checkpoint = Checkpoint(training_folder(options.to), digest(
        [asdict(settings), fingerprint(folder), digest([[row.prompt, row.text] for row in rows])]))
    _LOG.info("%d parameters; %d texts to train on, %d held out, %d left out (longer than --context %d)",
              model.num_parameters(), len(learned), len(held_out), left_out, settings.context)
    add_end_of_turn(model.generation_config, tokenizer, PromptFormat("always"))
    record = train(model, tokenizer, learned, held_out, settings, checkpoint)
    report = finish(
        options.to, model, lambda to: write_model(model.cpu(), tokenizer, model.generation_config, to), began,
        {"kind": KIND, "model": options.model, "texts": len(learned), "held_out": len(held_out),
         "left_out": left_out, "tokens": sum(map(len, learned)), "settings": asdict(settings),
         "training": record})
    return {"writer": str(options.to), **report}


def read_rows(file: Path, tokenizer: PreTrainedTokenizerBase, context: int) -> tuple[list[Row], int]:
    """The rows of a file of JSON lines, in order, and the number of those with more than ``context`` tokens.

    Raises
    ------
    DataError
        The file cannot be read, or a line cannot be used. The message names the file and, for a line, its
        number.
    ConfigError
        The tokenizer has no chat template.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError("--base has no chat template: choose an instruction-tuned model")
    end = end_of_turn(tokenizer, PromptFormat("always"))
    end = tokenizer.eos_token_id if end is None else end
    rows = [_row(record, tokenizer, end) for record in _records(file)]
    kept = [row for row in rows if len(row) <= context]
    return kept, len(rows) - len(kept)


def _records(file: Path) -> list[dict]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--text {file} cannot be read: {error}") from None
    records = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            usable = all(record[name].strip() for name in ("prompt", "text"))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            usable = False
        if not usable:
            raise DataError(f"--text {file}, line {number}: needs a JSON object with non-empty strings "
                            "\"prompt\" and \"text\"")
        records.append(record)
    return records


def _row(record: dict, tokenizer: PreTrainedTokenizerBase, end: int) -> Row:
    prompt_format = PromptFormat("always", record.get("system") or "")
    prompt = prompt_ids(tokenizer, record["prompt"], prompt_format)
    text = tokenizer(record["text"].strip(), add_special_tokens=False)["input_ids"]
    return Row(prompt.tolist(), [*text, end])


def _split(rows: list[Row], held_out: int, file: Path) -> tuple[list[Row], list[Row]]:
    """Rows to learn and held-out rows, spread over the file."""
    if len(rows) < 2 * held_out:
        raise DataError(f"--text {file} has {len(rows)} texts that fit --context; --held-out {held_out} "
                        f"needs at least {2 * held_out}")
    places = set(np.linspace(0, len(rows) - 1, held_out).round().astype(int).tolist())
    return ([row for place, row in enumerate(rows) if place not in places],
            [row for place, row in enumerate(rows) if place in places])


def train(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, learned: Sequence[Row],
          held_out: Sequence[Row], settings: Settings, checkpoint: Checkpoint | None = None) -> dict:
    """Train in place: cross-entropy of the texts, AdamW. Returns the record of ``fit``."""
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id

    def in_batches(rows: Sequence[Row], seed: int) -> list[Batch]:
        return [Batch(batch.tokens.to(model.device), batch.targets.to(model.device))
                for batch in batches(rows, settings.batch_tokens, pad, seed)]

    validation = in_batches(held_out, 0)
    training = Training(
        lambda epoch: in_batches(learned, settings.seed + epoch),
        lambda batch: text_loss(model, batch),
        lambda: float(np.mean([text_loss(model, batch).item() for batch in validation])), name="writer")
    updates = settings.epochs * len(batches(learned, settings.batch_tokens, pad, settings.seed))
    schedule = Schedule(settings.epochs, settings.rate, 0.01, max(1, round(_WARMUP * updates)),
                        settings.epochs, save_every_s=_SAVE_EVERY_S)
    return fit(model, training, schedule, checkpoint)
