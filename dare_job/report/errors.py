"""Counts what went wrong: errors that differ in their numbers and quoted words alone are one."""

import pyarrow as pa
import pyarrow.compute as pc

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
