"""The measured loss against its limits (``verify.max_loss``), and in words."""

import math
from collections.abc import Mapping

LEVEL = 0.95  # of the bounds
MEASURES = {"distance": "embedding distance", "facts": "share of texts with other facts"}


def rows_needed(name: str, limit: float) -> int:
    """Rows with which the bound of a measure is within its limit if all texts are equal."""
    if name == "facts":
        return math.ceil(math.log(1 - LEVEL) / math.log1p(-limit))
    return math.ceil(math.log((1 - LEVEL) / 2) / math.log1p(-limit / 2))


def over_limit(record: Mapping, limits: Mapping[str, float]) -> str | None:
    """Why the loss in a record is not known to keep the limits; None if it is."""
    reasons = []
    for name, limit in limits.items():
        found = record[name]
        if found is None:
            reasons.append(f"the {MEASURES[name]} could not be measured (limit {limit:g})")
        elif found["bound"] > limit:
            reasons.append(f"{_measured(name, record)}, limit {limit:g}")
            if found["mean"] <= limit:
                reasons[-1] += (f": {record['rows']} rows do not suffice to show that it is kept, and "
                                f"{rows_needed(name, limit)} do if all texts are equal")
    return "; ".join(reasons) or None


def summary(record: Mapping) -> str:
    """A record in words, such as "500 of 2,000 rows also written strictly: embedding distance ..."."""
    measured = [_measured(name, record) for name in MEASURES if record[name]]
    line = f"{record['rows']:,} of {record['of']:,} rows also written strictly"
    line += f": {', '.join(measured)}" if measured else ""
    return line + ("; above verify.max_loss, so the other rows are strict" if record.get("strict") else "")


def _measured(name: str, record: Mapping) -> str:
    """A measure with its bound, such as "embedding distance 0.0012, at most 0.0141 at 95 %"."""
    found = record[name]
    return f"{MEASURES[name]} {found['mean']:.4f}, at most {found['bound']:.4f} at {record['level']:.0%}"
