"""Collects the statistics of the report in one pass over the batches of a published snapshot.

Memory grows with the number of pools and of distinct errors (up to a limit), not with rows. Columns
that an older snapshot lacks are null.
"""

import hashlib
from collections import Counter
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pandas.util import hash_array

from dare_job.observe import progress
from dare_job.publish.gate.failures import ErrorReasons
from dare_job.publish.report.format import Histogram, accepted_histogram, latency_histogram
from dare_job.storage.paths import AnyPath
from dare_job.tables import published

LISTED = 8  # slowest rows, rows with the lowest acceptance
SAMPLED = 64  # rows of each entity type from which sample texts are chosen
MIN_STEPS = 16  # acceptance of shorter texts is not compared

_COUNTS = ("tokens", "target_steps", "scored_tokens", "accepted_tokens")
_TIMES = ("decode_ms", "retrieval_ms")
ROW_TIMES = (*_TIMES, "prompt_ms")
_COLUMNS = ("entity_id", "error", "generated_dt", "copied", "finish_reason", "pool", "pool_kind",
            "step_tokens", *_COUNTS, *ROW_TIMES)
_POOLS = pa.schema([*((name, pa.string()) for name in ("pool", "pool_kind")),
                    *((name, pa.int64()) for name in ("texts", *_COUNTS)),
                    *((name, pa.float64()) for name in _TIMES)])
_BATCH = 1 << 16


class Top:
    """Keeps the ``size`` rows with the largest keys. Rows whose key is NaN are ignored."""

    def __init__(self, size: int):
        self._size = size
        self._entries: list[tuple[float, dict]] = []  # key and row, by descending key

    def offer(self, keys: np.ndarray, row: Callable[[int], dict]) -> None:
        """Add a batch: keys (rows,); ``row(n)`` returns its n-th row, and is called for few rows."""
        smallest = self._entries[-1][0] if len(self._entries) == self._size else -np.inf
        larger = np.flatnonzero(keys > smallest)
        larger = larger[np.argsort(-keys[larger], kind="stable")[:self._size]]
        entries = self._entries + [(float(keys[n]), row(int(n))) for n in larger]
        self._entries = sorted(entries, key=lambda entry: -entry[0])[:self._size]

    def rows(self) -> list[dict]:
        """The rows by descending key; rows with equal keys in the order of their arrival."""
        return [row for _, row in self._entries]


class Kind:
    """Generated texts of one entity type and kind of pool.

    Attributes
    ----------
    accepted
        Draft tokens accepted in each forward pass after the prompt.
    latency
        Milliseconds of worker time per text.
    """

    def __init__(self, entity: str, name: str):
        self.entity, self.name, self.texts = entity, name, 0
        self.accepted: Histogram = accepted_histogram()
        self.latency: Histogram = latency_histogram()

    def add(self, rows: pa.RecordBatch) -> None:
        """Count generated texts, as rows of KNOWLEDGE."""
        self.texts += rows.num_rows
        emitted = pc.list_slice(rows["step_tokens"], 1).flatten()  # without the prompt's forward pass
        self.accepted.add(emitted.to_numpy().astype(np.int64) - 1)
        self.latency.add(rows["decode_ms"].drop_null().to_numpy())


