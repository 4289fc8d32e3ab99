"""The texts over whose places the rates are taken, and the prompts that they were written for.

What target and draft model say at places of the texts: one forward of each over a text.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dare_job import prompts
from dare_job.data.sample_world.simulate import item_examples, simulate, user_examples
from dare_job.decode.draft.model import over_vocabulary
from dare_job.decode.engine.prompt import prompt_ids
from dare_job.decode.model.target import Target
from dare_job.errors import DataError, ModelError
from dare_job.evaluate.replay.texts import frame
from dare_job.models.files import tokenizer_hash
from dare_job.publish import prompted_texts as published
from dare_job.publish.prompted_texts import Row, no_prompt

_PROMPT = "prompt"

_USERS, _ITEMS, _DAY = 400, 300, 20  # of the sample world, and the day of its texts

_LOG = logging.getLogger("dare_job")


def read(source: str | None, column: str, prompt_column: str | None, tokenizer, model: Path, count: int,
         seed: int, chat_template: str = "auto") -> list[Row]:
    """Up to ``count`` rows with a text.

    source         output folder of a run: its newest published texts with the prompts that are left, those
                   whose names have the smallest SHA-256; a jsonl, csv or Parquet file, or None for the
                   sample world: rows drawn by the seed
    column         of a file: its texts; prompt_column: what they were written for, None: "prompt" where the
                   file has it, else nothing
    model          folder of the target
    Raises DataError where there is no text.
    """
    if source is None:
        examples = _sampled(_sample_world(), count, seed)
        found = [_row(*one, tokenizer, chat_template) for one in examples]
    elif _is_output(source):
        night = published.source(source, None)
        ranked = published.ranked(night, tokenizer, tokenizer_hash(model), count, chat_template)
        found = [_with_first_token(row) for _, row in ranked]
    else:
        records = _sampled(_records(Path(source), column, prompt_column), count, seed)
        found = [_row(*one, tokenizer, chat_template) for one in records]
    found = [row for row in found if len(row.text)]
    if not found:
        raise DataError(f"--text {source} holds no text of one token at least")
    return found


def truncate(rows: list[Row], context: int | None) -> list[Row]:
    """Rows cut to what both models' positions hold. Raises DataError where no prompt leaves room."""
    if context is None:
        return rows
    found = [replace(row, text=row.text[: max(0, context - len(row.prompt))]) for row in rows]
    found = [row for row in found if len(row.text)]
    if not found:
        raise DataError(f"every prompt is longer than the {context} tokens that the models' positions hold")
    if len(found) < len(rows):
        _LOG.warning("%d of %d rows are left out: their prompts fill the %d tokens that the models' "
                     "positions hold", len(rows) - len(found), len(rows), context)
    return found


def _is_output(source: str) -> bool:
    return "://" in source or (Path(source) / "knowledge").is_dir()


def _sampled(rows: list, count: int, seed: int) -> list:
    chosen = np.random.default_rng(seed).permutation(len(rows))[:count]
    return [rows[place] for place in np.sort(chosen)]


def _sample_world() -> list[tuple]:
    """(name, prompt, text) of users and items."""
    world, asked = simulate(_USERS, _ITEMS, 0), prompts.load(prompts.SAMPLE)
    both = chain(user_examples(world, asked, _DAY), item_examples(world, asked, _DAY))
    return [(f"{one.entity}:{one.row}", one.prompt, one.text) for one in both]


def _records(path: Path, column: str, prompt_column: str | None) -> list[tuple]:
    """(name, prompt or None, text) of a file's rows with a text."""
    if not path.exists():
        raise DataError(f"--text {path} does not exist: name a jsonl, csv or Parquet file, or the output "
                        "folder of a run")
    table = frame(path, [column, *([prompt_column] if prompt_column else [])])
    asked = prompt_column or (_PROMPT if _PROMPT in table.columns else None)
    found = []
    for number, text in enumerate(table[column]):
        prompt = table[asked].iloc[number] if asked else None
        for name, value in ((column, text), (asked, prompt)):
            if not isinstance(value, str) and not _missing(value):
                raise DataError(f"{path}, row {number}: {name} is {str(value)[:40]!r}, no text")
        if not _missing(text) and text:
            found.append((str(number), None if _missing(prompt) else prompt, text))
    return found


def _missing(value) -> bool:
    return value is None or value != value  # a table's missing values are NaN


def _row(name: str, prompt: str | None, text: str, tokenizer, chat_template: str) -> Row:
    ids = [*tokenizer(text, add_special_tokens=False)["input_ids"]]
    if ids and tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    asked = prompt_ids(tokenizer, prompt, chat_template) if prompt else no_prompt(tokenizer)
    return _with_first_token(Row(name, asked.astype(np.int64), np.asarray(ids, np.int64), bool(prompt)))


def _with_first_token(row: Row) -> Row:
    """A row with a token to begin with: its text's first where nothing else is there."""
    return row if len(row.prompt) else replace(row, prompt=row.text[:1], text=row.text[1:])


class Places(NamedTuple):
    """M places of one text: logits float32 (M, V) of both models over the target's vocabulary.

    text    its number
    target, draft  what they say of the next token there
    """

    text: int
    target: torch.Tensor
    draft: torch.Tensor


def sample_places(rows: list[Row], count: int, seed: int) -> list[np.ndarray]:
    """For each row the places int64 (M,) of tokens of its text, rising: ``count`` of all, drawn by seed."""
    ends = np.cumsum([len(row.text) for row in rows])
    drawn = np.sort(np.random.default_rng(seed).permutation(ends[-1])[:count])
    return [part - end + len(row.text) for part, end, row in
            zip(np.split(drawn, np.searchsorted(drawn, ends[:-1])), ends, rows, strict=True)]


@torch.inference_mode()
def read_places(target: Target, draft: Target, rows: list[Row], places: list[np.ndarray]) -> Iterator[Places]:
    """Texts without a place are not read. Raises ModelError where scores are no numbers."""
    for number, (row, wanted) in enumerate(zip(rows, places, strict=True)):
        if not len(wanted):
            continue
        logits = [_logits(model, row, wanted) for model in (target, draft)]
        logits[1] = over_vocabulary(logits[1], target.vocabulary)
        for name, one in zip(("target", "draft model"), logits, strict=True):
            if not one.amax(-1).isfinite().all():
                raise ModelError(f"text {row.name}: the {name}'s scores are no numbers: its weights are "
                                 "damaged, or its type is too narrow; try --dtype float32")
        yield Places(number, *logits)


def _logits(model: Target, row: Row, wanted: np.ndarray) -> torch.Tensor:
    scored = wanted[-1:]  # tokens of the text that the last place stands behind
    ids = np.concatenate((row.prompt, row.text[: scored[0]]))[None]
    ids = np.minimum(ids, model.vocabulary - 1)  # as the drafter reads what its table lacks
    length, slot = np.array([len(row.prompt)]), np.zeros(1, np.int64)
    logits = model.prefill(model.new_cache(1), slot, ids, length, scored)
    return logits[torch.from_numpy(wanted)].float().cpu()
