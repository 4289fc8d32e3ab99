"""Tables of the report: quality gates of the manifests, errors by reason, and the choices of the router."""

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
    """One row per entity type and check: ``entity, check, value, limit, result, ids, more``.

    result : failed | near (passed, but above 80 % of the limit) | passed | not checked | off | unknown
    """
    shown = []
    for entity, manifest in night.manifests.items():
        gates = manifest.get("gates")
        for check, entry in (gates.items() if isinstance(gates, dict) else ()):
            shown.append({"entity": entity, "check": str(check), **_read(str(check), entry)})
    return shown


def _read(check: str, entry) -> dict:
    entry = dict(entry) if isinstance(entry, dict) else {"value": entry}
    value = next((entry.pop(name) for name in _VALUES if name in entry), None)
    limit, failed, ids = entry.pop("limit", None), entry.pop("failed", None), entry.pop("first", None)
    share = not any(word in check for word in _NO_SHARE)
    return {"value": _formatted(value, share), "limit": _formatted(limit, share),
            "result": _result(value, limit, failed, share), "ids": ids if isinstance(ids, list) else [],
            "more": ", ".join(f"{name} {_formatted(what, False)}" for name, what in entry.items() if what)}


def _result(value, limit, failed: bool | None, share: bool) -> str:
    if failed is None and not (_is_number(value) and _is_number(limit)):
        return "unknown"
    if failed or (failed is None and value > limit):
        return "failed"
    if limit is None or value is None:
        return "off" if limit is None else "not checked"
    return "near" if share and _is_number(value) and value > _NEAR * limit else "passed"


def _is_number(value) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _formatted(value, share: bool) -> str:
    if value is None:
        return "–"
    if not _is_number(value):
        return str(value)
    return format.share(value) if share and isinstance(value, float) else f"{value:,.4g}"


EXAMPLES = 3
_MAX_REASONS = 10_000  # distinct reasons; further ones count as _REST
_REST = "other errors"
_VARYING = r"'[^']*'|\"[^\"]*\"|\d+(\.\d+)?"


class Reasons:
    """Rows with an error by reason, with the first ids and the first message of each reason.

    Messages that differ only in numbers or quoted words have the same reason.
    """

    def __init__(self):
        self.rows = 0
        self._reasons: dict[str, dict] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch with the columns entity_id and error."""
        failed = batch.select(["entity_id", "error"]).filter(pc.is_valid(batch["error"]))
        if not failed.num_rows:
            return
        self.rows += failed.num_rows
        reasons = pc.replace_substring_regex(failed["error"], _VARYING, "…")
        for entry in reasons.value_counts().to_pylist():
            reason = entry["values"]
            if reason not in self._reasons and len(self._reasons) >= _MAX_REASONS:
                reason = _REST
            empty = {"reason": reason, "rows": 0, "ids": [], "example": None}
            known = self._reasons.setdefault(reason, empty)
            known["rows"] += entry["counts"]
            if len(known["ids"]) < EXAMPLES:
                self._add_examples(known, failed, pc.equal(reasons, entry["values"]))

    def _add_examples(self, known: dict, failed: pa.RecordBatch, same: pa.Array) -> None:
        first = failed.filter(same).slice(0, EXAMPLES - len(known["ids"]))
        known["ids"] += first["entity_id"].to_pylist()
        known["example"] = known["example"] or first["error"][0].as_py()

    def most_common(self, number: int) -> list[dict]:
        """``reason, rows, ids, example`` of the most common reasons, in descending order."""
        return sorted(self._reasons.values(), key=lambda entry: (-entry["rows"], entry["reason"]))[:number]

    def __len__(self) -> int:
        return len(self._reasons)


_BATCH = 1 << 18


def read(out: AnyPath, dt: str) -> dict[str, Counter]:
    """Number of entities by (kind of pool, reason), for entity types whose routes still exist."""
    routes = {}
    for entity in ENTITIES:
        folder = atomic.current(out / "_work" / f"dt={dt}" / "route") / f"entity={entity}"
        if any(folder.glob("*.parquet")):
            routes[entity] = _counted(folder)
    return routes


def _counted(folder: AnyPath) -> Counter:
    counts: Counter = Counter()
    routes = published.dataset(folder, ROUTES)
    for batch in routes.to_batches(columns=["pool_kind", "reason"], batch_size=_BATCH, batch_readahead=2):
        pairs = pa.table(batch).group_by(["pool_kind", "reason"]).aggregate([([], "count_all")])
        counts.update({(row["pool_kind"], row["reason"]): row["count_all"] for row in pairs.to_pylist()})
    return counts
