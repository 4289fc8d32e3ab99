"""What the first screen tells someone to look at, most urgent first."""

from dataclasses import dataclass

from dare_job.publish.report import format
from dare_job.publish.report.collect import Collected
from dare_job.publish.report.nights import Night, unusual

_CUT_OFF = 0.05  # share of tonight's texts that ended at decode.max_new_tokens


@dataclass(frozen=True)
class Point:
    """level: bad | warn | note; section: id of the part of the page that says more."""

    level: str
    says: str
    section: str


def points(night: Night, before: list[Night], collected: list[Collected], gates: list[dict]) -> list[Point]:
    found = [*_broken(night, collected), *_gates(gates), *_errors(night, collected), *_cost(night)]
    found += [_unusual(one, before) for one in unusual(night, before) if one.measure.name != "times_plain"
              or night.times_plain >= 1]
    found += [*_cut_off(collected), *_input(night)]
    return sorted(found, key=lambda point: ("bad", "warn", "note").index(point.level))


def _broken(night: Night, collected: list[Collected]) -> list[Point]:
    found = []
    runs = {manifest.get("run_id") for manifest in night.manifests.values()}
    if len(runs) > 1:
        found.append(Point("bad", "Users and items are of two runs: publishing was cut off between them. Run "
                                  f"dare-job run --from publish --date {night.dt} with its options.", "run"))
    said, there = night.total("counts", "rows"), sum(part.rows for part in collected)
    if said is not None and said != there:
        found.append(Point("bad", f"The files hold {format.count(there)} rows, the manifests say "
                                  f"{format.count(said)}.", "run"))
    if not there:
        found.append(Point("bad", "The snapshot has no rows.", "run"))
    elif not sum(part.fresh for part in collected):
        found.append(Point("note", "No text was written tonight; all rows are carried over or have none.",
                           "age"))
    return found


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
    reasons = [one for part in collected for one in part.reasons.commonest(1)]
    commonest = _short(max(reasons, key=lambda one: one["rows"])["reason"])
    return [Point("warn", f"{format.count(failed)} rows ({format.share(failed / rows)}) have an error, most "
                          f"often: {commonest}", "errors")]


def _cost(night: Night) -> list[Point]:
    if night.times_plain is not None and night.times_plain < 1:
        return [Point("warn", f"Slower than plain decoding: {format.times(night.times_plain)} its rate.",
                      "cost")]
    if night.total("counts", "written") and not night.baseline:
        return [Point("note", "No baseline was measured tonight, so the cost cannot be compared.", "cost")]
    return []


def _unusual(one, before: list[Night]) -> Point:
    kind = one.measure.kind
    return Point("warn", f"{one.measure.title}: {format.of_kind(kind, one.value)}; the median of the last "
                         f"{len(before)} dates is {format.of_kind(kind, one.usual)}.", "week")


def _cut_off(collected: list[Collected]) -> list[Point]:
    fresh = sum(part.fresh for part in collected)
    cut = sum(part.finished["length"] for part in collected)
    if fresh and cut / fresh > _CUT_OFF:
        return [Point("warn", f"{format.share(cut / fresh)} of tonight's texts were cut off at their longest "
                              "length (decode.max_new_tokens, or the model's positions).", "run")]
    return []


def _input(night: Night) -> list[Point]:
    broken, pending = night.total("rejects", "broken"), night.total("counts", "pending")
    found = []
    if broken:
        found.append(Point("note", f"{format.count(broken)} rows of the input were rejected.", "run"))
    if pending:
        found.append(Point("note", f"{format.count(pending)} known entities have no row yet: never written, "
                                   "and not reached tonight.", "run"))
    return found


def _short(reason: str, most: int = 120) -> str:
    return reason if len(reason) <= most else f"{reason[:most]}…"
