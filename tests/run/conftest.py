"""Two nights of the whole job on a small synthetic data set, shared by the tests of this folder."""

import shutil
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import standalone
from run_helpers import LONG_ITEM, LOST_USER, NIGHT_1, NIGHT_2, relaxed, settings

from dare_job import pipeline
from dare_job.config.settings import JobConfig
from dare_job.data.sample_world.write import write_world
from dare_job.job import Job
from dare_job.schemas import ENTITIES
from dare_job.storage import paths
from dare_job.workspace import Workspace


@dataclass(frozen=True)
class Nights:
    """An output folder with two published dates, and the two runs' summaries."""

    world: Path
    out: Path
    first: dict
    second: dict


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """A synthetic data set without old text, with one user and one item that cannot be written."""
    folder = tmp_path_factory.mktemp("world")
    write_world(folder, users=36, items=24, seed=5, date=date.fromisoformat(NIGHT_2))
    _append(folder / "users.parquet", {"user_id": LOST_USER, "attributes": [("age", "25-34")]})
    _append(folder / "items.parquet", {"item_id": LONG_ITEM, "title": "🦣" * 1000, "attributes": []})
    (folder / "knowledge").rename(folder / "unused")
    return folder


def _append(path: Path, row: dict) -> None:
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table, pa.Table.from_pylist([row], schema=table.schema)]), path)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """A standalone master with two workers, each with one core and one GPU that a script stands in for."""
    running = standalone.start(tmp_path_factory.mktemp("cluster"))
    yield running
    standalone.stop(running)


@pytest.fixture(scope="session")
def job_of(spark, world):
    """Factory: a Job on the small world for a date and an output folder, settings by section."""
    def make(out: Path, day: str, limit: int | None = None, run_id: str | None = None, **sections) -> Job:
        config = JobConfig.model_validate(settings(world, out, **sections))
        space = Workspace(paths.path(str(out)), date.fromisoformat(day))
        job = Job(config, space, run_id or f"run-{day}", limit)
        job.__dict__["spark"] = spark
        return job
    return make


@pytest.fixture(scope="session")
def nights(job_of, world, tmp_path_factory):
    """The job for two consecutive dates: the first has no old text, the second the first's."""
    out = tmp_path_factory.mktemp("nights") / "out"
    first, second = (pipeline.run(job_of(out, night)) for night in (NIGHT_1, NIGHT_2))
    return Nights(world, out, first, second)


@pytest.fixture(scope="session")
def relaxed_night(job_of, nights, tmp_path_factory):
    """Folder and summary of a relaxed second night, on shorter previous texts."""
    out = tmp_path_factory.mktemp("relaxed")
    for entity in ENTITIES:
        folder = Path("knowledge", f"entity={entity}", f"dt={NIGHT_1}")
        shutil.copytree(nights.out / folder, out / folder)
        for path in (out / folder).glob("*.parquet"):
            before = pq.read_table(path)
            rows = [_shortened(row, 16 + 8 * (number % 4)) for number, row in enumerate(before.to_pylist())]
            pq.write_table(pa.Table.from_pylist(rows, schema=before.schema), path)
    return out, pipeline.run(job_of(out, NIGHT_2, **relaxed()))


def _shortened(row: dict, tokens: int) -> dict:
    ids = row["token_ids"]
    return row if ids is None else row | {"token_ids": ids[:tokens], "tokens": len(ids[:tokens])}
