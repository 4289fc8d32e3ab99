"""The rows that all engines write: prompts of a date, and the texts of the date before, as token ids."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dare_job.data.without_spark import rows as input_rows
from dare_job.decode.engine.generation_config import read_rules
from dare_job.errors import DataError
from dare_job.evaluate.preview import decode, drafts
from dare_job.generate import loading
from dare_job.job import Job

_GRAM = 4  # tokens in a row that count as copied


@dataclass(frozen=True)
class Rows:
    """The rows of one date.

    Attributes
    ----------
    prompts
        Token ids by id.
    previous
        Token ids of the rows' texts of the date before, where there are any.
    pool
        All texts of the date before.
    eos
        Tokens that end a text.
    """

    prompts: dict[str, np.ndarray]
    previous: dict[str, np.ndarray]
    pool: Sequence[np.ndarray]
    eos: tuple[int, ...]


def read(job: Job, count: int, pool: int) -> Rows:
    """Return ``count`` users of the job's date and up to ``pool`` texts of the date before.

    Raises
    ------
    DataError
        The output folder has no earlier date, or the input too few users.
    """
    chosen = input_rows.choose(job.config, job.space.day, count)
    rows = [row for row in input_rows.prompts(chosen, job.config) if row.entity == "user" and row.prompt]
    if len(rows) < count:
        raise DataError(f"input.path = {job.config.input.path} has {len(rows)} users with a prompt, not "
                        f"{count}; name fewer with --rows")
    task = decode.make_task(job)
    previous = drafts.read_previous(job, task, rows, pool).get("user")
    if previous is None:
        raise DataError(f"out = {job.config.out} has no texts of an earlier date: run the job for one first")
    prompts = {row.entity_id: decode.make_request(row, task).prompt_ids for row in rows}
    rules = read_rules(loading.load_task_model(task).target.generation_config, None)
    loading.unload_models()
    return Rows(prompts, previous.own, previous.texts, tuple(rules.eos))


def write(path: Path, rows: Rows, model: Path, work: Path, **settings) -> None:
    """Write the task file of the engines' scripts; ``settings`` are more entries of it."""
    task = {"model": str(model.absolute()), "work": str(work.absolute()), "eos": list(rows.eos),
            "pool": [text.tolist() for text in [*rows.pool, *rows.previous.values()]],
            "rows": [{"id": name, "prompt": prompt.tolist(), "previous": _ids(rows.previous.get(name))}
                     for name, prompt in rows.prompts.items()]}
    path.write_text(json.dumps(task | settings), encoding="utf-8")


def _ids(text: np.ndarray | None) -> list[int]:
    return [] if text is None else text.tolist()


def copied_share(prompt: Sequence[int], text: Sequence[int]) -> float:
    """Return the share of a text's tokens that lie in four tokens in a row of its prompt."""
    grams = {tuple(prompt[at:at + _GRAM]) for at in range(len(prompt) - _GRAM + 1)}
    copied = np.zeros(len(text), np.bool_)
    for at in range(len(text) - _GRAM + 1):
        if tuple(text[at:at + _GRAM]) in grams:
            copied[at:at + _GRAM] = True
    return float(copied.mean()) if len(text) else 0.0
