"""Tables of the report that need more than the rows: quality gates, and the choices of the router."""

from collections import Counter

import pyarrow as pa

from dare_job.publish.gate.findings import OF_LENGTHS
from dare_job.publish.report import format
from dare_job.publish.report.nights import Night
from dare_job.schemas import ENTITIES, ROUTES
from dare_job.storage import atomic
from dare_job.storage.paths import AnyPath
from dare_job.tables import published

_NEAR = 0.8  # of the limit
_BATCH = 1 << 18


def gates(night: Night) -> list[dict]:
    """One row per entity type and check: ``entity, check, value, limit, result, ids, more``.

    result : failed | near (passed, but above 80 % of the limit) | passed | not checked | off
    """
    return [{"entity": entity, "check": check, **_gate(check, finding)}
            for entity, manifest in night.manifests.items()
            for check, finding in manifest.get("gates", {}).items()]


def _gate(check: str, finding: dict) -> dict:
    value, limit, is_share = finding["value"], finding["limit"], check not in OF_LENGTHS
    result = "passed"
    if finding["failed"]:
        result = "failed"
    elif limit is None or value is None:
        result = "off" if limit is None else "not checked"
    elif is_share and value > _NEAR * limit:
        result = "near"
    shown = format.share if is_share else format.rate
    more = f"{finding['rows']:,} of {finding['of']:,} rows"
    return {"value": shown(value), "limit": shown(limit), "result": result, "ids": finding["first"],
            "more": ", ".join(filter(None, [more, finding["why"]]))}


def routes(out: AnyPath, dt: str) -> list[dict]:
    """``entity, kind, reason, rows, share``, most rows first; empty if the working files are gone."""
    folder, chosen = atomic.current(out / "_work" / f"dt={dt}" / "route"), []
    for entity in ENTITIES:
        counts, table = Counter(), published.dataset(folder / f"entity={entity}", ROUTES)
        for batch in table.to_batches(columns=["pool_kind", "reason"], batch_size=_BATCH, batch_readahead=2):
            pairs = pa.table(batch).group_by(["pool_kind", "reason"]).aggregate([([], "count_all")])
            counts.update({(row["pool_kind"], row["reason"]): row["count_all"] for row in pairs.to_pylist()})
        chosen += [{"entity": entity, "kind": kind, "reason": reason, "rows": rows,
                    "share": rows / counts.total()} for (kind, reason), rows in counts.most_common()]
    return chosen
