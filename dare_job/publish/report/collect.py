"""Collects the statistics of the report in one pass over the batches of a published snapshot.

Memory grows with the number of pools and of distinct errors (up to a limit), not with rows. Columns
that an older snapshot lacks are null.
"""

import heapq
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from dare_job.publish.report import format
from dare_job.publish.report.format import Histogram
from dare_job.publish.report.sections import Reasons
from dare_job.schemas import KNOWLEDGE
from dare_job.storage.paths import AnyPath
from dare_job.tables import published


class Top:
    """Keeps the ``size`` rows with the largest keys. Rows whose key is NaN are ignored."""

    def __init__(self, size: int):
        self._size = size
        self._heap: list[tuple[float, int, dict]] = []  # the smallest key first
        self._offered = 0

    def offer(self, keys: np.ndarray, row: Callable[[int], dict]) -> None:
        """Add a batch: keys (rows,); ``row(n)`` returns its n-th row, and is called for few rows."""
        smallest = self._heap[0][0] if len(self._heap) == self._size else -np.inf
        rows = np.flatnonzero(keys > smallest)
        if len(rows) > self._size:
            rows = rows[np.argpartition(keys[rows], -self._size)[-self._size:]]
        for n in rows:
            self._offered += 1
            entry = (float(keys[n]), -self._offered, row(int(n)))
            if len(self._heap) < self._size:
                heapq.heappush(self._heap, entry)
            else:
                heapq.heappushpop(self._heap, entry)

    def rows(self) -> list[dict]:
        """The rows by descending key; rows with equal keys in the order of their arrival."""
        return [row for _, _, row in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]


LISTED = 8  # slowest rows, rows with the lowest acceptance
SAMPLED = 64  # rows from which example texts are chosen
MIN_STEPS = 16  # acceptance of shorter texts is not compared

_FIGURES = ("tokens", "target_steps", "scored_tokens", "accepted_tokens", "decode_ms", "retrieval_ms")

_COLUMNS = ("entity_id", "error", "generated_dt", "finish_reason", "pool", "pool_kind", "step_tokens",
            *_FIGURES)

_BATCH = 1 << 16
_MERGED_AFTER = 32  # batches between two merges of the sums by pool
_LOG_EVERY_S = 5.0
_LOG = logging.getLogger("dare_job")

Place = tuple[ds.Fragment, int]  # a file of the snapshot, and a row number in it


@dataclass
class Kind:
    """Generated texts of one entity type and kind of pool.

    accepted : draft tokens accepted in each forward pass after the prompt
    latency : milliseconds of worker time per text
    """

    entity: str
    name: str
    texts: int
    accepted: Histogram
    latency: Histogram


@dataclass
class Collected:
    """Statistics of one entity type; ``slowest``, ``worst`` and ``sampled`` are rows as dicts of _COLUMNS."""

    entity: str
    folder: AnyPath
    rows: int = 0
    fresh: int = 0  # texts generated on this date
    written: Counter = field(default_factory=Counter)  # rows by the date on which their text was generated
    finished: Counter = field(default_factory=Counter)  # texts generated on this date, by finish_reason
    kinds: list[Kind] = field(default_factory=list)
    pools: list[dict] = field(default_factory=list)  # pool, pool_kind, texts and sums of _FIGURES
    reasons: Reasons = field(default_factory=Reasons)
    slowest: list[dict] = field(default_factory=list)
    worst: list[dict] = field(default_factory=list)
    sampled: list[dict] = field(default_factory=list)


def collect(folder: AnyPath, entity: str, dt: str) -> Collected:
    """Read the snapshot of a date once, and log the progress every few seconds."""
    collected, tally = Collected(entity, folder), _Tally(dt)
    rows, last = published.dataset(folder).count_rows(), time.monotonic()
    for place, batch in _batches(folder):
        collected.rows += batch.num_rows
        _add(collected.written, batch["generated_dt"])
        collected.reasons.add(batch)
        tally.add(place, batch)
        if time.monotonic() - last > _LOG_EVERY_S:
            last = time.monotonic()
            _LOG.info("report: %d of %d %ss", collected.rows, rows, entity)
    collected.fresh, collected.finished = tally.fresh, tally.finished
    collected.kinds, collected.pools = tally.kinds(entity), tally.pools()
    collected.slowest, collected.worst, collected.sampled = (top.rows() for top in tally.tops)
    return collected


def texts(rows: list[dict]) -> list[dict]:
    """Read the complete rows (KNOWLEDGE) of rows that ``collect`` returned."""
    complete = []
    for row in rows:
        fragment, number = row["place"]
        batches = fragment.to_batches(schema=KNOWLEDGE, batch_size=1024, batch_readahead=1)
        for batch in batches:
            if number < batch.num_rows:
                complete.append(batch.slice(number, 1).to_pylist()[0])
                break
            number -= batch.num_rows
    return complete


def _batches(folder: AnyPath) -> Iterator[tuple[Place, pa.RecordBatch]]:
    """Batches of a snapshot in order, each with the file and number of its first row."""
    for fragment in published.dataset(folder).get_fragments():
        start = 0
        for batch in fragment.to_batches(schema=KNOWLEDGE, columns=list(_COLUMNS), batch_size=_BATCH,
                                         batch_readahead=2):
            yield (fragment, start), batch
            start += batch.num_rows


