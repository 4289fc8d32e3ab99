"""Recorded texts and their prompts: reading them from files, their tokens, and which of them are held out."""

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dare_job.errors import DataError
from dare_job.storage.paths import folder_date, visible_files

_MAX_ID = 2**31 - 1


@dataclass(frozen=True)
class Texts:
    """Ids, texts and prompts of files, in their order; without an id column the ids are row numbers.

    A text or prompt is a string, or a sequence of token ids. Without a prompt column there are no prompts.
    """

    ids: list[str]
    texts: list
    prompts: list | None = None


def read(path: str | Path, column: str, id_column: str | None = None, prompt_column: str | None = None
         ) -> Texts:
    """Columns of a jsonl, csv (both gzipped or not) or Parquet file, without rows that have no text.

    Raises
    ------
    DataError
        As ``frame``, or a row has text but no id.
    """
    table = frame(path, [name for name in (column, id_column, prompt_column) if name])
    table = table[[_is_given(value) for value in table[column]]]
    ids = table[id_column] if id_column else table.index
    if id_column and (ids.isna() | (ids.astype(str) == "")).any():
        raise DataError(f"{path}: a row has text but no {id_column}; give every row an id, or omit "
                        "--id-column")
    prompts = [_value(value) for value in table[prompt_column]] if prompt_column else None
    return Texts([str(value) for value in ids], [_value(value) for value in table[column]], prompts)


def _is_given(value) -> bool:
    """Whether a cell has text or token ids."""
    return len(value) > 0 if isinstance(value, (list, np.ndarray)) else value is not None and value == value \
        and value != ""


def _value(value):
    """Token ids as they are, everything else as a string; an empty string if there is nothing."""
    if isinstance(value, (list, np.ndarray)):
        return value
    return str(value) if _is_given(value) else ""


def token_ids(values: Sequence, tokenizer: Sequence[str | Path], where: str) -> list[np.ndarray]:
    """Token ids, int32 (tokens,), of strings or of sequences of token ids.

    Parameters
    ----------
    tokenizer
        As for ``load_tokenizer``; not needed if there are no strings.
    where
        File and column, for messages.

    Raises
    ------
    DataError
        The tokenizer is missing or cannot be read, or a row has something else than token ids.
    """
    places = [place for place, value in enumerate(values) if isinstance(value, str)]
    if places and not tokenizer:
        raise DataError(f"{where} has text, not token ids: name the tokenizer with --tokenizer")
    written = load_tokenizer(tokenizer)([values[place] for place in places]) if places else []
    found = dict(zip(places, written, strict=True))
    return [found[place] if place in found else _ids(value, f"{where}, row {place}")
            for place, value in enumerate(values)]


def _ids(value, where: str) -> np.ndarray:
    try:
        ids = np.array(value)
    except ValueError:  # rows of different lengths
        ids = np.zeros((1, 1))
    if not ids.size:
        return np.zeros(0, np.int32)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() > _MAX_ID:
        raise DataError(f"{where}: not a list of token ids from 0 to {_MAX_ID}")
    return ids.astype(np.int32)


def read_groups(path: str | Path) -> dict[str, str]:
    """Group by id, of a file with columns ``entity_id``, and ``group`` or ``pool``.

    Raises
    ------
    DataError
        As ``frame``, or the file has neither ``group`` nor ``pool``.
    """
    table = frame(path, ["entity_id"])
    column = next((name for name in ("group", "pool") if name in table.columns), None)
    if column is None:
        raise DataError(f"{path} has no column group or pool: it has {', '.join(map(str, table.columns))}")
    return dict(zip(table["entity_id"].astype(str), table[column].astype(str), strict=True))


def frame(path: str | Path, columns: Sequence[str]):
    """Read a jsonl, csv or Parquet file with these columns as a pandas table.

    Raises
    ------
    DataError
        The file cannot be read, has no rows, or lacks a column. The message names the file.
    """
    import pandas

    path = Path(path)
    try:
        if path.suffix == ".parquet" or path.is_dir():
            files = _parquet_files(path)
            table = pandas.read_parquet(files).reset_index(drop=True) if files else pandas.DataFrame()
        elif ".csv" in path.suffixes:
            table = pandas.read_csv(path, dtype=str, keep_default_na=False)
        else:
            opener = gzip.open if path.suffix == ".gz" else open
            with opener(path, "rt", encoding="utf-8") as lines:
                table = pandas.DataFrame([json.loads(line) for line in lines if line.strip()], dtype=object)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read as jsonl, csv or Parquet: {error}") from None
    if table.empty:
        raise DataError(f"{path} has no rows")
    for name in columns:
        if name not in table.columns:
            raise DataError(f"{path} has no column {name}: use one of {', '.join(map(str, table.columns))}")
    return table


def _parquet_files(path: Path) -> list[Path]:
    """The file, or the files below the folder, without copies of dates such as ``dt=2026-01-02.bak``."""
    files = [path] if path.is_file() else visible_files(path, ".parquet")
    return [file for file in files if not any(part.startswith("dt=") and folder_date(part) is None
                                              for part in file.relative_to(path).parts)]


def load_tokenizer(paths: Sequence[str | Path]) -> Callable[[list[str]], list[np.ndarray]]:
    """Encoder of lists of texts from ``tokenizer.json`` (or its folder), or GPT-2's vocabulary and merges.

    It returns int32 (tokens,) for each text.

    Raises
    ------
    DataError
        There is none of these, or a file cannot be read.
    """
    from tokenizers import ByteLevelBPETokenizer, Tokenizer

    files = [file for path in map(Path, paths)
             for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    tokenizers = [file for file in files if file.name == "tokenizer.json"]
    merges = [file for file in files if file.suffix in (".bpe", ".txt")]
    vocabulary = [file for file in files if file.name.endswith(("vocab.json", "encoder.json"))]
    if not tokenizers and not (merges and vocabulary):
        raise DataError("found neither tokenizer.json nor a vocabulary and merges in "
                        + ", ".join(map(str, paths)))
    try:
        if tokenizers:
            tokenizer = Tokenizer.from_file(str(tokenizers[0]))
        else:
            tokenizer = ByteLevelBPETokenizer(str(vocabulary[0]), str(merges[0]))
    except Exception as error:  # the library raises nothing narrower
        raise DataError(f"the tokenizer cannot be read: {error}") from None
    return lambda texts: [np.array(row.ids, np.int32)
                          for row in tokenizer.encode_batch(texts, add_special_tokens=False)]


def by_digest(ids: Sequence[str]) -> list[int]:
    """Indices of the ids, sorted by their SHA-256 hex digests."""
    return sorted(range(len(ids)), key=lambda place: hashlib.sha256(ids[place].encode()).hexdigest())


def held_out(ids: Sequence[str], count: int) -> np.ndarray:
    """bool (len(ids),): the ``count`` ids with the smallest SHA-256 hex digest."""
    chosen = np.zeros(len(ids), bool)
    chosen[by_digest(ids)[:count]] = True
    return chosen
