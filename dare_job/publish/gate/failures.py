"""Counts the rows that failed, by reason, and writes the message of a failed gate.

Rows that failed with the same error in the previous run are counted separately.
"""

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dare_job.job import Job
from dare_job.publish.gate.findings import CHECKS, OF_ERRORS, Finding
from dare_job.storage.paths import AnyPath
from dare_job.tables import published

EXAMPLES = 3  # ids kept of each reason
_MAX_REASONS = 10_000  # distinct reasons; further ones count as _REST
_REST = "other errors"
_VARYING = r"'[^']*'|\"[^\"]*\"|\d+(\.\d+)?"


class Failures:
    """Counts the failed rows of both entity types; rows without a prompt (no history, no title) do not count.

    Rows that have the same error in the previous snapshot count separately (``repeated``). They are compared
    with all rows of the date: among the few rows of a low-volume run they would always exceed the limit.

    Attributes
    ----------
    reasons
        By check, and of all failed rows.
    """

    def __init__(self):
        self.attempted: Counter[str] = Counter()  # rows with a prompt, without ``repeated``, by entity type
        self.failed: Counter[str] = Counter()
        self.repeated: Counter[str] = Counter()
        self.reasons = {checks: ErrorReasons() for checks in (*OF_ERRORS, "all")}

    def add(self, entity: str, batch: pa.RecordBatch, known_errors: dict[str, str]
            ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Count a batch. Returns the rows with a new error and those with the error of the previous snapshot.

        Parameters
        ----------
        known_errors
            Errors of the previous snapshot by id.
        """
        batch = batch.filter(pc.is_valid(batch["prompt_sha256"]))
        failed = batch.filter(pc.is_valid(batch["error"]))
        pairs = zip(failed["entity_id"].to_pylist(), failed["error"].to_pylist(), strict=True)
        is_new = pa.array([known_errors.get(name) != error for name, error in pairs], pa.bool_())
        new, repeated = failed.filter(is_new), failed.filter(pc.invert(is_new))
        self.attempted[entity] += batch.num_rows - repeated.num_rows
        self.failed[entity] += new.num_rows
        self.repeated[entity] += repeated.num_rows
        for check, rows in zip(OF_ERRORS, (new, repeated), strict=True):
            for reasons in (self.reasons[check], self.reasons["all"]):
                reasons.add(rows["entity_id"], rows["error"])
        return new, repeated


def known_errors(job: Job, entity: str) -> dict[str, str]:
    """Errors of the previous snapshot by id; empty if no manifest says who generated it."""
    snapshot = published.previous_folder(job, entity)
    if snapshot is None or not published.read_manifest(snapshot):
        return {}
    failed = pc.field("error").is_valid()
    rows = published.dataset(snapshot).to_table(columns=["entity_id", "error"], filter=failed)
    return dict(zip(rows["entity_id"].to_pylist(), rows["error"].to_pylist(), strict=True))


_ADVICE = ("If the texts are bad, fix the cause (model, prompts, decode, verify) and run again: the affected "
           "texts are generated again. If they are good, raise the setting and run again: finished texts are "
           "kept")


def failure_message(job: Job, failures: Failures, findings: dict[str, dict[str, Finding]],
                    rows_file: AnyPath) -> str:
    """Each failed check with its share, limit, setting and first ids, the file of the rows, and the fix."""
    failed = [(entity, check, finding) for entity, checks in findings.items()
              for check, finding in checks.items() if finding.failed]
    parts = [_check_message(*each) for each in failed if each[1] not in OF_ERRORS]
    if len(parts) < len(failed):
        checks = [check for check in OF_ERRORS if any(check == each[1] for each in failed)]
        parts.insert(0, _error_message(job, failures, checks, findings))
    return (f"the quality gate failed and nothing was published: {'. '.join(parts)}. "
            f"The rows are in {rows_file}. {_ADVICE}")


def _error_message(job: Job, failures: Failures, checks: Sequence[str],
                   findings: dict[str, dict[str, Finding]]) -> str:
    """The failed rows of both entity types together."""
    counts = {"errors": (failures.failed.total(), failures.attempted.total()),
              "errors_again": (failures.repeated.total(),
                               sum(checks["errors_again"].of for checks in findings.values()))}
    limit, (repeated, planned) = job.config.limits.max_error_share, counts["errors_again"]
    if len(checks) > 1 and repeated <= limit * planned:  # this check would have passed without new errors
        checks = checks[:1]
    shares = " and ".join(f"{counts[check][0]} of {counts[check][1]} {CHECKS[check][0]}" for check in checks)
    if checks == ["errors_again"] and failures.failed.total():
        shares, checks = f"{shares}, and {failures.failed.total()} with a new error", OF_ERRORS
    reasons = failures.reasons[checks[0] if len(checks) == 1 else "all"]
    return (f"{shares}, more than limits.max_error_share = {limit}; the next run "
            f"tries these rows again. Most common errors: {reasons}")


def _check_message(entity: str, check: str, finding: Finding) -> str:
    what, setting = CHECKS[check]
    limit = f"more than {setting} = {finding.limit}"
    if check == "length_ratio":
        value = f"{what} is {finding.value:.3g} ({finding.of} texts)"
        limit = f"outside {1 / finding.limit:.3g} to {finding.limit:.3g} ({setting} = {finding.limit})"
    elif check == "length_distance":
        value = f"{what} is {finding.value:.3g} ({finding.of} texts)"
    elif check == "relaxed":
        value = f"{finding.value:.2%} of the {what}, in {finding.rows} texts more than the limit"
    else:
        value = f"{finding.rows} of {finding.of} {what} ({finding.value:.2%})"
    first = f"; first: {', '.join(finding.first)}" if finding.first else ""
    return f"{entity}s: {value}, {limit}{first}"


class ErrorReasons:
    """Rows with an error by reason, with the first ids and the first message of each reason.

    Messages that differ only in numbers or quoted words have the same reason.
    """

    def __init__(self):
        self.rows = 0
        self._reasons: dict[str, dict] = {}

    def add(self, ids: pa.Array, errors: pa.Array) -> None:
        """Count the errors of rows (n,); null: no error."""
        ids, errors = ids.filter(pc.is_valid(errors)), errors.drop_null()
        self.rows += len(errors)
        reasons = pc.replace_substring_regex(errors, _VARYING, "…")
        for entry in reasons.value_counts().to_pylist():
            reason = entry["values"]
            if reason not in self._reasons and len(self._reasons) >= _MAX_REASONS:
                reason = _REST
            counted = self._reasons.setdefault(
                reason, {"reason": reason, "rows": 0, "ids": [], "example": None})
            counted["rows"] += entry["counts"]
            if len(counted["ids"]) < EXAMPLES:
                same = pc.equal(reasons, entry["values"])
                counted["ids"] += ids.filter(same)[:EXAMPLES - len(counted["ids"])].to_pylist()
                counted["example"] = counted["example"] or errors.filter(same)[0].as_py()

    def most_common(self, number: int) -> list[dict]:
        """``reason, rows, ids, example`` of the most common reasons, in descending order."""
        return sorted(self._reasons.values(), key=lambda entry: (-entry["rows"], entry["reason"]))[:number]

    def __str__(self) -> str:
        """The ten most common reasons, each with its count and its first message."""
        return "; ".join(f"{entry['rows']} x {entry['example']}" for entry in self.most_common(10))

    def __len__(self) -> int:
        return len(self._reasons)
