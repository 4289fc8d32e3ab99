"""Tonight's rows that failed, those that fail every night apart.

What an operator reads when the gate stays shut.
"""

import re
from collections import Counter
from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dare_job.job import Job
from dare_job.publish.gate.findings import CHECKS, OF_ERRORS, Finding
from dare_job.storage.paths import AnyPath
from dare_job.tables import published

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
    snapshot = published.previous_folder(job, entity)
    if snapshot is None or not published.read_manifest(snapshot):
        return {}
    failed = pc.field("error").is_valid()
    rows = published.dataset(snapshot).to_table(columns=["entity_id", "error"], filter=failed)
    return dict(zip(rows["entity_id"].to_pylist(), rows["error"].to_pylist(), strict=True))

_ADVICE = ("Either mend what wrote them (model, prompts, decode, verify: what a change concerns is written "
           "anew) and run again; or, if they are right, raise the setting and run again: no finished text is "
           "written anew")


def of(job: Job, failures: Failures, found: dict[str, dict[str, Finding]], listed: AnyPath) -> str:
    """Each failed check with share, limit, setting and first ids; where the rows are; what can be done.

    listed  the table of rows
    """
    failed = [(entity, check, finding) for entity, checks in found.items()
              for check, finding in checks.items() if finding.failed]
    parts = [_words(*each) for each in failed if each[1] not in OF_ERRORS]
    if len(parts) < len(failed):
        checks = [check for check in OF_ERRORS if any(check == each[1] for each in failed)]
        parts.insert(0, _errors(job, failures, checks, found))
    return (f"the quality gate failed and nothing was published: {'. '.join(parts)}. "
            f"The rows are in {listed}. {_ADVICE}")


def _errors(job: Job, failures: Failures, checks: Sequence[str],
            found: dict[str, dict[str, Finding]]) -> str:
    """Both entity types together."""
    counts = {"errors": (failures.failed.total(), failures.asked.total()),
              "errors_again": (failures.again.total(), sum(of["errors_again"].of for of in found.values()))}
    limit, (again, planned) = job.config.limits.max_error_share, counts["errors_again"]
    if len(checks) > 1 and again <= limit * planned:  # alone it would have passed
        checks = checks[:1]
    said = " and ".join(f"{counts[check][0]} of {counts[check][1]} {CHECKS[check][0]}"
                        for check in checks)
    if checks == ["errors_again"] and failures.failed.total():
        said, checks = f"{said} and {failures.failed.total()} anew", OF_ERRORS
    return (f"{said}, more than limits.max_error_share = {limit}; the next run "
            f"tries these rows again. Commonest: {failures.commonest(checks)}")


def _words(entity: str, check: str, finding: Finding) -> str:
    what, setting = CHECKS[check]
    if check == "length_ratio":
        found = f"{entity}s: {what} is {finding.value:.3g} times ({finding.of} texts), longer or shorter by"
    elif check == "length_distance":
        found = f"{entity}s: {what} is {finding.value:.3g} ({finding.of} texts)"
    elif check == "relaxed":
        found = f"{entity}s: {finding.value:.2%} of the {what}, in {finding.rows} texts more than the limit"
    else:
        found = f"{entity}s: {finding.rows} of {finding.of} {what} ({finding.value:.2%})"
    first = f"; first: {', '.join(finding.first)}" if finding.first else ""
    return f"{found}, more than {setting} = {finding.limit}{first}"
