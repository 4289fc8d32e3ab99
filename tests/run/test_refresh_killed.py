"""A run with a budget or a limit of time that is killed: choice and deadline are made once, and stay."""

import shutil
from datetime import UTC, datetime, timedelta

import pyarrow.parquet as pq
import pytest
from run_helpers import NIGHT_1, NIGHT_2, files, leftovers
from test_run_killed import WORKER, chunk_files, content, run  # noqa: F401  # run is a fixture

from dare_job import pipeline
from dare_job.refresh import stopping
from dare_job.schemas import COPIES, ENTITIES
from dare_job.tables import plan_table, published
from dare_job.workspace import done_record

pytestmark = [pytest.mark.spark, pytest.mark.release]
BUDGET = ("--set", "refresh.max_rows=6")


def plan_files(out):
    found = files(out / "_work" / f"dt={NIGHT_2}" / "plan")
    return {name: file for name, file in found.items() if name.startswith("entity=")}


def choice(out):
    """The copies, and the rows that the record of the plan chooses, with the record's two numbers."""
    folder = out / "_work" / f"dt={NIGHT_2}" / "plan"
    record = done_record(folder)["refresh"]
    cut, end = record["cut"], record["sample_end"]
    rows = {entity: pq.read_table(folder / f"entity={entity}").to_pylist() for entity in ENTITIES}
    copies = [published.dataset(plan_table.copies_folder(folder, entity), COPIES).to_table().to_pylist()
              for entity in ENTITIES]
    chosen = {entity: {row["entity_id"] for row in rows[entity]
                       if row["stale"] and (row["rank"] < cut and row["carried_reason"] is None
                                            or row["sample"] is not None and row["sample"] < end)}
              for entity in ENTITIES}
    return (cut, end), copies, chosen


def test_a_run_with_a_budget_that_is_killed_keeps_its_choice(run, nights, job_of):  # noqa: F811
    """Killed while the plan is written, and while the chosen texts are."""
    start, out = run
    start(r"spark .*\.plan\..*/entity=item", *BUDGET)
    assert not (out / "_work" / f"dt={NIGHT_2}" / "plan").exists()
    start(WORKER, *BUDGET)
    planned, chosen, committed = plan_files(out), choice(out), chunk_files(out)
    assert sum(map(len, chosen[-1].values())) == 6
    start(None, *BUDGET)
    assert plan_files(out) == planned and chunk_files(out).items() > committed.items() > {}.items()
    assert leftovers(out) == []
    same = out.parent / "undisturbed"
    for entity in ENTITIES:
        name = f"knowledge/entity={entity}/dt={NIGHT_1}"
        shutil.copytree(nights.out / name, same / name)
    pipeline.run(job_of(same, NIGHT_2, refresh={"max_rows": 6}, baseline={"rows": 0}))
    assert choice(same) == chosen and content(same) == content(out)


@pytest.mark.parametrize("limit", ["deadline", "max_worker_hours"])
def test_a_run_with_a_limit_of_time_that_is_killed_goes_on_under_it(run, nights, limit):  # noqa: F811
    """Killed while texts are written, and after they are published. The deadline is in a day."""
    time = datetime.now(UTC) - timedelta(minutes=2)
    setting = {"deadline": f"{time:%H:%M} UTC", "max_worker_hours": "1"}[limit]
    start, out = run
    fixed = out / "_work" / f"dt={NIGHT_2}" / stopping.FIXED
    start(WORKER, "--set", f"refresh.{limit}={setting}")
    record, committed = fixed.read_bytes(), chunk_files(out)
    start(r"open .*reports/dt=", "--set", f"refresh.{limit}={setting}")
    assert fixed.read_bytes() == record and chunk_files(out).items() > committed.items() > {}.items()
    assert content(out) == content(nights.out)
    start(None, "--set", f"refresh.{limit}={setting}")
    assert not fixed.exists() and leftovers(out) == []
    assert content(out) == content(nights.out)
