"""SIGKILL while features are made: readers see whole tables, and the same command ends the night."""

from contextlib import nullcontext
from datetime import date
from pathlib import Path

import kill_points
import pytest
from encoders import tiny_bert
from small_texts import manifest, publish, rows

from dare_job import pipeline
from dare_job.config.settings import JobConfig
from dare_job.job import Job
from dare_job.storage import atomic_folder
from dare_job.workspace import Workspace

pytestmark = pytest.mark.spark
DAY, NEXT = "2026-01-02", "2026-01-03"
USERS = {f"u{number}": f"likes {'war ' * number}films" for number in range(9)}


def job_of(out: Path, bert: Path, day: str = DAY) -> Job:
    config = JobConfig.model_validate({
        "out": str(out), "encode": {"model": str(bert), "clusters": [3]}, "spark": {
            "master": "local[2]", "conf": {
                "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}}})
    return Job(config, Workspace(out, date.fromisoformat(day)), "run-1")


def encode_once(out: Path, bert: Path, day: str = DAY) -> None:
    atomic_folder.GRACE_S = 0
    pipeline.run_stage(job_of(out, bert, day), "encode")


class Killed(BaseException):
    pass


@pytest.mark.release
def test_a_night_that_stopped_between_users_and_items_is_ended_by_the_same_command(
        spark, tmp_path, monkeypatch):
    """In this process, which cleans up as little as a killed one."""
    out, bert = tmp_path / "out", tiny_bert(tmp_path / "bert")
    publish(out, DAY, USERS)
    move = atomic_folder._move_into_place

    def stop(new: Path, old: Path) -> bool:
        if "entity=item" in str(old):
            raise Killed
        return move(new, old)

    job = job_of(out, bert)
    job.__dict__["spark"] = spark
    with monkeypatch.context() as patch:
        patch.setattr(atomic_folder, "_move_into_place", stop)
        patch.setattr(atomic_folder, "remove_on_error", lambda staging: nullcontext())
        with pytest.raises(Killed):
            pipeline.run_stage(job, "encode")
    assert {path.parent.name for path in out.glob("features/entity=*/dt=*")} == {"entity=user"}
    require_ended(job, (9, 0))


@pytest.mark.release
@pytest.mark.parametrize(("point", "texts"), [
    pytest.param(r"^rename .* -> features/entity=item/dt=[\d-]+$", (9, 0), id="between users and items"),
    pytest.param(r"^open features/entity=user/.*_codebook", (0, 3), id="users are encoded",
                 marks=pytest.mark.release),
    pytest.param(r"^rename .*ids\.parquet", (9, 3), id="ids are written", marks=pytest.mark.release)])
def test_a_killed_night_is_ended_by_the_same_command(point, texts, spark, tmp_path):
    out, bert = tmp_path / "out", tiny_bert(tmp_path / "bert")
    publish(out, DAY, USERS)
    kill_points.killed(point, out, encode_once, out, bert)
    seen = {path.parent.name for path in out.glob("features/entity=*/dt=*")}
    assert seen == ({"entity=user"} if texts == (9, 0) else set())
    job = job_of(out, bert)
    job.__dict__["spark"] = spark
    require_ended(job, texts)


def require_ended(job: Job, texts: tuple[int, int]) -> None:
    """The same command encodes what is missing, and leaves whole tables and nothing else."""
    found, out = pipeline.run_stage(job, "encode"), job.space.out
    assert tuple(found[entity]["encoding"]["texts"] for entity in ("user", "item")) == texts
    assert [row["id"] for row in rows(job).values()] == list(range(1, 10))
    assert len(rows(job, "item")) == 3 and manifest(job) == found["user"]
    assert not [path for path in out.rglob("*") if path.name.startswith((".", "_lock"))]
    assert not (job.space.work / "encode").exists()
