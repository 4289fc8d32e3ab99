"""The list at the top of the report of what needs attention, most urgent first."""

from collections.abc import Iterator
from dataclasses import dataclass

from dare_job.publish.report import format
from dare_job.publish.report.collect import Collected
from dare_job.publish.report.nights import Night, Unusual
from dare_job.publish.report.screen import uneven

_CUT_OFF = 0.05  # a warning if more than this share of the generated texts reached decode.max_new_tokens


@dataclass(frozen=True)
class Point:
    """A line of the list.

    Attributes
    ----------
    level
        bad, warn or note.
    section
        Id of the section with the details.
    """

    level: str
    message: str
    section: str


def points(night: Night, before: list[Night], collected: list[Collected], gates: list[dict],
           unusual: list[Unusual]) -> list[Point]:
    """All points of a date's report, the bad ones first, then warnings, then notes."""
    listed = [*_snapshot(night, collected), *_gates(gates), *_loss(night), *_cost(night),
              *_unusual(night, before, unusual), *_input(night)]
    return sorted(listed, key=lambda point: ("bad", "warn", "note").index(point.level))


def _snapshot(night: Night, collected: list[Collected]) -> Iterator[Point]:
    """What the rows and their manifests show."""
    if len({manifest.get("run_id") for manifest in night.manifests.values()}) > 1:
        yield Point("bad", "Users and items are from different runs: publishing was interrupted. Run "
                           f"dare-job run --from publish --date {night.dt} with the same settings.", "run")
    expected, rows = night.total("counts", "rows"), sum(part.rows for part in collected)
    if expected is not None and expected != rows:
        yield Point("bad", f"The files contain {format.count(rows)} rows, but the manifests count "
                           f"{format.count(expected)}.", "run")
    fresh = sum(part.fresh for part in collected)
    if not rows:
        yield Point("bad", "The snapshot has no rows.", "run")
    elif not fresh:
        yield Point("note", "This run generated no text; all rows are carried over or have no text.", "age")
    if failed := sum(part.reasons.rows for part in collected):
        reasons = [reason for part in collected for reason in part.reasons.most_common(1)]
        most_common = max(reasons, key=lambda reason: reason["rows"])["reason"]
        yield Point("warn", f"{format.count(failed)} rows ({format.share(failed / rows)}) have an error, "
                            f"most often: {most_common[:120]}{'…' * (len(most_common) > 120)}", "errors")
    cut_off = sum(part.finished["length"] for part in collected)
    if fresh and cut_off / fresh > _CUT_OFF:
        yield Point("warn", f"{format.share(cut_off / fresh)} of the generated texts were cut off at the "
                            "length limit (decode.max_new_tokens or the model's context).", "run")


def _gates(gates: list[dict]) -> Iterator[Point]:
    for gate in gates:
        if gate["result"] in ("failed", "near"):
            yield Point("bad" if gate["result"] == "failed" else "warn",
                        f"Quality gate {gate['check']} of {gate['entity']}s: {gate['value']}, limit "
                        f"{gate['limit']}.", "gates")


def _loss(night: Night) -> Iterator[Point]:
    if (night.first("loss") or {}).get("strict"):
        yield Point("warn", "Most rows were written strictly, because the loss of the sample is not known to "
                            f"keep verify.max_loss: {night.first('loss')['strict']}.", "loss")


def _cost(night: Night) -> Iterator[Point]:
    if night.speedup is not None and night.speedup < 1:
        yield Point("warn", f"Slower than autoregressive decoding: {format.times(night.speedup)}.", "cost")
    elif night.total("counts", "written") and not night.baseline:
        yield Point("note", "This run measured no baseline, so its cost cannot be compared.", "cost")
    elif night.baseline and not night.baseline_rate:
        yield Point("note", "The baseline had fewer workers or smaller batches than the run, so the cost "
                            "cannot be compared.", "cost")
    if line := uneven(night.first("workers")):
        yield Point("warn", f"{line}.", "timeline")


def _unusual(night: Night, before: list[Night], unusual: list[Unusual]) -> Iterator[Point]:
    for value in unusual:
        shown = value.measure.format
        if value.measure.name != "speedup" or night.speedup >= 1:
            yield Point("warn", f"{value.measure.title}: {shown(value.value)}; the median of the last "
                                f"{len(before)} dates is {shown(value.median)}.", "week")


def _input(night: Night) -> Iterator[Point]:
    if rejected := night.total("rejects", "broken"):
        yield Point("note", f"{format.count(rejected)} rows of the input were rejected.", "run")
    if pending := night.total("counts", "pending"):
        yield Point("note", f"{format.count(pending)} known entities have no row yet: no run has reached "
                            "them.", "run")
