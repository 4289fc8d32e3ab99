"""A relaxed night whose texts may be longer than those of before: guards from pools to published counts."""

import json
import math
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from run_helpers import NIGHT_1, NIGHT_2, QUANTILE, snapshot

from dare_job.publish.report import show_text
from dare_job.schemas import ENTITIES, KNOWLEDGE
from dare_job.workspace import MANIFEST

pytestmark = [pytest.mark.spark, pytest.mark.release]


def guards(out: Path, entity: str) -> dict[str, int]:
    """Each row's guard by the words of the setting, from yesterday's snapshot and tonight's routes."""
    old = {name: row["tokens"] for name, row in snapshot(out, entity, NIGHT_1).items() if row["tokens"]}
    routes = ds.dataset(out / "_work" / f"dt={NIGHT_2}" / "route" / f"entity={entity}").to_table().to_pylist()
    pools = {}
    for route in routes:
        pools.setdefault(route["pool"], []).append(route["entity_id"])
    found = {}
    for route in routes:
        group = sorted(old[name] for name in pools[route["pool"]] if name in old)
        lengths = group if len(group) >= 20 and route["pool"] != "global" else sorted(old.values())
        found[route["entity_id"]] = lengths[math.ceil(QUANTILE * len(lengths)) - 1]
    return found


def test_rows_are_guarded_by_the_lengths_of_their_group(relaxed_night):
    out, summary = relaxed_night
    guarded = relaxed = 0
    for entity in ENTITIES:
        expected, rows = guards(out, entity), snapshot(out, entity, NIGHT_2)
        for name, row in rows.items():
            if row["error"] is None:
                assert row["guarded_tokens"] == max(0, row["tokens"] - expected[name])
                relaxed += row["relaxed_tokens"]
                guarded += row["guarded_tokens"] > 0
        folder = out / "knowledge" / f"entity={entity}" / f"dt={NIGHT_2}"
        manifest = json.loads((folder / MANIFEST).read_text())
        assert manifest["counts"]["guarded"] == sum((row["guarded_tokens"] or 0) > 0 for row in rows.values())
    assert guarded > 3 and relaxed > 5
    assert (summary["guarded_rows"], summary["relaxed_tokens"]) == (guarded, relaxed)


def test_snapshots_say_how_much_was_guarded(relaxed_night):
    out, _ = relaxed_night
    row = next(row for row in snapshot(out, "user", NIGHT_2).values() if row["guarded_tokens"])
    assert f"{row['guarded_tokens']} verified strictly after the length limit" in show_text.figures(row)
    old = next(row for row in snapshot(out, "item", NIGHT_1).values() if row["tokens"])
    assert "length limit" not in show_text.figures(old)
    for path in out.glob(f"knowledge/*/dt={NIGHT_2}/*.parquet"):
        assert pq.read_schema(path).equals(KNOWLEDGE)
