"""Results of the quality gate: one finding per check and entity type, and the table of failing rows."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dare_job.publish.gate.shared_spans import RUN
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath

CHECKS = {  # in the order of reports: what failed, for the message, and the setting of the limit
    "errors": ("rows with a prompt failed", "limits.max_error_share"),
    "errors_again": ("rows repeat the error of the previous run", "limits.max_error_share"),
    "empty": ("texts are empty", "gates.max_share.empty"),
    "short": ("texts are too short", "gates.max_share.short"),
    "cut_off": ("texts are cut off", "gates.max_share.cut_off"),
    "schema": ("texts do not have the form of decode.schema", "gates.max_share.schema"),
    "loop": ("texts loop", "gates.max_share.loop"),
    "unprintable": ("texts contain unprintable characters", "gates.max_share.unprintable"),
    "copied": ("texts copy their prompt", "gates.max_share.copied"),
    "refusal": ("texts refuse", "gates.max_share.refusal"),
    "wrong_script": ("texts are in another script than the prompts", "gates.max_share.wrong_script"),
    "thinking": ("texts contain a thinking tag", "gates.max_share.thinking"),
    "shell": ("texts have no content", "gates.max_share.shell"),
    "same_text": ("texts equal that of another row", "gates.max_share.same_text"),
    "shared": (f"texts share {RUN} words or more with another row's", "gates.max_share.shared"),
    "relaxed": ("tokens are not the model's top-1 token", "gates.max_share.relaxed"),
    "length_ratio": ("median ratio of new to previous text length", "gates.max_length_ratio"),
    "length_distance": ("distance of new from previous text lengths", "gates.max_share.length_distance"),
}

OF_ERRORS = ("errors", "errors_again")

OF_TEXTS = ("empty", "short", "cut_off", "schema", "loop", "unprintable", "copied", "refusal",
            "wrong_script", "thinking", "shell", "same_text", "shared", "relaxed")

OF_LENGTHS = ("length_ratio", "length_distance")

MAX_IDS = 5  # in a message


@dataclass(frozen=True)
class Finding:
    """Result of one check for one entity type.

    Attributes
    ----------
    rows
        Number of rows that failed the check.
    of
        Number of rows that were checked.
    value
        Value compared with the limit: a share, or for lengths a ratio or distance; None: not checked.
    limit
        None: the check is off.
    failed
        The value exceeds the limit, so nothing is published.
    first
        Ids of the first failing rows.
    why
        Why the check was skipped, or why a value above its limit passed.
    """

    rows: int
    of: int
    value: float | None
    limit: float | None
    failed: bool = False
    first: list[str] = field(default_factory=list)
    why: str | None = None


def records(findings: dict[str, dict[str, Finding]]) -> dict[str, dict[str, dict]]:
    """Findings by entity type and check, as JSON values."""
    return {entity: {check: asdict(finding) for check, finding in checks.items()}
            for entity, checks in findings.items()}


def worst(findings: dict[str, dict[str, dict]]) -> dict[str, float | None]:
    """For each check of ``records``, the larger value of the entity types (a ratio: the one farther from 1).

    None if nothing was checked.
    """
    result = {}
    for check in CHECKS:
        values = [checks[check]["value"] for checks in findings.values() if check in checks]
        values = [value for value in values if value is not None]
        key = _distance_from_one if check == "length_ratio" else None
        result[check] = round(max(values, key=key), 6) if values else None
    return result


def _distance_from_one(ratio: float) -> float:
    return max(ratio, 1 / ratio)


NAME = "failing_rows.parquet"
MAX_ROWS = 100_000  # per check and entity type
_TEXT_CHARACTERS = 200
_BUFFERED_ROWS = 20_000

ROWS = pa.schema([
    pa.field("entity", pa.string(), nullable=False),
    pa.field("entity_id", pa.string(), nullable=False),
    pa.field("check", pa.string(), nullable=False),
    pa.field("value", pa.float64()),  # see docs/how-to/quality-gates.md; null for an error
    pa.field("text", pa.string()),  # the first 200 characters, or the error
])


class FailingRows:
    """Counts failing rows, and writes ``folder/failing_rows.parquet``, at most MAX_ROWS of each count.

    Attributes
    ----------
    rows, first
        By entity type and check, the number of failing rows and the first of their ids.
    """

    def __init__(self, file: pq.ParquetWriter):
        self.rows: Counter[tuple[str, str]] = Counter()
        self.first: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        self._file = file
        self._buffer: list[pa.RecordBatch] = []

    @classmethod
    @contextmanager
    def create(cls, folder: AnyPath) -> Iterator["FailingRows"]:
        """Create the table in a folder; it is complete when the block ends."""
        with (paths.arrow_sink(folder / NAME) as sink,
              pq.ParquetWriter(sink, ROWS, compression="zstd") as file):
            table = cls(file)
            yield table
            table._write()

    def add(self, entity: str, check: str, ids: pa.Array, values: np.ndarray | None, texts: pa.Array) -> None:
        """Add N rows: ids and texts string (N,), and the checked values (N,), None for errors."""
        key = entity, check
        self.first[key] += ids[:MAX_IDS - len(self.first[key])].to_pylist()
        capacity = min(MAX_ROWS - self.rows[key], len(ids))
        self.rows[key] += len(ids)
        if capacity <= 0:
            return
        values = (pa.nulls(capacity, pa.float64()) if values is None
                  else pa.array(values[:capacity].astype(float)))
        starts = pc.utf8_slice_codeunits(texts.slice(0, capacity), 0, _TEXT_CHARACTERS)
        columns = [pa.repeat(entity, capacity), ids.slice(0, capacity), pa.repeat(check, capacity), values,
                   starts]
        self._buffer.append(pa.RecordBatch.from_arrays(columns, schema=ROWS))
        if sum(batch.num_rows for batch in self._buffer) >= _BUFFERED_ROWS:
            self._write()

    def _write(self) -> None:
        if self._buffer:
            self._file.write_table(pa.Table.from_batches(self._buffer))
            self._buffer.clear()
