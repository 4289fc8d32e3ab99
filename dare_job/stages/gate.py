"""Stage gate: checks the generated texts before publication. If the gate fails, nothing is published.

    _done.json             findings by entity type and check, and whether the gate failed
    failing_rows.parquet   the rows that failed a check (``publish.gate.findings.ROWS``)

The findings are kept even if the gate failed. They are valid for the rows, the previous text and the limits
that they were computed from. If any of these changes, the gate checks again without generating texts again.
"""

from collections import Counter

from dare_job.errors import DataError, ThresholdError
from dare_job.generate import shard_plan
from dare_job.job import Job
from dare_job.observe import progress
from dare_job.publish.gate import failures as gate_failures
from dare_job.publish.gate import lengths, scan
from dare_job.publish.gate.failures import Failures, known_errors
from dare_job.publish.gate.findings import (
    NAME,
    OF_ERRORS,
    OF_TEXTS,
    FailingRows,
    Finding,
    records,
)
from dare_job.publish.gate.scan import Scan
from dare_job.schemas import ENTITIES
from dare_job.storage import atomic_folder
from dare_job.storage.paths import AnyPath
from dare_job.tables import stage_inputs
from dare_job.workspace import committing, digest, done_record, is_done, write_json

_VERSION = 5  # increment when a check counts differently


def run(job: Job) -> dict:
    """Check the generated rows; returns the findings by entity type and check (``Finding``).

    If too many rows failed, the next run tries them again.

    Raises
    ------
    ThresholdError
        Names every failed check.
    DataError
        Rows are missing or damaged, or the previous text has changed since the stage plan.
    """
    plan = stage_inputs.require_plan(job)
    generated = stage_inputs.require_generated(job)
    folder, fingerprint = job.space.stage("gate"), _fingerprint(job, generated)
    if not is_done(folder, fingerprint):
        record: dict = {}
        with committing(folder, fingerprint, record) as staging:
            rows_file = atomic_folder.final_folder(staging, folder) / NAME
            record |= _check_texts(job, plan, generated["rows"], staging, rows_file)
    record = done_record(folder)
    if any(record[entity][check]["failed"] for entity in ENTITIES for check in OF_ERRORS):
        write_json(job.space.stage("generate") / shard_plan.RETRY, {"run_id": job.run_id})
    _raise_if_failed(record)
    return stage_inputs.stage_report(record)


def require_passed(job: Job, generated: dict) -> dict:
    """The findings by entity type for these rows and limits.

    Raises
    ------
    DataError
        The gate has not checked them.
    ThresholdError
        The gate failed.
    """
    record = stage_inputs.require_stage(job, "gate")
    if record["fingerprint"] != _fingerprint(job, generated):
        raise DataError(f"{job.space.stage('gate')} does not match the current rows or limits: run "
                        f"`dare-job run --from gate --date {job.space.dt}` with the same options first")
    _raise_if_failed(record)
    return {entity: record[entity] for entity in ENTITIES}


def _raise_if_failed(record: dict) -> None:
    if record["failed"]:
        raise ThresholdError(record["message"])


def _fingerprint(job: Job, generated: dict) -> str:
    return digest(["gate", _VERSION, generated["fingerprint"], job.config.gates.model_dump(),
                   job.config.limits.max_error_share,
                   [stage_inputs.snapshot_identity(job, entity) for entity in ENTITIES]])


def _check_texts(job: Job, plan: dict, rows: int, staging: AnyPath, rows_file: AnyPath) -> dict:
    """The record of a gate: findings by entity type, failed checks and the error message."""
    failures, findings, scans, numbers = Failures(), {}, {}, scan.numbers(job)
    with FailingRows.create(staging) as failing_rows, progress.counting("checking texts", rows) as counter:
        for entity in ENTITIES:
            sample = lengths.Sample(stage_inputs.count_generated(job, entity))
            checked = scans[entity] = Scan(entity, job.config.gates, failing_rows, sample, numbers,
                                           scan.script(job, entity), job.config.decode.form_of(entity).kind)
            _scan(job, entity, checked, failures, counter)
            findings[entity] = {check: checked.finding(check) for check in OF_TEXTS}
            findings[entity] |= scan.length_findings(job, entity, sample.table(), checked)
    for entity, checked in scans.items():
        findings[entity] |= _errors(job, entity, failures, checked, plan)
    failed = [f"{entity} {check}" for entity, checks in findings.items()
              for check, finding in checks.items() if finding.failed]
    message = gate_failures.failure_message(job, failures, findings, rows_file) if failed else None
    return records(findings) | {"failed": failed, "message": message,
                                "commonest_errors": str(failures.reasons["all"])}


def _scan(job: Job, entity: str, checked: Scan, failures: Failures,
          counter: progress.Counter) -> None:
    """Scan the generated rows of an entity type once."""
    folder, known = stage_inputs.generated_folder(job, entity), known_errors(job, entity)
    fix = (f"remove the file and run `dare-job run --from generate --date {job.space.dt}` "
           "with the same options")
    rows = scan.readable(scan.batches(stage_inputs.generated_files(job, entity)), folder, fix)
    for batch in rows:
        checked.add(batch, failures, known)
        counter.advance(batch.num_rows)


def _errors(job: Job, entity: str, failures: Failures, checked: Scan, plan: dict) -> dict[str, Finding]:
    """Findings about rows with errors. The limit applies to both entity types together, the share to one.

    Rows that failed in the previous run too are compared, with the new failures, to all rows of the date.
    """
    limit, findings = job.config.limits.max_error_share, {}
    planned = Counter({each: plan[each]["rows"] - plan[each]["errors"] for each in ENTITIES})
    counts = ((failures.failed, failures.attempted, 0), (failures.repeated, planned, failures.failed.total()))
    for check, (failed, of, more) in zip(OF_ERRORS, counts, strict=True):
        too_many = limit is not None and failed.total() + more > limit * of.total()
        rows, total = failed[entity], of[entity]
        findings[check] = Finding(rows, total, rows / total if total else None, limit, too_many and rows > 0,
                                  checked.failing(check)[1])
    return findings