class _Tally:
    """Statistics of the texts generated on this date, from batches of _COLUMNS."""

    def __init__(self, dt: str):
        self.fresh, self.finished = 0, Counter()
        self.tops = [Top(LISTED), Top(LISTED), Top(SAMPLED)]
        self._dt, self._sums = dt, []
        self._counts: dict[str | None, list] = {}  # kind of pool: texts, accepted tokens, times
        self._random = np.random.default_rng(0)

    def add(self, place: Place, batch: pa.RecordBatch) -> None:
        new = pc.fill_null(pc.equal(batch["generated_dt"], self._dt), False)
        row_numbers = np.flatnonzero(new.to_numpy(zero_copy_only=False))
        batch = batch.filter(new)
        if not batch.num_rows:
            return
        self.fresh += batch.num_rows
        _add(self.finished, batch["finish_reason"])
        self._count(batch)
        self._sum(batch)

        def row(n: int) -> dict:
            values = batch.slice(n, 1).to_pylist()[0]
            return values | {"place": (place[0], place[1] + int(row_numbers[n]))}

        for top, keys in zip(self.tops, self._keys(batch), strict=True):
            top.offer(keys, row)

    def _keys(self, batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sort keys (rows,) of slowness, low acceptance and the random sample; NaN: not eligible."""
        took, steps, accepted = (_floats(batch[name])
                                 for name in ("decode_ms", "target_steps", "accepted_tokens"))
        steps[steps < MIN_STEPS] = np.nan
        low_acceptance = -accepted / steps + steps * 1e-9  # longer texts first among equal ones
        low_acceptance[_floats(pc.is_valid(batch["pool_kind"])) == 0] = np.nan
        sample = self._random.random(batch.num_rows)
        sample[np.isnan(_floats(pc.list_value_length(batch["step_tokens"])))] = np.nan
        return took, low_acceptance, sample

    def _count(self, batch: pa.RecordBatch) -> None:
        kinds = batch["pool_kind"].dictionary_encode()
        names = [*kinds.dictionary.to_pylist(), None]
        code = kinds.indices.fill_null(len(names) - 1).to_numpy()
        texts = np.bincount(code, minlength=len(names))
        steps = pc.list_value_length(batch["step_tokens"]).fill_null(0).to_numpy()
        emitted = batch["step_tokens"].flatten().to_numpy().astype(np.int64)
        later = np.ones(len(emitted), bool)
        later[(np.cumsum(steps) - steps)[steps > 0]] = False  # the prompt's forward pass is not a step
        accepted = np.clip(emitted - 1, 0, format.LONGEST)
        lengths = _crossed(np.repeat(code, steps)[later], accepted[later], len(names), format.LONGEST + 1)
        took = _floats(batch["decode_ms"])
        known = ~np.isnan(took)
        times = _crossed(code[known], format.time_bins(took[known]), len(names), format.TIME_BINS)
        for n, name in enumerate(names):
            if texts[n]:
                before = self._counts.get(name, (0, 0, 0))
                after = (texts[n], lengths[n], times[n])
                self._counts[name] = [old + add for old, add in zip(before, after, strict=True)]

    def _sum(self, batch: pa.RecordBatch) -> None:
        columns = {name: batch[name] for name in ("pool", "pool_kind", *_FIGURES)}
        self._sums.append(_added(pa.table(columns | {"texts": pa.array(np.ones(batch.num_rows, np.int64))})))
        if len(self._sums) > _MERGED_AFTER:
            self._sums = [_added(pa.concat_tables(self._sums))]

    def kinds(self, entity: str) -> list[Kind]:
        """Most texts first; the kind of texts without a pool is "none"."""
        kinds = [
            Kind(entity, name or "none", int(texts), format.lengths(lengths), format.times_histogram(times))
            for name, (texts, lengths, times) in self._counts.items()
        ]
        return sorted(kinds, key=lambda kind: (-kind.texts, kind.name))

    def pools(self) -> list[dict]:
        rows = _added(pa.concat_tables(self._sums)).to_pylist() if self._sums else []
        return [row for row in rows if row["pool"] is not None]


def _added(table: pa.Table) -> pa.Table:
    """Sums by pool, with the names and types of the input columns."""
    sums = table.group_by(["pool", "pool_kind"]).aggregate([(name, "sum") for name in ("texts", *_FIGURES)])
    names = [name.removesuffix("_sum") for name in sums.column_names]
    types = dict.fromkeys(names, pa.int64()) | dict.fromkeys(("decode_ms", "retrieval_ms"), pa.float64())
    types |= dict.fromkeys(("pool", "pool_kind"), pa.string())
    return pa.table({name: sums[n].cast(types[name]) for n, name in enumerate(names)})


def _crossed(group: np.ndarray, value: np.ndarray, groups: int, values: int) -> np.ndarray:
    """Number of occurrences of each pair, (groups, values)."""
    places = group.astype(np.int64) * values + value
    return np.bincount(places, minlength=groups * values).reshape(groups, values)


def _floats(values: pa.Array) -> np.ndarray:
    """A copy as float64; null becomes NaN."""
    return values.cast(pa.float64()).to_numpy(zero_copy_only=False).copy()


def _add(counter: Counter, values: pa.Array) -> None:
    counter.update({entry["values"]: entry["counts"] for entry in values.value_counts().to_pylist()})
