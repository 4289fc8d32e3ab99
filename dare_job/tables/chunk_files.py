"""Files of finished rows: written whole, named by shard and chunk, with their totals in the footer.

A file is written under a hidden name and renamed, so one that can be listed is complete; writing a chunk
a second time replaces the same rows. Knows nothing of models or Spark.
"""

import json
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields

import pyarrow as pa
import pyarrow.parquet as pq

from dare_job.schemas import KNOWLEDGE
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath

_LOG = logging.getLogger("dare_job")
_FOOTER = b"dare_job.totals"
_MAKER = b"dare_job.maker"
_NOTHING: Mapping[str, dict] = {}


@dataclass(frozen=True)
class Maker:
    """Who wrote a file: host and process, and the rows that it decoded at once by then."""

    worker: str
    batch_size: int


@dataclass(frozen=True)
class Totals:
    """What some rows of KNOWLEDGE add up to.

    guarded_rows  rows with tokens behind their length guard
    busy_s        the workers' decoding time
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

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Totals)))

    def record(self) -> dict:
        """Sums and rates as JSON values, without the number of rows."""
        sums = {name: value for name, value in asdict(self).items() if name != "rows"}
        return sums | {"accepted_per_step": self.accepted_per_step, "tokens_per_s": self.tokens_per_s,
                       "busy_slots": self.busy_slots}

    @property
    def accepted_per_step(self) -> float | None:
        """Draft tokens accepted a forward of the model, the model's own token not counted."""
        return self.accepted_tokens / self.target_steps if self.target_steps else None

    @property
    def busy_slots(self) -> float | None:
        """Share of the engine's slots that held a row, over all its steps."""
        return self.target_steps / self.slot_steps if self.slot_steps else None

    @property
    def tokens_per_s(self) -> float | None:
        """New tokens a second of one worker's decoding time (prompts, retrieval and steps)."""
        return self.tokens / self.busy_s if self.busy_s else None


def totals_of(table: pa.Table, busy_s: float = 0.0) -> Totals:
    """Totals of a table of KNOWLEDGE."""
    def total(name: str) -> int:
        return pa.compute.sum(table[name]).as_py() or 0

    errors = len(table) - table["error"].null_count
    return Totals(len(table), errors, total("tokens"), total("target_steps"), total("scored_tokens"),
                  total("accepted_tokens"), total("relaxed_tokens"), total("slot_steps"), guarded(table),
                  busy_s)


def guarded(rows: pa.Table | pa.RecordBatch) -> int:
    """Rows of KNOWLEDGE whose text went on behind their length guard."""
    return pa.compute.sum(pa.compute.greater(rows["guarded_tokens"], 0)).as_py() or 0


def name(shard: int, chunk: int) -> str:
    return f"part-{shard:05d}-{chunk:05d}.parquet"


def committed(folder: AnyPath) -> set[tuple[int, int]]:
    """(shard, chunk) of every complete chunk file in a folder (which may not exist)."""
    stems = (path.stem.split("-") for path in folder.glob("part-*-*.parquet"))
    return {(int(shard), int(chunk)) for _, shard, chunk in stems}


def write(path: AnyPath, rows: Sequence[dict] | pa.Table, busy_s: float = 0.0,
          maker: Maker | None = None, notes: Mapping[str, dict] = _NOTHING) -> Totals:
    """Write rows of KNOWLEDGE under ``path``, complete or not at all; an older file is replaced.

    notes: of JSON values, for the footer, too
    """
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows), schema=KNOWLEDGE)
    totals = totals_of(table, busy_s)
    footer = {**KNOWLEDGE.metadata, _FOOTER: json.dumps(asdict(totals)).encode()}
    if maker is not None:
        footer[_MAKER] = json.dumps(asdict(maker)).encode()
    footer |= {_note(name): json.dumps(note).encode() for name, note in notes.items()}
    with paths.atomic_writer(path, f".{path.name}.{uuid.uuid4().hex}.partial") as file:
        pq.write_table(table.replace_schema_metadata(footer), file, compression="zstd")
    return totals


def read_totals(path: AnyPath) -> Totals:
    """Totals from a file's footer, without its rows."""
    with paths.arrow_source(path) as source:
        return Totals(**json.loads(pq.read_schema(source).metadata[_FOOTER]))


def read_maker(path: AnyPath) -> tuple[Maker | None, float]:
    """Who wrote a file, None where it does not say, and the seconds that its rows took."""
    with paths.arrow_source(path) as source:
        found = pq.read_schema(source).metadata
    maker = Maker(**json.loads(found[_MAKER])) if _MAKER in found else None
    return maker, json.loads(found[_FOOTER])["busy_s"]


def read_note(path: AnyPath, name: str) -> dict | None:
    """A note of a file's footer; None where there is none of this name."""
    with paths.arrow_source(path) as source:
        found = pq.read_schema(source).metadata.get(_note(name))
    return found and json.loads(found)


def _note(name: str) -> bytes:
    return f"dare_job.{name}".encode()


def discard_unreadable(folder: AnyPath, read: Callable[[AnyPath], object] = read_totals) -> None:
    """Delete files that ``read`` cannot read (a disk was full, say): they are missing, and written anew.

    So are the hidden files of writers that were killed.
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
    """Adds up the files of growing folders; each file's footer is read once."""

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
