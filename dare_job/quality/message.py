"""What an operator reads when the gate stays shut."""

from collections.abc import Sequence

from dare_job.files import AnyPath
from dare_job.job import Job
from dare_job.quality.failures import Failures
from dare_job.quality.findings import CHECKS, OF_ERRORS, Finding

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
