"""SIGKILL during the stage recommend: finished chunks stay, and the same command completes the run without
duplicates.
"""

from collections import Counter
from datetime import date
from pathlib import Path

import kill_points
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_recommender

from dare_job import pipeline
from dare_job.config.settings import JobConfig
from dare_job.job import Job
from dare_job.recommend import chunks
from dare_job.storage import atomic_folder
from dare_job.workspace import Workspace

pytestmark = [pytest.mark.spark, pytest.mark.release]
DAY = "2026-01-02"


def job_of(out: Path, shop: Path, model: Path) -> Job:
    config = JobConfig.model_validate({
        "out": str(out), "input": {"path": str(shop)},
        "recommend": {"model": str(model), "k": 3, "rows_per_commit": 4, "drafter": "transitions",
                      "draft_depth": "all"},
        "spark": {"master": "local[2]", "conf": {
            "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}}})
    return Job(config, Workspace(out, date.fromisoformat(DAY)), "run-1")


def recommend_once(out: Path, shop: Path, model: Path) -> None:
    atomic_folder.GRACE_S = 0
    pipeline.run_stage(job_of(out, shop, model), "recommend")


def table(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("part-*.parquet"))])


@pytest.mark.parametrize("point", [
    pytest.param(r"^open candidates/.*_manifest", id="the table is written", marks=pytest.mark.release),
    pytest.param(r"^rename candidates/.*staging -> ", id="about to be shown")])
def test_a_killed_run_is_completed_by_the_same_command(point, spark, write_input, tmp_path):
    shop = write_input(tiny_recommender.interactions())
    out, model = tmp_path / "out", tiny_recommender.write(tmp_path / "model")
    kill_points.killed(point, out, recommend_once, out, shop, model)
    folder = out / "candidates" / f"dt={DAY}"
    assert not folder.exists()
    work = next((out / "_work" / f"dt={DAY}" / "recommend").iterdir())
    some = sorted((work / "chunks").glob("part-*.parquet"))
    for path in some[::2]:  # as if it had been killed with half of them
        path.unlink()
    (work / "chunks" / ".part-000001.parquet.x.partial").write_bytes(b"half") if some else None
    kept = {path: path.stat().st_mtime_ns for path in some[1::2]}
    recorded = {}
    write = chunks.write

    def watching(*arguments):
        manifest = write(*arguments)
        recorded.update(
            {path: path.stat().st_mtime_ns for path in kept}, chunks={row["chunk"] for row in manifest}
        )
        return manifest

    job = job_of(out, shop, model)
    job.__dict__["spark"] = spark
    chunks.write = watching
    try:
        manifest = pipeline.run_stage(job, "recommend")
    finally:
        chunks.write = write
    assert {path: recorded[path] for path in kept} == kept  # not written again
    assert not {int(path.stem[5:]) for path in kept} & recorded["chunks"]
    found = table(folder)
    times = Counter(found["user_id"].to_pylist())
    assert len(times) == manifest["counts"]["users"] == 23 and set(times.values()) == {3}
    left = [path for path in out.rglob("*") if path.name.startswith((".", "_lock"))]
    assert not [path for path in left if path.suffix != ".crc"]  # Spark writes these
