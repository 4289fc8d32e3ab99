"""One pass over tonight's rows of an entity type: what each check counts, in batches."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from dare_job import knowledge
from dare_job.config import GateSettings
from dare_job.errors import DataError
from dare_job.files import AnyPath
from dare_job.quality import texts
from dare_job.quality.failures import Failures
from dare_job.quality.findings import CHECKS, FIRST, OF_ERRORS, Finding
from dare_job.quality.lengths import Sample
from dare_job.quality.listing import Listing
from dare_job.quality.texts import Texts

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
        for check, (bad, value) in texts.counted(good, self._gates).items():
            rows = pa.array(bad)
            self.note(check, good.ids.filter(rows), value[bad], good.text.filter(rows))

    def note(self, check: str, ids: pa.Array, values: np.ndarray | None, starts: pa.Array) -> None:
        """Count rows of a check, keep the first ids, and list the rows."""
        self.rows[check] += len(ids)
        first = self.first.setdefault(check, [])
        first += ids.slice(0, FIRST - len(first)).to_pylist()
        self._listing.add(self._entity, check, ids, values, starts)

    def finding(self, check: str) -> Finding:
        """A check of single texts against its limit; fewer rows than ``gates.min_failing_rows`` pass."""
        limit = getattr(self._gates, CHECKS[check][1].partition(".")[2])
        rows, first = self.rows[check], self.first.get(check, [])
        part, whole = (self.relaxed_tokens, self.tokens) if check == "relaxed" else (rows, self.texts)
        value = part / whole if whole else None
        over = limit is not None and part > limit * whole
        few = over and rows < self._gates.min_failing_rows
        why = f"fewer rows than gates.min_failing_rows = {self._gates.min_failing_rows}" if few else None
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
        some = knowledge.dataset_of(files[first:first + _FILES])
        yield from some.to_batches(columns=list(texts.COLUMNS), batch_size=_BATCH, batch_readahead=4)
