"""The date before is rolled back, or published again, under a night that started from it."""

import json
import os
import time

import pytest
from fault_nights import BEFORE, NIGHT, committed, last_line, published, require_whole, rows

from dare_job.schemas import ENTITIES

pytestmark = [pytest.mark.spark, pytest.mark.release]


PUBLISH = ("run", "--from", "publish", "--to", "publish")


def test_a_date_rolled_back_under_a_night_costs_it_no_row(finished, folders, dare_job):
    """Stage by stage, as Airflow runs them: rows that the plan left out as fresh would be missing."""
    options, out = finished
    before = published(out, NIGHT)
    (out / "away").mkdir()
    for entity in ENTITIES:
        (out / "knowledge" / f"entity={entity}" / f"dt={BEFORE}").rename(out / "away" / entity)
    for stage in ("generate", "gate", "publish"):
        code, said = dare_job("run", "--from", stage, "--to", stage, *options)
        assert code == 4 and "previous text of users (now none, before knowledge/entity=user/dt=" in said
        assert "`dare-job run --from plan --date" in last_line(said) and published(out, NIGHT) == before
    for entity in ENTITIES:
        (out / "away" / entity).rename(out / "knowledge" / f"entity={entity}" / f"dt={BEFORE}")
    assert dare_job(*PUBLISH, *options)[0] == 0 and published(out, NIGHT) == before


@pytest.mark.release
def test_a_date_published_again_under_a_night_is_planned_from_anew_also_if_the_clock_was_set_back(
        finished, folders, dare_job):
    """All that the nights wrote is a month ahead of what the clock says now."""
    options, out = finished
    ahead = time.time() + 30 * 86_400
    for path in out.rglob("*"):
        os.utime(path, (ahead, ahead))
    for entity in ENTITIES:
        manifest = out / "knowledge" / f"entity={entity}" / f"dt={BEFORE}" / "_manifest.json"
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"run_id": "another"}))
    before = published(out)
    code, said = dare_job(*PUBLISH, *options)
    assert code == 4 and "dt=2026-01-01 of run another, before" in last_line(said), said
    assert dare_job("run", *options)[0] == 0
    require_whole(out, folders.undisturbed)
    wrote = [{row["source_run_id"] for row in rows(at, "user").values()} for at in (out, folders.undisturbed)]
    assert wrote[0] == wrote[1], "texts were written twice"
    done = committed(out)
    assert dare_job("run", *options)[0] == 0
    assert committed(out) == done and published(out) == before
