"""The rows that all engines write: prompts of a date, and the texts of the date before, as token ids."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dare_job.bench.cli import ints
from dare_job.cli import options as night_options
from dare_job.config.options import option, words
from dare_job.data.input import preview_rows as input_rows
from dare_job.decode.engine.generation_config import read_rules
from dare_job.decode.request import Request
from dare_job.errors import ConfigError, DataError
from dare_job.evaluate.preview import decode, drafts
from dare_job.generate import loading
from dare_job.job import Job
from pools.index import Index

_GRAM = 4  # tokens in a row that count as copied
_DTYPES = ("float32", "bfloat16")


def chosen(valid: Collection[str]) -> Callable[[str, str], tuple[str, ...]]:
    """Return the parser of an option that takes some of these names.

    Raises
    ------
    ConfigError
        By the parser: a name is not in ``valid``.
    """
    def parse(flag: str, text: str) -> tuple[str, ...]:
        names = tuple(words(flag, text))
        if unknown := [name for name in names if name not in valid]:
            raise ConfigError(f"{flag} {unknown[0]} is not one of {', '.join(valid)}")
        return names

    return parse


@dataclass(frozen=True)
class Options(night_options.Night):
    """Options of the benches that write users of a date, with drafts from the texts of the date before."""

    batch: tuple[int, ...] = option("Batch sizes.", (1, 8, 32), parse=ints)
    rows: tuple[int, ...] = option("Numbers of users, one for each batch size.", (8, 32, 64), parse=ints)
    pool: int = option("Maximum number of texts of the previous date that are offered as drafts.", 2000)
    threads: int = option("Threads and processors of each engine, on a CPU.", 1)
    dtypes: tuple[str, ...] = option(
        "Floating-point types of the weights. Default: float32, and bfloat16 if there are instructions for "
        "it.", (), parse=chosen(_DTYPES))
    work: Path | None = option("Folder that keeps environments, converted models and latency curves. "
                               "Default: a temporary folder.", None)

    def __post_init__(self):
        if len(self.rows) != len(self.batch) or not self.batch:
            raise ConfigError(f"--rows must have a number for each of the {len(self.batch)} batch sizes")

    def types(self, device: str = "cpu") -> tuple[str, ...]:
        """The floating-point types to measure: the chosen ones, or those of the device."""
        bfloat16 = device == "cuda" or torch.cpu._is_avx512_bf16_supported()
        return self.dtypes or _DTYPES[:1 + bfloat16]


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


def content(rows: Rows, model: Path, work: Path, **settings) -> dict:
    """What the engines' scripts read; ``settings`` are more entries of it."""
    return {"model": str(model.absolute()), "work": str(work.absolute()), "eos": list(rows.eos),
            "pool": [text.tolist() for text in [*rows.pool, *rows.previous.values()]],
            "rows": [{"id": name, "prompt": prompt.tolist(), "previous": _ids(rows.previous.get(name))}
                     for name, prompt in rows.prompts.items()], **settings}


def alone(content: dict) -> dict:
    """The content without the texts of the date before."""
    return content | {"pool": [], "rows": [row | {"previous": []} for row in content["rows"]]}


def request(name: str, prompt: np.ndarray, previous: np.ndarray | None, pool: Index) -> Request:
    """The request of a row, with its own previous text, if any, and the pool as drafts."""
    own = () if previous is None else (Index.build([previous], kind="own"),)
    return Request(name, prompt, (*own, pool), previous_ids=previous)


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
