"""What the router chose for every entity, where the run's work folder is still there."""

from collections import Counter

import pyarrow as pa

from dare_job import knowledge, swap
from dare_job.files import AnyPath
from dare_job.tables import ENTITIES, ROUTES

_BATCH = 1 << 18


def read(out: AnyPath, dt: str) -> dict[str, Counter]:
    """Entities by (kind of pool, reason) for each entity type; those whose routes are gone are missing."""
    found = {}
    for entity in ENTITIES:
        folder = swap.current(out / "_work" / f"dt={dt}" / "route") / f"entity={entity}"
        if any(folder.glob("*.parquet")):
            found[entity] = _counted(folder)
    return found


def _counted(folder: AnyPath) -> Counter:
    counts: Counter = Counter()
    routes = knowledge.dataset(folder, ROUTES)
    for batch in routes.to_batches(columns=["pool_kind", "reason"], batch_size=_BATCH, batch_readahead=2):
        pairs = pa.table(batch).group_by(["pool_kind", "reason"]).aggregate([([], "count_all")])
        counts.update({(row["pool_kind"], row["reason"]): row["count_all"] for row in pairs.to_pylist()})
    return counts
