"""Tonight's rows that failed, those that fail every night apart."""

import re
from collections import Counter
from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from dare_job import knowledge
from dare_job.job import Job
from dare_job.quality.findings import OF_ERRORS

_COMMONEST = 10


class Reasons:
    """Counts why rows failed, as one where only numbers differ: a reason may name the row's own tokens."""

    def __init__(self):
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    def add(self, reason: str) -> None:
        kind = re.sub(r"\d+", "0", reason)
        self._counts[kind] += 1
        self._examples.setdefault(kind, reason)

    def __add__(self, other: "Reasons") -> "Reasons":
        found = Reasons()
        found._counts, found._examples = self._counts + other._counts, other._examples | self._examples
        return found

    def commonest(self) -> str:
        """The ten commonest with their counts; numbers in them are the first row's."""
        return "; ".join(f"{count} x {self._examples[kind]}"
                         for kind, count in self._counts.most_common(_COMMONEST))


class Failures:
    """Counts the failed rows of both entity types; those without a prompt (no history, no title) are none.

    Rows that the snapshot before has with the same error count apart (``again``): held against the few rows
    of a quiet night they would keep it from being published, held against all rows of the date they tell of
    a fault that stays.
    """

    def __init__(self):
        self.asked: Counter[str] = Counter()  # tonight's rows with a prompt but ``again``, by entity type
        self.failed: Counter[str] = Counter()
        self.again: Counter[str] = Counter()
        self._reasons = {check: Reasons() for check in OF_ERRORS}

    def add(self, entity: str, batch: pa.RecordBatch, known: dict[str, str]
            ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Count a batch; returns the rows that failed anew, and those that failed again.

        known  errors by id of the snapshot before
        """
        batch = batch.filter(pc.is_valid(batch["prompt_sha256"]))
        failed = batch.filter(pc.is_valid(batch["error"]))
        found = zip(failed["entity_id"].to_pylist(), failed["error"].to_pylist(), strict=True)
        is_new = pa.array([known.get(name) != reason for name, reason in found], pa.bool_())
        anew, again = failed.filter(is_new), failed.filter(pc.invert(is_new))
        self.asked[entity] += batch.num_rows - again.num_rows
        self.failed[entity] += anew.num_rows
        self.again[entity] += again.num_rows
        for check, rows in zip(OF_ERRORS, (anew, again), strict=True):
            for reason in rows["error"].to_pylist():
                self._reasons[check].add(reason)
        return anew, again

    def commonest(self, checks: Collection[str] = OF_ERRORS) -> str:
        """The ten commonest reasons of some checks with their counts."""
        return sum((self._reasons[check] for check in checks), Reasons()).commonest()


def known_errors(job: Job, entity: str) -> dict[str, str]:
    """Errors by id of the snapshot before; none where the text came from elsewhere."""
    snapshot = knowledge.old_folder(job, entity)
    if snapshot is None or not knowledge.manifest(snapshot):
        return {}
    failed = pc.field("error").is_valid()
    rows = knowledge.dataset(snapshot).to_table(columns=["entity_id", "error"], filter=failed)
    return dict(zip(rows["entity_id"].to_pylist(), rows["error"].to_pylist(), strict=True))
