"""What the first screen of the report points out, most urgent first."""

from dataclasses import dataclass

from dare_job.publish.report import format
from dare_job.publish.report.collect import Collected
from dare_job.publish.report.nights import Night, unusual

_CUT_OFF = 0.05  # share of the generated texts that hit decode.max_new_tokens


@dataclass(frozen=True)
class Point:
    """A line of the list. level: bad | warn | note; section: id of the section with the details."""

    level: str
    message: str
    section: str


def points(night: Night, before: list[Night], collected: list[Collected], gates: list[dict]) -> list[Point]:
    notes = [*_broken(night, collected), *_gates(gates), *_errors(night, collected), *_cost(night)]
    notes += [_unusual(value, before) for value in unusual(night, before) if value.measure.name != "speedup"
              or night.speedup >= 1]
    notes += [*_cut_off(collected), *_input(night)]
    return sorted(notes, key=lambda point: ("bad", "warn", "note").index(point.level))


def _broken(night: Night, collected: list[Collected]) -> list[Point]:
    notes = []
    runs = {manifest.get("run_id") for manifest in night.manifests.values()}
    if len(runs) > 1:
        notes.append(Point("bad", "Users and items are from different runs: publishing was interrupted. Run "
                                  f"dare-job run --from publish --date {night.dt} with the same settings.",
                           "run"))
    expected, rows = night.total("counts", "rows"), sum(part.rows for part in collected)
    if expected is not None and expected != rows:
        notes.append(Point("bad", f"The files contain {format.count(rows)} rows, but the manifests count "
                                  f"{format.count(expected)}.", "run"))
    if not rows:
        notes.append(Point("bad", "The snapshot has no rows.", "run"))
    elif not sum(part.fresh for part in collected):
        notes.append(Point("note", "This run generated no text; all rows are carried over or have no text.",
                           "age"))
    return notes


def _gates(gates: list[dict]) -> list[Point]:
    return [Point("bad" if gate["result"] == "failed" else "warn",
                  f"Quality gate {gate['check']} of {gate['entity']}s: {gate['value']}, "
                  f"limit {gate['limit']}.",
                  "gates")
            for gate in gates if gate["result"] in ("failed", "near")]


def _errors(night: Night, collected: list[Collected]) -> list[Point]:
    failed = sum(part.reasons.rows for part in collected)
    rows = sum(part.rows for part in collected)
    if not failed:
        return []
    reasons = [reason for part in collected for reason in part.reasons.most_common(1)]
    most_common = _short(max(reasons, key=lambda reason: reason["rows"])["reason"])
    return [Point("warn", f"{format.count(failed)} rows ({format.share(failed / rows)}) have an error, most "
                          f"often: {most_common}", "errors")]


def _cost(night: Night) -> list[Point]:
    if night.speedup is not None and night.speedup < 1:
        return [Point("warn", f"Slower than autoregressive decoding: {format.times(night.speedup)}.",
                      "cost")]
    if night.total("counts", "written") and not night.baseline:
        return [Point("note", "This run measured no baseline, so its cost cannot be compared.", "cost")]
    return []


def _unusual(value, before: list[Night]) -> Point:
    kind = value.measure.kind
    return Point("warn", f"{value.measure.title}: {format.of_kind(kind, value.value)}; the median of the "
                         f"last {len(before)} dates is {format.of_kind(kind, value.median)}.", "week")


def _cut_off(collected: list[Collected]) -> list[Point]:
    fresh = sum(part.fresh for part in collected)
    cut = sum(part.finished["length"] for part in collected)
    if fresh and cut / fresh > _CUT_OFF:
        return [Point("warn", f"{format.share(cut / fresh)} of the generated texts were cut off at the "
                              "length limit (decode.max_new_tokens or the model's context).", "run")]
    return []


def _input(night: Night) -> list[Point]:
    broken, pending = night.total("rejects", "broken"), night.total("counts", "pending")
    notes = []
    if broken:
        notes.append(Point("note", f"{format.count(broken)} rows of the input were rejected.", "run"))
    if pending:
        notes.append(Point("note", f"{format.count(pending)} known entities have no row yet: no run has "
                                   "reached them.", "run"))
    return notes


def _short(reason: str, max_length: int = 120) -> str:
    return reason if len(reason) <= max_length else f"{reason[:max_length]}…"
