"""The texts at whose positions acceptance is measured, and both models' logits at these positions."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dare_job import prompts
from dare_job.data.recorded_texts import frame
from dare_job.data.sample_world.simulate import item_examples, simulate, user_examples
from dare_job.decode.draft.model import over_vocabulary
from dare_job.decode.model.target import Target
from dare_job.decode.prompt.template import ChatMode, PromptFormat
from dare_job.decode.prompt.tokens import prompt_ids
from dare_job.errors import DataError, ModelError, RowError
from dare_job.models.files import tokenizer_hash
from dare_job.publish import prompted_texts as published
from dare_job.publish.prompted_texts import Row, no_prompt

_PROMPT = "prompt"
_USERS, _ITEMS, _DAY = 400, 300, 20  # size of the synthetic data set, and the day of its texts
_LOG = logging.getLogger("dare_job")


def read(source: str | None, column: str, prompt_column: str | None, tokenizer, model: Path, count: int,
         seed: int, chat_template: ChatMode | None = None) -> list[Row]:
    """Return up to ``count`` rows with a text.

    Parameters
    ----------
    source
        A run's output folder, for its newest published texts with prompts (those whose names have the
        smallest SHA-256); a jsonl, csv or Parquet file; or None for the synthetic data set; from the last
        two, rows are sampled by the seed.
    column
        Text column of a file.
    prompt_column
        Prompt column of a file; None for "prompt" if the file has it.
    model
        Folder of the target.

    Raises
    ------
    DataError
        The source cannot be read, lacks a column, or has no text with at least one token.
    """
    rows = []
    if source is None:
        records = _sample_world()
    elif "://" in source or (Path(source) / "knowledge").is_dir():
        published_texts = published.source(source, None)
        ranked = published.ranked(published_texts, tokenizer, tokenizer_hash(model), count, chat_template)
        rows, records = [_with_first_token(row) for _, row in ranked], []
    else:
        records = _records(Path(source), column, prompt_column)
    chosen = np.sort(np.random.default_rng(seed).permutation(len(records))[:count])
    prompt_format = PromptFormat(chat_template or "auto")
    rows += [_row(*records[position], tokenizer, prompt_format) for position in chosen]
    rows = [row for row in rows if len(row.text)]
    if not rows:
        raise DataError(f"--text {source} has no text with at least one token")
    return rows


def truncate(rows: list[Row], context: int | None) -> list[Row]:
    """Truncate rows to the context of both models.

    Raises
    ------
    DataError
        Every prompt fills the context.
    """
    if context is None:
        return rows
    truncated = [replace(row, text=row.text[: max(0, context - len(row.prompt))]) for row in rows]
    truncated = [row for row in truncated if len(row.text)]
    if not truncated:
        raise DataError(f"every prompt fills the context of {context} tokens that both models support")
    if len(truncated) < len(rows):
        _LOG.warning("%d of %d rows are left out: their prompts fill the context of %d tokens that both "
                     "models support", len(rows) - len(truncated), len(rows), context)
    return truncated


def _sample_world() -> list[tuple]:
    world, prompt_set = simulate(_USERS, _ITEMS, 0), prompts.load(prompts.SAMPLE)
    both = chain(user_examples(world, prompt_set, _DAY), item_examples(world, prompt_set, _DAY))
    return [(f"{example.entity}:{example.row}", example.prompt, example.text) for example in both]


def _records(path: Path, column: str, prompt_column: str | None) -> list[tuple]:
    """Return (name, prompt or None, text) of a file's rows with a text."""
    table = frame(path, [column, *([prompt_column] if prompt_column else [])]).dropna(subset=[column])
    prompt_name = prompt_column or (_PROMPT if _PROMPT in table.columns else None)
    prompts = table[prompt_name] if prompt_name else [None] * len(table)
    return [(str(number), prompt if isinstance(prompt, str) else None, str(text))
            for number, prompt, text in zip(table.index, prompts, table[column], strict=True) if text]


def _row(name: str, prompt: str | None, text: str, tokenizer, prompt_format: PromptFormat) -> Row:
    ids = [*tokenizer(text, add_special_tokens=False)["input_ids"]]
    if ids and tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    try:
        prompt_tokens = prompt_ids(tokenizer, prompt, prompt_format) if prompt else no_prompt(tokenizer)
    except RowError as error:
        _LOG.warning("row %s is measured without its prompt: %s", name, error)
        prompt_tokens, prompt = no_prompt(tokenizer), None
    return _with_first_token(Row(name, prompt_tokens.astype(np.int64), np.asarray(ids, np.int64),
                                 bool(prompt)))


def _with_first_token(row: Row) -> Row:
    """Return a row with a nonempty prompt: without one, the text's first token becomes the prompt."""
    return row if len(row.prompt) else replace(row, prompt=row.text[:1], text=row.text[1:])


class Positions(NamedTuple):
    """M positions of one text.

    Attributes
    ----------
    text
        Number of the text.
    target, draft : float32 (M, V)
        Logits of the next token over the target's vocabulary.
    """

    text: int
    target: torch.Tensor
    draft: torch.Tensor


def sample_positions(rows: list[Row], count: int, seed: int) -> list[np.ndarray]:
    """Sample ``count`` positions over all rows; return each row's token indices int64 (M,), ascending."""
    ends = np.cumsum([len(row.text) for row in rows])
    sampled = np.sort(np.random.default_rng(seed).permutation(ends[-1])[:count])
    return [part - end + len(row.text) for part, end, row in
            zip(np.split(sampled, np.searchsorted(sampled, ends[:-1])), ends, rows, strict=True)]


@torch.inference_mode()
def read_positions(target: Target, draft: Target, rows: list[Row],
                   positions: list[np.ndarray]) -> Iterator[Positions]:
    """Run both models over every text with a position; ``positions`` as from ``sample_positions``.

    Raises
    ------
    ModelError
        Logits are non-finite.
    """
    for number, (row, row_positions) in enumerate(zip(rows, positions, strict=True)):
        if not len(row_positions):
            continue
        logits = [_logits(model, row, row_positions) for model in (target, draft)]
        logits[1] = over_vocabulary(logits[1], target.vocabulary)
        for name, model_logits in zip(("target", "draft model"), logits, strict=True):
            if not model_logits.amax(-1).isfinite().all():
                raise ModelError(f"text {row.name}: the logits of the {name} are not finite: its weights are "
                                 "damaged, or its dtype is too narrow; try --dtype float32")
        yield Positions(number, *logits)


def _logits(model: Target, row: Row, positions: np.ndarray) -> torch.Tensor:
    last_position = positions[-1:]  # number of text tokens before the last position
    ids = np.concatenate((row.prompt, row.text[: last_position[0]]))[None]
    ids = np.minimum(ids, model.vocabulary - 1)  # as the drafter replaces tokens outside its vocabulary
    length, slot = np.array([len(row.prompt)]), np.zeros(1, np.int64)
    logits = model.prefill(model.new_cache(1), slot, ids, length, last_position)
    return logits[torch.from_numpy(positions)].float().cpu()
