"""Prompts, previous texts and pools of files, or of a run, as requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dare_job.config.settings import JobConfig
from dare_job.data import recorded_texts
from dare_job.decode.prompt.tokens import prompt_ids, text_ids
from dare_job.decode.request import Request
from dare_job.errors import ConfigError, DataError, RowError
from dare_job.evaluate.methods import published_inputs
from dare_job.evaluate.methods.options import DARE, RELAXED, Options
from dare_job.inference import engines
from dare_job.inference.prompt_format import model_format
from pools.index import Index


@dataclass(frozen=True)
class Inputs:
    """Token ids of prompts, int32 (tokens,), and what rows draft from.

    Attributes
    ----------
    previous
        The previous text of each row, int32 (tokens,); None: it has none.
    pool, others
        Further texts to draft from, of which the first are ``others`` texts of other rows in a random order;
        then, of a run, the rows' own.
    origin
        Where prompts are from: a file, or the dates of a run.
    """

    prompts: list[np.ndarray]
    previous: list[np.ndarray | None]
    pool: list[np.ndarray]
    others: int
    origin: str

    def shared(self, count: int | None = None) -> tuple[Index, ...]:
        """The pool of further texts, if there are any: all, or so many texts of other rows.

        Raises
        ------
        ConfigError
            There are fewer.
        """
        if count is not None and count > self.others:
            raise ConfigError(f"--pool-texts {count}: there are {self.others} texts of other rows")
        texts = self.pool[:count]
        return (Index.build(texts),) if texts else ()

    def requests(self, config: JobConfig, shared: tuple[Index, ...], method: str = DARE) -> list[Request]:
        """The requests of all rows with what a method drafts from, short prompts first.

        Parameters
        ----------
        shared
            The pool of further texts, as ``shared`` returns it.
        """
        drafted, requests = method in (DARE, RELAXED), []
        for row, (prompt, previous) in enumerate(zip(self.prompts, self.previous, strict=True)):
            previous = previous if drafted else None
            own = () if previous is None else (Index.build([previous], kind="own"),)
            pools = (*own, *shared) if drafted else ()
            requests.append(Request(row, prompt, pools, previous_ids=previous,
                                    max_relaxed_tokens=engines.length_limit(pools, config)))
        return sorted(requests, key=lambda request: len(request.prompt_ids))


def read(options: Options, tokenizer, config: JobConfig, model: Path) -> Inputs:
    """Read the files, or the output folder of a run, that the options name.

    Parameters
    ----------
    model
        Folder of the model, whose tokenizer is ``tokenizer``.

    Raises
    ------
    ConfigError
        An option does not go with an output folder.
    DataError
        A file cannot be read, lacks a column, or a prompt is empty or cannot be tokenized; or as
        ``published_inputs.read``.
    """
    more = [text for file in options.pool
            for text in _texts(file, recorded_texts.read(file, options.column).texts, tokenizer)]
    if published_inputs.is_output_folder(options.prompts):
        return _of_run(options, tokenizer, model, more)
    columns = [name for name in (options.prompt_column, options.previous_column) if name]
    table = _read(options.prompts, columns)[: options.rows]
    prompts = _prompts(options.prompts, [row[0] for row in table], tokenizer, config)
    previous = _texts(options.prompts, [row[1] if len(row) > 1 else "" for row in table], tokenizer)
    return Inputs(prompts, [text if text.size else None for text in previous],
                  [more[place] for place in recorded_texts.by_digest([str(n) for n in range(len(more))])],
                  len(more), str(options.prompts))


def _of_run(options: Options, tokenizer, model: Path, more: list[np.ndarray]) -> Inputs:
    if options.previous_column:
        raise ConfigError(f"--previous-column {options.previous_column}: --prompts {options.prompts} is the "
                          "output folder of a run, which has the previous texts; leave the option out")
    rows, earlier, origin = published_inputs.read(options.prompts, options.rows, tokenizer, model)
    previous = [earlier.pop(name, None) for name, _ in rows]
    names = list(earlier)
    others = [earlier[names[place]] for place in recorded_texts.by_digest(names)]
    pool = [text.astype(np.int32) for text in [*others, *more, *previous] if text is not None]
    return Inputs([prompt.astype(np.int32) for _, prompt in rows],
                  [None if text is None else text.astype(np.int32) for text in previous],
                  pool, len(others) + len(more), f"{origin} ({len(pool)} in the pool)")


def _read(file: Path, columns: Sequence[str]) -> list[tuple]:
    if file.suffix != ".txt":
        table = recorded_texts.frame(file, columns)
        return list(zip(*(table[name].tolist() for name in columns), strict=True))
    if len(columns) > 1:
        raise DataError(f"--previous-column {columns[1]}: --prompts {file} has lines without columns; use "
                        "jsonl, csv or Parquet")
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--prompts {file} cannot be read: {error}") from None
    if not any(line.strip() for line in lines):
        raise DataError(f"--prompts {file} has no prompt: all lines are empty")
    return [(line,) for line in lines if line.strip()]


def _prompts(file: Path, values: Sequence, tokenizer, config: JobConfig) -> list[np.ndarray]:
    prompts, style = [], model_format(config)
    for row, value in enumerate(values):
        try:
            ids = prompt_ids(tokenizer, value, style) if isinstance(value, str) else value
        except RowError as error:
            raise DataError(f"--prompts {file}, row {row}: {error}") from None
        if ids is None or not np.size(ids):
            raise DataError(f"--prompts {file}, row {row} has no prompt")
        prompts += recorded_texts.token_ids([ids], (), f"--prompts {file}")
    return prompts


def _texts(file: Path, values: Sequence, tokenizer) -> list[np.ndarray]:
    """Token ids of texts, with an end-of-text token after each string; empty where there is none."""
    places = {place: value for place, value in enumerate(values) if isinstance(value, str) and value}
    ids = dict(zip(places, text_ids(tokenizer, list(places.values())), strict=True))
    given = [ids[place] if place in ids else value if isinstance(value, list | np.ndarray) else []
             for place, value in enumerate(values)]
    return recorded_texts.token_ids(given, (), str(file))
