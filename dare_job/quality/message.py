"""What an operator reads when the gate stays shut."""


from dare_job.files import AnyPath
from dare_job.job import Job
from dare_job.quality.failures import Failures
from dare_job.quality.findings import CHECKS, Finding

_ADVICE = ("Either mend what wrote them (model, prompts, decode, verify: what a change concerns is written "
           "anew) and run again; or, if they are right, raise the setting and run again: no finished text is "
           "written anew")


def of(job: Job, failures: Failures, found: dict[str, dict[str, Finding]], listed: AnyPath) -> str:
    """Each failed check with share, limit, setting and first ids; where the rows are; what can be done.

    listed  the table of rows
    """
    failed = [(entity, check, finding) for entity, checks in found.items()
              for check, finding in checks.items() if finding.failed]
    parts = [_words(*each) for each in failed if each[1] != "errors"]
    if len(parts) < len(failed):
        parts.insert(0, _errors(job, failures))
    return (f"the quality gate failed and nothing was published: {'. '.join(parts)}. "
            f"The rows are in {listed}. {_ADVICE}")


def _errors(job: Job, failures: Failures) -> str:
    return (f"{failures.failed.total()} of {failures.asked.total()} rows with a prompt failed, more than "
            f"limits.max_error_share = {job.config.limits.max_error_share}; the next run tries these rows "
            f"again. Commonest: {failures.commonest()}")


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
