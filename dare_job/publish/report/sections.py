"""Quality gates as manifests list them, ``{check: {value, limit, failed, ...}}``: one row each.

Counts what went wrong: errors that differ in their numbers and quoted words alone are one.

What the router chose for every entity, where the run's work folder is still there.
"""

from collections import Counter
from numbers import Real

import pyarrow as pa
import pyarrow.compute as pc

from dare_job.publish.report import format
from dare_job.publish.report.nights import Night
from dare_job.schemas import ENTITIES, ROUTES
from dare_job.storage import atomic
from dare_job.storage.paths import AnyPath
from dare_job.tables import published

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
    return format.share(value) if share and isinstance(value, float) else f"{value:,.4g}"

EXAMPLES = 3

_MOST = 10_000  # distinct reasons that are counted one by one

_REST = "other errors"

_VARYING = r"'[^']*'|\"[^\"]*\"|\d+(\.\d+)?"


class Reasons:
    """Rows with an error by reason, each with the first ids and the first message in full."""

    def __init__(self):
        self.rows = 0
        self._found: dict[str, dict] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch with the columns entity_id and error."""
        failed = batch.select(["entity_id", "error"]).filter(pc.is_valid(batch["error"]))
        if not failed.num_rows:
            return
        self.rows += failed.num_rows
        reasons = pc.replace_substring_regex(failed["error"], _VARYING, "…")
        for entry in reasons.value_counts().to_pylist():
            reason = entry["values"]
            if reason not in self._found and len(self._found) >= _MOST:
                reason = _REST
            known = self._found.setdefault(reason, {"reason": reason, "rows": 0, "ids": [], "example": None})
            known["rows"] += entry["counts"]
            if len(known["ids"]) < EXAMPLES:
                self._show(known, failed, pc.equal(reasons, entry["values"]))

    def _show(self, known: dict, failed: pa.RecordBatch, same: pa.Array) -> None:
        first = failed.filter(same).slice(0, EXAMPLES - len(known["ids"]))
        known["ids"] += first["entity_id"].to_pylist()
        known["example"] = known["example"] or first["error"][0].as_py()

    def commonest(self, number: int) -> list[dict]:
        """``reason, rows, ids, example`` of the commonest reasons, commonest first."""
        return sorted(self._found.values(), key=lambda entry: (-entry["rows"], entry["reason"]))[:number]

    def __len__(self) -> int:
        return len(self._found)

_BATCH = 1 << 18


def read(out: AnyPath, dt: str) -> dict[str, Counter]:
    """Entities by (kind of pool, reason) for each entity type; those whose routes are gone are missing."""
    found = {}
    for entity in ENTITIES:
        folder = atomic.current(out / "_work" / f"dt={dt}" / "route") / f"entity={entity}"
        if any(folder.glob("*.parquet")):
            found[entity] = _counted(folder)
    return found


def _counted(folder: AnyPath) -> Counter:
    counts: Counter = Counter()
    routes = published.dataset(folder, ROUTES)
    for batch in routes.to_batches(columns=["pool_kind", "reason"], batch_size=_BATCH, batch_readahead=2):
        pairs = pa.table(batch).group_by(["pool_kind", "reason"]).aggregate([([], "count_all")])
        counts.update({(row["pool_kind"], row["reason"]): row["count_all"] for row in pairs.to_pylist()})
    return counts
