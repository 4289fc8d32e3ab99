"""What a draft model learns from: a night's published texts with the prompts that they were written for."""

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from dare_job.decode.engine.prompt import prompt_ids
from dare_job.errors import DataError
from dare_job.publish.report.texts import snapshot
from dare_job.schemas import ENTITIES
from dare_job.storage import atomic, errors, paths
from dare_job.storage.paths import AnyPath
from dare_job.tables import published
from dare_job.workspace import Workspace

LEAST = 8  # rows to learn from
_COLUMNS = ["entity_id", "knowledge", "token_ids", "finish_reason", "prompt_sha256"]
_LOG = logging.getLogger("dare_job")


@dataclass(frozen=True)
class Row:
    """prompt int64 (P,), one token where what was asked is not known; text int64 (T,), its end included."""

    name: str
    prompt: np.ndarray
    text: np.ndarray
    asked: bool


@dataclass(frozen=True)
class Source:
    """Published texts of one date: the folders by entity type, their manifests, and the prompts' tables."""

    out: AnyPath
    dt: str
    folders: dict[str, AnyPath]
    manifests: dict[str, dict]

    def wrote(self) -> dict:
        """Who wrote them, as the manifest says; empty where there is none."""
        return next((one["model"] for one in self.manifests.values() if one.get("model")), {})


def source(out: str, dt: str | None) -> Source:
    """The texts of a published date; None: the newest. Raises DataError naming the dates there are."""
    folder = paths.path(out, "--out")
    errors.check_access(folder, "--out")
    atomic.recover(folder)
    dt = snapshot(folder, ENTITIES[0], dt).name[3:]
    folders = {entity: snapshot(folder, entity, dt) for entity in ENTITIES}
    manifests = {entity: published.read_manifest(path) for entity, path in folders.items()}
    return Source(folder, dt, folders, manifests)


def read(found: Source, tokenizer, tokenizer_hash: str, rows: int, held_out: int,
         chat_template: str) -> tuple[list[Row], list[Row]]:
    """Rows to learn from and rows held out, those whose names have the smallest SHA-256 first.

    A row without the prompt that its text was written for is learned from without one, and is not held out.
    Raises DataError where too few are left.
    """
    learned, kept = [], []
    for rank, row in ranked(found, tokenizer, tokenizer_hash, rows + held_out, chat_template):
        if len(row.prompt):
            (kept if rank < held_out and row.asked else learned).append(row)
    if len(learned) < LEAST:
        raise DataError(f"{found.out} has {len(learned)} texts of {found.dt} to learn from (--held-out keeps "
                        f"{len(kept)} apart); a draft model needs {LEAST} at least: name a date with more")
    bare = sum(not row.asked for row in learned)
    if bare:
        _LOG.warning("%d of %d texts are learned without their prompts, which are not in %s: that makes a "
                     "worse draft model; train before `dare-job clean` removes that date's working files",
                     bare, len(learned), Workspace(found.out, date.fromisoformat(found.dt)).work)
    return sorted(learned, key=lambda row: row.name), sorted(kept, key=lambda row: row.name)


def ranked(found: Source, tokenizer, tokenizer_hash: str, count: int,
           chat_template: str) -> Iterator[tuple[int, Row]]:
    """The ``count`` rows whose names have the smallest SHA-256, each with its rank; without an empty text."""
    chosen = _chosen(found, count)
    for entity, one in found.folders.items():
        prompts = _prompts(found, entity, chosen)
        same = found.manifests[entity].get("tokenizer") == tokenizer_hash
        for record in _records(published.dataset(one), entity, chosen, _COLUMNS):
            name = f"{entity}:{record['entity_id']}"
            text = _text(record, tokenizer, same)
            asked = prompts.get((record["entity_id"], record["prompt_sha256"]))
            prompt = prompt_ids(tokenizer, asked, chat_template) if asked else no_prompt(tokenizer)
            if len(text):
                yield chosen[name], Row(name, prompt.astype(np.int64), text, asked is not None)


def _records(table: ds.Dataset, entity: str, chosen: dict[str, int], columns: list[str]) -> Iterator[dict]:
    ids = [name.partition(":")[2] for name in chosen if name.startswith(f"{entity}:")]
    wanted = ds.field("entity_id").isin(pa.array(ids, pa.string()))
    for batch in table.to_batches(columns=columns, filter=wanted):
        yield from batch.to_pylist()


def _chosen(found: Source, count: int) -> dict[str, int]:
    """Ranks of the rows with a text whose names have the smallest hashes."""
    ranked: list[tuple[bytes, str]] = []
    for entity, folder in found.folders.items():
        for batch in published.dataset(folder).to_batches(columns=["entity_id", "knowledge"]):
            for identifier, text in zip(*map(pa.Array.to_pylist, batch.columns), strict=True):
                if text:
                    name = f"{entity}:{identifier}"
                    ranked.append((hashlib.sha256(name.encode()).digest(), name))
            if len(ranked) > 4 * count + 10_000:
                ranked = sorted(ranked)[:count]
    return {name: rank for rank, (_, name) in enumerate(sorted(ranked)[:count])}


def _prompts(night: Source, entity: str, chosen: dict[str, int]) -> dict[tuple[str, str], str]:
    """Prompts of the date's plan, by id and hash, where its working files are still there."""
    folder = Workspace(night.out, date.fromisoformat(night.dt)).stage("plan") / f"entity={entity}"
    if not folder.is_dir():
        return {}
    found = _records(paths.parquet_dataset(folder), entity, chosen, ["entity_id", "prompt", "prompt_sha256"])
    return {(one["entity_id"], one["prompt_sha256"]): one["prompt"] for one in found if one["prompt"]}


def _text(record: dict, tokenizer, same: bool) -> np.ndarray:
    """Token ids int64 as they were written, else of the words, with the end where the text had one."""
    if same and record["token_ids"]:
        return np.asarray(record["token_ids"], np.int64)
    ids = tokenizer(record["knowledge"], add_special_tokens=False)["input_ids"]
    ended = record["finish_reason"] != "length" and tokenizer.eos_token_id is not None
    return np.asarray([*ids, tokenizer.eos_token_id] if ended else ids, np.int64)


def no_prompt(tokenizer) -> np.ndarray:
    """What stands before a text without a prompt, int64: one token, or none where the tokenizer has none."""
    token = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    return np.zeros(0, np.int64) if token is None else np.array([token], np.int64)
