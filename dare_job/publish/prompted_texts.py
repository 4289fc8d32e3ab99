"""Reads the published texts of a date with their prompts, as training data of a draft model."""

import hashlib
import logging
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from dare_job.decode.prompt.template import PLAIN, ChatMode, PromptFormat
from dare_job.decode.prompt.tokens import prompt_ids
from dare_job.errors import DataError, RowError
from dare_job.publish.report.nights import snapshot
from dare_job.schemas import ENTITIES
from dare_job.storage import atomic_folder, errors, paths
from dare_job.storage.paths import AnyPath
from dare_job.tables import published
from dare_job.workspace import Workspace

MIN_ROWS = 8  # of training data
_COLUMNS = ["entity_id", "knowledge", "token_ids", "finish_reason", "prompt_sha256", "generated_dt"]
_LOG = logging.getLogger("dare_job")


@dataclass(frozen=True)
class Row:
    """A training row.

    Attributes
    ----------
    prompt : int64 (P,)
        One token if the prompt is unknown.
    text : int64 (T,)
        With its end token.
    """

    name: str
    prompt: np.ndarray
    text: np.ndarray
    has_prompt: bool


@dataclass(frozen=True)
class Source:
    """Published texts of a date: folders and manifests by entity type."""

    out: AnyPath
    dt: str
    folders: dict[str, AnyPath]
    manifests: dict[str, dict]

    def model(self) -> dict:
        """The model that generated the texts, from the manifest; empty if unknown."""
        models = (manifest.get("model") for manifest in self.manifests.values())
        return next(filter(None, models), {})

    def prompt_format(self, entity: str, chat_template: ChatMode | None = None) -> PromptFormat:
        """The format of an entity type's prompts, from the manifest; ``chat_template`` replaces its mode."""
        record = self.manifests[entity].get("prompt_format") or PLAIN.record()
        return PromptFormat.of_record(record | ({"chat_template": chat_template} if chat_template else {}))


def source(out: str, dt: str | None) -> Source:
    """The texts of a published date, by default the newest.

    Raises
    ------
    DataError
        The date is not published (the message names similar dates), or a manifest is damaged.
    ConfigError, InfrastructureError
        As ``paths.path`` and ``errors.check_access``.
    """
    folder = paths.path(out, "--out")
    errors.check_access(folder, "--out")
    atomic_folder.recover(folder)
    dt = snapshot(folder, ENTITIES[0], dt).name[3:]
    folders = {entity: snapshot(folder, entity, dt) for entity in ENTITIES}
    manifests = {entity: published.read_manifest(path) for entity, path in folders.items()}
    return Source(folder, dt, folders, manifests)


def read(source: Source, tokenizer, tokenizer_hash: str, rows: int, held_out: int,
         chat_template: ChatMode | None) -> tuple[list[Row], list[Row]]:
    """Return training rows and held-out rows, both sorted by name.

    Rows are chosen by the smallest SHA-256 of their names; the smallest are held out. A row without a prompt
    is used for training only.

    Raises
    ------
    DataError
        Too few training rows are left.
    """
    training, held = [], []
    for rank, row in ranked(source, tokenizer, tokenizer_hash, rows + held_out, chat_template):
        if len(row.prompt):
            (held if rank < held_out and row.has_prompt else training).append(row)
    if len(training) < MIN_ROWS:
        raise DataError(f"{source.out} has {len(training)} texts of {source.dt} to train on (--held-out "
                        f"reserves {len(held)}); a draft model needs {MIN_ROWS}: choose another date")
    without_prompt = sum(not row.has_prompt for row in training)
    if without_prompt:
        _LOG.warning("%d of %d texts have no prompt, because %s lacks it; this makes a worse draft model: "
                     "train before `dare-job clean` removes the working files of that date",
                     without_prompt, len(training), Workspace(source.out, date.fromisoformat(source.dt)).work)
    return sorted(training, key=lambda row: row.name), sorted(held, key=lambda row: row.name)


