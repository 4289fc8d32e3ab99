"""Quality gates as manifests list them, ``{check: {value, limit, failed, ...}}``: one row each."""

from numbers import Real

from dare_job.report import words
from dare_job.report.nights import Night

_NEAR = 0.8  # of the limit
_VALUES, _NO_SHARE = ("value", "share"), ("ratio", "distance")


def rows(night: Night) -> list[dict]:
    """``entity, check, value, limit, result, ids, more`` by entity type and check.

    result  failed | near (passed, above 80 % of its limit) | passed | not looked at | off | unknown
    """
    found = []
    for entity, manifest in night.manifests.items():
        gates = manifest.get("gates")
        for check, entry in (gates.items() if isinstance(gates, dict) else ()):
            found.append({"entity": entity, "check": str(check), **_read(str(check), entry)})
    return found


def _read(check: str, entry) -> dict:
    entry = dict(entry) if isinstance(entry, dict) else {"value": entry}
    value = next((entry.pop(name) for name in _VALUES if name in entry), None)
    limit, failed, ids = entry.pop("limit", None), entry.pop("failed", None), entry.pop("first", None)
    share = not any(word in check for word in _NO_SHARE)
    return {"value": _written(value, share), "limit": _written(limit, share),
            "result": _result(value, limit, failed, share), "ids": ids if isinstance(ids, list) else [],
            "more": ", ".join(f"{name} {_written(what, False)}" for name, what in entry.items() if what)}


def _result(value, limit, failed: bool | None, share: bool) -> str:
    if failed is None and not (_is_number(value) and _is_number(limit)):
        return "unknown"
    if failed or (failed is None and value > limit):
        return "failed"
    if limit is None or value is None:
        return "off" if limit is None else "not looked at"
    return "near" if share and _is_number(value) and value > _NEAR * limit else "passed"


def _is_number(value) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _written(value, share: bool) -> str:
    if value is None:
        return "–"
    if not _is_number(value):
        return str(value)
    return words.share(value) if share and isinstance(value, float) else f"{value:,.4g}"
