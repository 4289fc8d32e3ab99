"""Tonight's rows that failed, those that come back every night left out."""

import re
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from dare_job import knowledge
from dare_job.job import Job

_COMMONEST = 10


class Failures:
    """Counts the failed rows of both entity types.

    Rows that come back every night do not count, or a quiet night could never be published: those without a
    prompt (an empty history, no title), and those that the snapshot before has with the same error.
    """

    def __init__(self):
        self.asked: Counter[str] = Counter()  # rows with a prompt, by entity type
        self.failed: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    def add(self, entity: str, batch: pa.RecordBatch, known: dict[str, str]) -> pa.RecordBatch:
        """Count a batch; returns the rows that failed anew.

        known  errors by id of the snapshot before
        """
        batch = batch.filter(pc.is_valid(batch["prompt_sha256"]))
        failed = batch.filter(pc.is_valid(batch["error"]))
        found = zip(failed["entity_id"].to_pylist(), failed["error"].to_pylist(), strict=True)
        anew = failed.filter(pa.array([known.get(name) != reason for name, reason in found], pa.bool_()))
        self.asked[entity] += batch.num_rows - failed.num_rows + anew.num_rows
        self.failed[entity] += anew.num_rows
        for reason in anew["error"].to_pylist():
            kind = re.sub(r"\d+", "0", reason)  # a reason may name the row's own number of tokens
            self._reasons[kind] += 1
            self._examples.setdefault(kind, reason)
        return anew

    def commonest(self) -> str:
        """The ten commonest reasons with their counts; numbers in them are the first row's."""
        return "; ".join(f"{count} x {self._examples[kind]}"
                         for kind, count in self._reasons.most_common(_COMMONEST))


def known_errors(job: Job, entity: str) -> dict[str, str]:
    """Errors by id of the snapshot before; none where the text came from elsewhere."""
    snapshot = knowledge.old_folder(job, entity)
    if snapshot is None or not knowledge.manifest(snapshot):
        return {}
    failed = pc.field("error").is_valid()
    rows = knowledge.dataset(snapshot).to_table(columns=["entity_id", "error"], filter=failed)
    return dict(zip(rows["entity_id"].to_pylist(), rows["error"].to_pylist(), strict=True))
