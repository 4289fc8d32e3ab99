"""Quality gates as manifests list them: whatever checks there are, one row each."""

from numbers import Real

from dare_job.report import words
from dare_job.report.nights import Night

_NEAR = 0.8  # of the limit
_VALUES, _LIMITS = ("share", "value", "measured"), ("limit", "most", "max", "threshold")


def rows(night: Night) -> list[dict]:
    """``entity, check, value, limit, passed, near, more``; ``passed``: None where a manifest does not say."""
    found = []
    for entity, manifest in night.manifests.items():
        gates = manifest.get("gates")
        for check, entry in (gates.items() if isinstance(gates, dict) else ()):
            found.append({"entity": entity, "check": str(check), **_read(entry)})
    return found


def _read(entry) -> dict:
    entry = dict(entry) if isinstance(entry, dict) else {"value": entry}
    value, limit = (next((entry.pop(name) for name in names if name in entry), None)
                    for names in (_VALUES, _LIMITS))
    passed = entry.pop("passed", None)
    numbers = _is_number(value) and _is_number(limit)
    if passed is None and numbers:
        passed = value <= limit
    more = ", ".join(f"{name} {_written(what)}" for name, what in sorted(entry.items())
                     if what not in (None, []))
    return {"value": _written(value), "limit": _written(limit), "passed": passed, "more": more,
            "near": bool(passed and numbers and limit > 0 and value > _NEAR * limit)}


def _is_number(value) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _written(value) -> str:
    if value is None:
        return "–"
    if not _is_number(value):
        return str(value)
    return words.share(value) if isinstance(value, float) and 0 <= value <= 1 else f"{value:,.4g}"
