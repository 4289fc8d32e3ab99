"""Counts errors by reason, for the report and for the messages of failed stages."""

import pyarrow as pa
import pyarrow.compute as pc

EXAMPLES = 3  # ids kept of each reason
_MAX_REASONS = 10_000  # distinct reasons; further ones count as _REST
_REST = "other errors"
_VARYING = r"'[^']*'|\"[^\"]*\"|\d+(\.\d+)?"


class ErrorReasons:
    """Rows with an error by reason, with the first ids and the first message of each reason.

    Messages that differ only in numbers or quoted words have the same reason.
    """

    def __init__(self):
        self.rows = 0
        self._reasons: dict[str, dict] = {}

    def add(self, ids: pa.Array, errors: pa.Array) -> None:
        """Count the errors of rows (n,); null: no error."""
        ids, errors = ids.filter(pc.is_valid(errors)), errors.drop_null()
        self.rows += len(errors)
        reasons = pc.replace_substring_regex(errors, _VARYING, "…")
        for entry in reasons.value_counts().to_pylist():
            reason = entry["values"]
            if reason not in self._reasons and len(self._reasons) >= _MAX_REASONS:
                reason = _REST
            counted = self._reasons.setdefault(
                reason, {"reason": reason, "rows": 0, "ids": [], "example": None})
            counted["rows"] += entry["counts"]
            if len(counted["ids"]) < EXAMPLES:
                same = pc.equal(reasons, entry["values"])
                counted["ids"] += ids.filter(same)[:EXAMPLES - len(counted["ids"])].to_pylist()
                counted["example"] = counted["example"] or errors.filter(same)[0].as_py()

    def most_common(self, number: int) -> list[dict]:
        """``reason, rows, ids, example`` of the most common reasons, in descending order."""
        return sorted(self._reasons.values(), key=lambda entry: (-entry["rows"], entry["reason"]))[:number]

    def __str__(self) -> str:
        """The ten most common reasons, each with its count and its first message."""
        return "; ".join(f"{entry['rows']} x {entry['example']}" for entry in self.most_common(10))

    def __len__(self) -> int:
        return len(self._reasons)
