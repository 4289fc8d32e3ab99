"""Chunk files: what Spark tasks commit while a stage runs, so that a killed run resumes without losing rows.

A file ``part-*.parquet`` is written under a hidden name and renamed, so a file that can be listed is
complete. Writing a chunk again replaces the same rows. Files of generated text also hold their totals in the
footer. This module knows nothing about models or Spark.
"""

import json
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dare_job.schemas import KNOWLEDGE
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath

_LOG = logging.getLogger("dare_job")
_RECORD = "dare_job."  # prefix of the keys of JSON values in a footer


@dataclass(frozen=True)
class Totals:
    """Sums over rows of KNOWLEDGE.

    Attributes
    ----------
    scored_tokens
        Tokens of the previous text that were reused.
    slot_steps
        Steps times batch size.
    guarded_rows
        Rows with tokens after the length limit of relaxed verification.
    busy_s
        Decoding time of the workers.
    """

    rows: int = 0
    errors: int = 0
    tokens: int = 0
    target_steps: int = 0
    scored_tokens: int = 0
    accepted_tokens: int = 0
    relaxed_tokens: int = 0
    slot_steps: float = 0.0
    guarded_rows: int = 0
    busy_s: float = 0.0

    @property
    def texts(self) -> int:
        """Rows that have a text; the others have an error, most of them because they have no prompt."""
        return self.rows - self.errors

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Totals)))

    def record(self) -> dict:
        """Sums and rates as JSON values, without the number of rows."""
        sums = {name: value for name, value in asdict(self).items() if name != "rows"}
        return sums | {"accepted_per_step": self.accepted_per_step, "tokens_per_s": self.tokens_per_s,
                       "busy_slots": self.busy_slots}

    @property
    def accepted_per_step(self) -> float | None:
        """Accepted draft tokens per forward pass; the target's own token does not count."""
        return self.accepted_tokens / self.target_steps if self.target_steps else None

    @property
    def busy_slots(self) -> float | None:
        """Batch utilization: share of the batch slots that held a row, over all steps."""
        return self.target_steps / self.slot_steps if self.slot_steps else None

    @property
    def tokens_per_s(self) -> float | None:
        """New tokens per second of one worker's decoding time (prompts, retrieval and steps)."""
        return self.tokens / self.busy_s if self.busy_s else None


def totals_of(rows: pa.Table | pa.RecordBatch, busy_s: float = 0.0) -> Totals:
    """Totals of rows of KNOWLEDGE."""
    def total(name: str) -> int:
        return pc.sum(rows[name]).as_py() or 0

    errors = rows.num_rows - rows["error"].null_count
    guarded = pc.sum(pc.greater(rows["guarded_tokens"], 0)).as_py() or 0
    return Totals(rows.num_rows, errors, total("tokens"), total("target_steps"), total("scored_tokens"),
                  total("accepted_tokens"), total("relaxed_tokens"), total("slot_steps"), guarded, busy_s)


def name(shard: int, chunk: int) -> str:
    """File name of a chunk of generated text."""
    return f"part-{shard:05d}-{chunk:05d}.parquet"


def committed(folder: AnyPath) -> set[tuple[int, ...]]:
    """Numbers in the names of a folder's chunk files; the folder may not exist."""
    return {numbers(path) for path in folder.glob("part-*.parquet")}


def numbers(path: AnyPath) -> tuple[int, ...]:
    """Numbers in a chunk file's name: (shard, chunk) of generated text."""
    return tuple(map(int, path.stem.split("-")[1:]))


def write_table(path: AnyPath, table: pa.Table) -> None:
    """Write a chunk file atomically; an older file with this name is replaced."""
    with paths.atomic_writer(path, f".{path.name}.{uuid.uuid4().hex}.partial") as file:
        pq.write_table(table, file, compression="zstd")


def write(path: AnyPath, rows: Sequence[dict] | pa.Table, busy_s: float = 0.0, **records: dict) -> Totals:
    """Write a chunk file of KNOWLEDGE rows, with their totals and other ``records`` in the footer."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows), schema=KNOWLEDGE)
    totals = totals_of(table, busy_s)
    footer = {f"{_RECORD}{name}": json.dumps(record) for name, record in (
        ("totals", asdict(totals)), *records.items())}
    write_table(path, table.replace_schema_metadata({**KNOWLEDGE.metadata, **footer}))
    return totals


def read_records(path: AnyPath) -> dict[str, dict]:
    """The totals and other records in a file's footer, by name, without reading its rows."""
    with paths.arrow_source(path) as source:
        footer = pq.read_schema(source).metadata or {}
    records = {name.decode(): value for name, value in footer.items()}
    return {name.removeprefix(_RECORD): json.loads(value) for name, value in records.items()
            if name.startswith(_RECORD)}


def read_totals(path: AnyPath) -> Totals:
    return Totals(**read_records(path)["totals"])


def discard_unreadable(folder: AnyPath, read: Callable[[AnyPath], object] = read_totals) -> None:
    """Delete chunk files that ``read`` cannot read, so that they are written again (a disk was full, say).

    The hidden files of killed writers are deleted as well.
    """
    for path in folder.glob(".*.partial"):
        path.unlink(missing_ok=True)

    def discard(path: AnyPath) -> None:
        try:
            read(path)
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            _LOG.warning("%s cannot be read and is written again: %s", path, str(error).partition("\n")[0])
            path.unlink()

    paths.map_paths(discard, sorted(folder.glob("*.parquet")))


class Tally:
    """Running totals of growing folders; each file's footer is read once."""

    def __init__(self, folders: Iterable[AnyPath]):
        self._folders = list(folders)
        self._seen: set[AnyPath] = set()
        self._sum = Totals()

    def update(self) -> Totals:
        for folder in self._folders:
            new = [path for path in folder.glob("*.parquet") if path not in self._seen]
            self._sum = sum(paths.map_paths(read_totals, new), self._sum)
            self._seen.update(new)
        return self._sum