class Collected:
    """Statistics of one entity type.

    Attributes
    ----------
    fresh
        Number of texts generated on this date.
    written
        Rows by the date on which their text was generated.
    finished
        Texts generated on this date, by finish_reason.
    lengths
        Number of texts generated on this date by tokens, (longest + 1,).
    times
        Sums in milliseconds of ROW_TIMES over texts generated on this date; those that no text has are left
        out.
    slowest, worst, sampled
        Rows of texts generated on this date, as dicts of _COLUMNS with ``entity`` and ``number``, the row's
        number in the snapshot. ``sampled`` depends only on the ids and the date.
    carried
        A sample of the rows with a text of an earlier date.
    """

    def __init__(self, entity: str, folder: AnyPath, dt: str):
        self.entity, self.folder, self._dt = entity, folder, dt
        self.rows = self.fresh = 0
        self.written, self.finished = Counter(), Counter()
        self.reasons = ErrorReasons()
        self.lengths = np.zeros(1, np.int64)
        self.slowest, self.worst = Top(LISTED), Top(LISTED)
        self.sampled, self.carried = Top(SAMPLED), Top(SAMPLED)
        self.times: Counter[str] = Counter()
        self._kinds: dict[str, Kind] = {}
        self._pools = _POOLS.empty_table()
        self._hash_key = hashlib.sha256(dt.encode()).hexdigest()[:16]

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch of _COLUMNS."""
        first = self.rows
        self.rows += batch.num_rows
        _add(self.written, batch["generated_dt"])
        self.reasons.add(batch["entity_id"], batch["error"])
        old = pc.and_(pc.is_valid(batch["generated_dt"]), pc.invert(_has_date(batch, self._dt)))
        new = _is_written(batch, self._dt)
        self._offer(batch.filter(old), first + _places(old), {self.carried: self._order})
        numbers, batch = first + _places(new), batch.filter(new)
        self.fresh += batch.num_rows
        self.lengths = add_lengths(self.lengths, batch["tokens"])
        _add(self.finished, batch["finish_reason"])
        self.times.update(_times(batch))
        kinds = batch["pool_kind"].fill_null("none")
        for name in kinds.unique().to_pylist():
            kind = self._kinds.setdefault(name, Kind(self.entity, name))
            kind.add(batch.filter(pc.equal(kinds, name)))
        self._add_pools(batch)
        self._offer(batch, numbers, {self.slowest: _slowness, self.worst: _low_acceptance,
                                     self.sampled: self._order})

    def _offer(self, batch: pa.RecordBatch, numbers: np.ndarray,
               tops: dict[Top, Callable[[pa.RecordBatch], np.ndarray]]) -> None:
        """Offer a batch with row ``numbers`` (rows,) to each of ``tops``, with the sort keys of its function.
        """
        def row(n: int) -> dict:
            values = batch.slice(n, 1).to_pylist()[0]
            return values | {"entity": self.entity, "number": int(numbers[n])}

        for top, keys_of in tops.items():
            top.offer(keys_of(batch), row)

    def kinds(self) -> list[Kind]:
        """Most texts first; the kind of texts without a pool is "none"."""
        return sorted(self._kinds.values(), key=lambda kind: (-kind.texts, kind.name))

    def pools(self) -> list[dict]:
        """``pool, pool_kind, texts`` and sums of _COUNTS and _TIMES of each pool."""
        return self._pools.to_pylist()

    def texts(self, rows: list[dict]) -> list[dict]:
        """The complete rows (KNOWLEDGE) of rows of a ``Top``."""
        return published.rows_at(self.folder, [row["number"] for row in rows])

    def _order(self, batch: pa.RecordBatch) -> np.ndarray:
        """Sort keys (rows,) of the random sample: hashes of the ids, seeded with the date."""
        ids = batch["entity_id"].to_numpy(zero_copy_only=False)
        return hash_array(ids, hash_key=self._hash_key, categorize=False).astype(np.float64)

    def _add_pools(self, batch: pa.RecordBatch) -> None:
        rows = pa.table(batch.filter(pc.is_valid(batch["pool"])))
        rows = rows.append_column("texts", pa.repeat(1, len(rows))).select(_POOLS.names).cast(_POOLS)
        sums = pa.concat_tables([self._pools, rows]).group_by(_POOLS.names[:2]).aggregate(
            [(name, "sum") for name in _POOLS.names[2:]])
        self._pools = sums.rename_columns(_POOLS.names)


def collect(folder: AnyPath, entity: str, dt: str) -> Collected:
    """Read the snapshot of a date once, and report the progress."""
    collected, table = Collected(entity, folder, dt), published.dataset(folder)
    with progress.counting(f"reading {entity}s for the report", table.count_rows()) as counter:
        for batch in table.to_batches(columns=list(_COLUMNS), batch_size=_BATCH, batch_readahead=2,
                                      fragment_readahead=1):
            collected.add(batch)
            counter.advance(batch.num_rows)
    return collected


def read_times(folder: AnyPath, dt: str) -> Counter[str]:
    """``Collected.times`` of the snapshot of a date; reads only the columns that it needs."""
    times: Counter[str] = Counter()
    for batch in published.dataset(folder).to_batches(columns=["generated_dt", "copied", *ROW_TIMES],
                                                      batch_size=_BATCH):
        times.update(_times(batch.filter(_is_written(batch, dt))))
    return times


def add_lengths(lengths: np.ndarray, tokens: pa.Array) -> np.ndarray:
    """Add texts to ``lengths`` int64 (L,), the number of texts by their tokens; returns the sums.

    ``tokens`` (N,) are the numbers of tokens of N texts, null without a text. The result has a place for the
    longest text.
    """
    counts = np.bincount(tokens.drop_null().to_numpy(), minlength=len(lengths))
    counts[:len(lengths)] += lengths
    return counts


def _has_date(batch: pa.RecordBatch, dt: str) -> pa.Array:
    return pc.fill_null(pc.equal(batch["generated_dt"], dt), False)


def _is_written(batch: pa.RecordBatch, dt: str) -> pa.Array:
    """Rows whose text was generated on the date ``dt``; a copy has the text of another row."""
    return pc.and_(_has_date(batch, dt), pc.invert(pc.fill_null(batch["copied"], False)))


def _times(batch: pa.RecordBatch) -> dict[str, float]:
    """Sums in milliseconds of ROW_TIMES; those that no row has are left out."""
    return {name: total for name in ROW_TIMES if (total := pc.sum(batch[name]).as_py()) is not None}


def _slowness(batch: pa.RecordBatch) -> np.ndarray:
    return _floats(batch["decode_ms"])


def _low_acceptance(batch: pa.RecordBatch) -> np.ndarray:
    """Sort keys (rows,), the fewest accepted tokens per step first; NaN: too short, or without drafts."""
    steps, accepted = (_floats(batch[name]) for name in ("target_steps", "accepted_tokens"))
    steps[steps < MIN_STEPS] = np.nan
    keys = -accepted / steps + steps * 1e-9  # longer texts first among equal ones
    keys[_floats(pc.is_valid(batch["pool_kind"])) == 0] = np.nan
    return keys


def _places(mask: pa.Array) -> np.ndarray:
    return np.flatnonzero(mask.to_numpy(zero_copy_only=False))


def _floats(values: pa.Array) -> np.ndarray:
    """A copy as float64; null becomes NaN."""
    return values.cast(pa.float64()).to_numpy(zero_copy_only=False).copy()


def _add(counter: Counter, values: pa.Array) -> None:
    counter.update({entry["values"]: entry["counts"] for entry in values.value_counts().to_pylist()})
