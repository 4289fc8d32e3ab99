"""One small world and its two nights, written once for the tests of this folder."""

import shutil
import sys
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fault_nights import BEFORE, NIGHT, TOO_LONG, Folders, configured, settings

from dare_job import cli, pipeline
from dare_job.config.settings import JobConfig
from dare_job.data.sample_world.write import write_world
from dare_job.job import Job
from dare_job.workspace import Workspace


@pytest.fixture(scope="session")
def night_of(spark):
    """Factory: the whole job for a date in this process, with settings as ``fault_nights.settings``."""
    def run(world, out, day=NIGHT, stages=None, run_id=None, **sections):
        config = JobConfig.model_validate(settings(world, out, **sections))
        job = Job(config, Workspace(out, date.fromisoformat(day)), run_id or f"run-{day}")
        job.__dict__["spark"] = spark
        if stages is None:
            return pipeline.run(job)
        return [pipeline.run_stage(job, stage) for stage in stages]
    return run


@pytest.fixture(scope="session")
def folders(night_of, tmp_path_factory) -> Folders:
    """14 users and 10 items; BEFORE wrote shorter texts, so that NIGHT writes them all.

    NIGHT has new items whose prompts the model cannot read.
    """
    root = tmp_path_factory.mktemp("nights")
    world = root / "world"
    write_world(world, users=14, items=10, seed=5, date=date.fromisoformat(NIGHT))
    shutil.rmtree(world / "knowledge")
    night_of(world, root / "before", BEFORE, decode={"max_new_tokens": 28})
    shutil.rmtree(root / "before" / "_work")
    items = pq.read_table(world / "items.parquet")
    more = [{"item_id": name, "title": name[-1] + "🦣" * 999, "attributes": []} for name in TOO_LONG]
    pq.write_table(pa.concat_tables([items, pa.Table.from_pylist(more, schema=items.schema)]),
                   world / "items.parquet")
    shutil.copytree(root / "before", root / "undisturbed")
    night_of(world, root / "undisturbed", NIGHT)
    return Folders(world, root / "before", root / "undisturbed")


@pytest.fixture
def night(folders, tmp_path):
    """Options of a command on NIGHT, and the output folder, where the date before is published."""
    out = shutil.copytree(folders.before, tmp_path / "out")
    return configured(tmp_path, folders.world, out), out


@pytest.fixture
def finished(folders, tmp_path):
    """The same where NIGHT is finished and published."""
    out = shutil.copytree(folders.undisturbed, tmp_path / "out")
    return configured(tmp_path, folders.world, out), out


@pytest.fixture
def dare_job(spark, monkeypatch, capsys):
    """Factory: a command line, run in this process with the tests' Spark; exit code, standard error."""
    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["dare-job", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, capsys.readouterr().err
    return run
