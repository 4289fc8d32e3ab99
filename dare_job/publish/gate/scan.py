"""One pass over tonight's rows of an entity type: what each check counts, in batches.

Are tonight's texts as long as those of the same entities before? Only where the same writer wrote both.

How far a pass over many rows is: a bar on a terminal, else a log line now and then.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from dare_job.config.settings import GateSettings
from dare_job.errors import DataError
from dare_job.job import Job
from dare_job.observe import progress
from dare_job.publish.gate import checks, lengths
from dare_job.publish.gate.checks import Texts
from dare_job.publish.gate.failures import Failures
from dare_job.publish.gate.findings import CHECKS, FIRST, OF_ERRORS, OF_LENGTHS, Finding, Listing
from dare_job.publish.gate.lengths import Sample
from dare_job.storage.paths import AnyPath
from dare_job.tables import published

MIN_FAILING_ROWS = 3  # fewer pass whatever their share: in a low-volume run one row is a large share
MIN_LENGTH_PAIRS = 50  # of previous and new texts; fewer tell nothing about lengths
_BATCH = 16_384  # rows looked at together

_FILES = 64  # opened together


class Scan:
    """Counts of one entity type, filled by ``add``, read by ``finding``.

    rows, first  by check: how many rows it counted, and the ids of the first
    """

    def __init__(self, entity: str, gates: GateSettings, listing: Listing, sample: Sample):
        self.texts = self.tokens = self.relaxed_tokens = 0
        self.first: dict[str, list[str]] = {}
        self.rows: Counter[str] = Counter()
        self._entity, self._gates, self._listing, self._sample = entity, gates, listing, sample

    def add(self, batch: pa.RecordBatch, failures: Failures, known: dict[str, str]) -> None:
        """Count a batch of ``texts.COLUMNS``; known: see ``Failures.add``."""
        for check, failed in zip(OF_ERRORS, failures.add(self._entity, batch, known), strict=True):
            self.note(check, failed["entity_id"], None, failed["error"])
        good = Texts.of(batch)
        self.texts += len(good)
        self.tokens += int(good.tokens.sum())
        self.relaxed_tokens += int(good.relaxed_tokens.sum())
        self._sample.add(good.ids, good.tokens, good.text)
        for check, (bad, value) in checks.counted(good, self._gates).items():
            rows = pa.array(bad)
            self.note(check, good.ids.filter(rows), value[bad], good.text.filter(rows))

    def note(self, check: str, ids: pa.Array, values: np.ndarray | None, starts: pa.Array) -> None:
        """Count rows of a check, keep the first ids, and list the rows."""
        self.rows[check] += len(ids)
        first = self.first.setdefault(check, [])
        first += ids.slice(0, FIRST - len(first)).to_pylist()
        self._listing.add(self._entity, check, ids, values, starts)

    def finding(self, check: str) -> Finding:
        """A check of single texts against its limit; fewer rows than ``MIN_FAILING_ROWS`` pass."""
        limit = getattr(self._gates, CHECKS[check][1].partition(".")[2])
        rows, first = self.rows[check], self.first.get(check, [])
        part, whole = (self.relaxed_tokens, self.tokens) if check == "relaxed" else (rows, self.texts)
        value = part / whole if whole else None
        over = limit is not None and part > limit * whole
        few = over and rows < MIN_FAILING_ROWS
        why = f"fewer than {MIN_FAILING_ROWS} rows" if few else None
        return Finding(rows, self.texts, value, limit, over and not few, first, why)


def readable(batches: Iterable[pa.RecordBatch], folder: AnyPath, fix: str) -> Iterator[pa.RecordBatch]:
    """The same batches. Raises DataError, which names the folder and the fix, where a file is damaged."""
    try:
        yield from batches
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{folder} is damaged ({str(error).splitlines()[0]}): {fix}") from error


def batches(files: Sequence[AnyPath]) -> Iterator[pa.RecordBatch]:
    """The rows of files in batches of some ``_BATCH``: small files together, large ones in parts."""
    waiting: list[pa.RecordBatch] = []
    for batch in _each(files):
        waiting.append(batch)
        if sum(map(len, waiting)) >= _BATCH:
            yield pa.concat_batches(waiting)
            waiting = []
    if waiting:
        yield pa.concat_batches(waiting)


def _each(files: Sequence[AnyPath]) -> Iterator[pa.RecordBatch]:
    """A few files at a time: a dataset keeps the footers of all that it has read."""
    for first in range(0, len(files), _FILES):
        some = published.dataset_of_files(files[first:first + _FILES])
        yield from some.to_batches(columns=list(checks.COLUMNS), batch_size=_BATCH, batch_readahead=4)


def compared(job: Job, entity: str, sample: pa.Table, checked: Scan) -> dict[str, Finding]:
    """The findings of lengths; rows out of bounds are listed with ``checked``."""
    gates = job.config.gates
    limits = {"length_ratio": gates.max_length_ratio, "length_distance": gates.max_length_distance}
    why, pairs = _incomparable(job, entity), None
    if why is None:
        old = published.previous_folder(job, entity)
        before = published.dataset(old).to_batches(columns=["entity_id", "tokens"])
        pairs = lengths.pair(sample, readable(before, old, "publish that date again"))
        if len(pairs.new) < MIN_LENGTH_PAIRS:
            why = f"{len(pairs.new)} pairs, fewer than {MIN_LENGTH_PAIRS}"
    if why is not None:
        return {check: Finding(0, 0, None, limits[check], why=why) for check in OF_LENGTHS}
    ratio, distance, found = pairs.median_ratio(), pairs.distance(), {}
    if gates.max_length_ratio is not None:
        _list("length_ratio", pairs, pairs.outside(gates.max_length_ratio), checked)
    for check, value, held in (("length_ratio", ratio, max(ratio, 1 / ratio)),
                               ("length_distance", distance, distance)):
        over = limits[check] is not None and held > limits[check]
        if over and check == "length_distance":
            _list(check, pairs, pairs.farthest(distance), checked)
        found[check] = Finding(checked.rows[check], len(pairs.new), value, limits[check], over,
                               checked.first.get(check, []))
    return found


def _list(check: str, pairs: lengths.Pairs, bad: np.ndarray, checked: Scan) -> None:
    """List the rows of a mask with their own ratio."""
    rows = pa.array(bad)
    checked.note(check, pairs.ids.filter(rows), pairs.ratio[bad], pairs.texts.filter(rows))


def _incomparable(job: Job, entity: str) -> str | None:
    """Why the lengths of tonight and before are not held against each other; None: they are."""
    old = published.previous_folder(job, entity)
    before = published.read_manifest(old) if old else {}
    if not before:
        return "no text before that says who wrote it"
    changed = [what for what, _, _ in published.writer_changes(job, old, entity)]
    new_tokens = published.writer_record(job)["new_tokens"]
    if before.get("new_tokens", new_tokens) != new_tokens:
        changed.append("number of new tokens")
    return f"another {' and '.join(changed)} before" if changed else None

Counting = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@contextmanager
def counted(rows: int, what: str) -> Iterator[Counting]:
    """Yield a function that passes batches on and reports how many of ``rows`` rows passed."""
    with progress.counting(what, rows) as counter:
        def passing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield batch
                counter.advance(batch.num_rows)

        yield passing