def ranked(source: Source, tokenizer, tokenizer_hash: str, count: int, chat_template: ChatMode | None,
           only: Container[str] | None = None) -> Iterator[tuple[int, Row]]:
    """The ``count`` rows whose names have the smallest SHA-256, each with its rank; without empty texts.

    Prompts have the format of the run that wrote the texts, with another ``chat_template`` if one is given.
    ``only`` limits the choice to these names, such as ``user:1``.
    """
    ranks = _ranks(source, count, only)
    for entity, folder in source.folders.items():
        prompts = _prompts(source, entity, ranks)
        prompt_format = source.prompt_format(entity, chat_template)
        same_tokenizer = source.manifests[entity].get("tokenizer") == tokenizer_hash
        for record in _records(published.dataset(folder), entity, ranks, _COLUMNS):
            name = f"{entity}:{record['entity_id']}"
            text = _text(record, tokenizer, same_tokenizer)
            prompt_text = prompts.get((record["entity_id"], record["prompt_sha256"]))
            day = date.fromisoformat(record["generated_dt"] or source.dt)
            try:
                prompt = (prompt_ids(tokenizer, prompt_text, replace(prompt_format, day=day)) if prompt_text
                          else no_prompt(tokenizer))
            except RowError:  # another model's control token that this tokenizer cannot write as text
                continue
            if len(text):
                yield ranks[name], Row(name, prompt.astype(np.int64), text, prompt_text is not None)


def texts(source: Source, tokenizer, tokenizer_hash: str, count: int, *, only: Container[str] | None = None,
          without: Container[str] = ()) -> dict[str, np.ndarray]:
    """Texts, int64 (tokens,), of the ``count`` names with the smallest SHA-256; without empty ones.

    The choice is limited to the names in ``only`` that are not in ``without``.
    """
    ranks, found = _ranks(source, count, only, without), {}
    for entity, folder in source.folders.items():
        same_tokenizer = source.manifests[entity].get("tokenizer") == tokenizer_hash
        for record in _records(published.dataset(folder), entity, ranks, _COLUMNS):
            found[f"{entity}:{record['entity_id']}"] = _text(record, tokenizer, same_tokenizer)
    return {name: text for name, text in found.items() if len(text)}


def _records(table: ds.Dataset, entity: str, ranks: dict[str, int], columns: list[str]) -> Iterator[dict]:
    ids = [name.partition(":")[2] for name in ranks if name.startswith(f"{entity}:")]
    has_rank = ds.field("entity_id").isin(pa.array(ids, pa.string()))
    for batch in table.to_batches(columns=columns, filter=has_rank):
        yield from batch.to_pylist()


def _ranks(source: Source, count: int, only: Container[str] | None = None,
           without: Container[str] = ()) -> dict[str, int]:
    """Ranks of the ``count`` rows with a text that does not loop whose names have the smallest hashes."""
    hashes: list[tuple[bytes, str]] = []
    for entity, folder in source.folders.items():
        table = published.dataset(folder)
        for batch in table.to_batches(columns=["entity_id"], filter=published.usable_as_draft()):
            names = [f"{entity}:{identifier}" for identifier in batch["entity_id"].to_pylist()]
            hashes += [(hashlib.sha256(name.encode()).digest(), name) for name in names
                       if name not in without and (only is None or name in only)]
            if len(hashes) > 4 * count + 10_000:
                hashes = sorted(hashes)[:count]
    return {name: rank for rank, (_, name) in enumerate(sorted(hashes)[:count])}


def _prompts(source: Source, entity: str, ranks: dict[str, int]) -> dict[tuple[str, str], str]:
    """Prompts in the plan of the date, by id and hash; empty if its working files are gone."""
    folder = Workspace(source.out, date.fromisoformat(source.dt)).stage("plan") / f"entity={entity}"
    if not folder.is_dir():
        return {}
    rows = _records(paths.parquet_dataset(folder), entity, ranks, ["entity_id", "prompt", "prompt_sha256"])
    return {(row["entity_id"], row["prompt_sha256"]): row["prompt"] for row in rows if row["prompt"]}


def _text(record: dict, tokenizer, same_tokenizer: bool) -> np.ndarray:
    """The generated token ids, int64; tokenizes the text if another tokenizer generated it."""
    if same_tokenizer and record["token_ids"]:
        return np.asarray(record["token_ids"], np.int64)
    ids = tokenizer(record["knowledge"], add_special_tokens=False)["input_ids"]
    ended = record["finish_reason"] not in ("length", "loop") and tokenizer.eos_token_id is not None
    return np.asarray([*ids, tokenizer.eos_token_id] if ended else ids, np.int64)


def no_prompt(tokenizer) -> np.ndarray:
    """The prompt of a row without one, int64 (1,) or (0,): the BOS or EOS token if the tokenizer has one."""
    token = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    return np.zeros(0, np.int64) if token is None else np.array([token], np.int64)
