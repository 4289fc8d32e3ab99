"""The DAGs as Airflow loads them, Airflow homes for runs, and one night that several tests go on from."""

import json
import os
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import tiny_recommender
from airflow_home import DEADLINE_S, NIGHT, NIGHTLY, Airflow, chunks, load_dags, small, wait, webhook

from dare_job.data.sample_world.write import write_world
from dare_job.recommend.item_ids import ItemIds
from dare_job.storage import lock

# Airflow makes its home when it is imported, by default in the user's.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="dare-airflow-")


@pytest.fixture(scope="session")
def bag():
    return load_dags()


@pytest.fixture(scope="session")
def airflow(tmp_path_factory):
    """Factory: an Airflow home with a database, whose DAGs have these settings."""
    def make(settings: dict, **environment: str) -> Airflow:
        made = Airflow(tmp_path_factory.mktemp("airflow"), settings, environment)
        made.run("db", "migrate")
        return made
    return make


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    write_world(folder, users=24, items=16, seed=5)
    return folder


@pytest.fixture(scope="session")
def recommender(world, tmp_path_factory) -> Path:
    """A recommender with random weights that has an id for each item of the world."""
    names = pq.read_table(world / "items.parquet", columns=["item_id"])["item_id"].to_pylist()
    drawn = tiny_recommender.item_ids(len(names))
    ids = ItemIds(tuple(names), drawn.codes, drawn.sizes)
    return tiny_recommender.write(tmp_path_factory.mktemp("recommender"), ids=ids)


@dataclass(frozen=True)
class Killed:
    """NIGHT, run by ``airflow dags test``, whose stage generate was killed after its first chunks."""

    home: Airflow
    out: Path
    before: dict  # the chunks that were there then
    posted: list[dict]


@pytest.fixture(scope="session")
def killed(airflow, world, tmp_path_factory) -> Killed:
    out = tmp_path_factory.mktemp("night") / "out"
    with webhook() as (connection, posted):
        home = airflow(small(world, out, notify="told"), AIRFLOW_CONN_TOLD=connection)
        run = home.start("dags", "test", NIGHTLY, NIGHT)
        wait(lambda: len(chunks(out)) >= 2, "the first chunks", home, run)
        driver = json.loads((out / "_work" / f"dt={NIGHT}" / lock.NAME).read_text())["pid"]
        os.kill(driver, signal.SIGKILL)
        before = chunks(out)
        assert run.wait(DEADLINE_S) == 0, home.said()[-6000:]
        yield Killed(home, out, before, posted)
