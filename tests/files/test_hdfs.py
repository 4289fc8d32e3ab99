"""What is read at hdfs:// goes through fsspec and pyarrow, here and in Spark's workers.

There is no HDFS to run on: below fsspec's class, pyarrow's local files stand in for those of ``libhdfs``.
"""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fsspec.registry import _registry, known_implementations

from dare_job import files
from dare_job.local_copy import local_copy
from dare_job.model import embedded_path
from dare_job.stages import plan
from dare_job.tables import ENTITIES

pytestmark = pytest.mark.spark
STAND_IN = Path(__file__).with_name("hdfs_on_disk")


@pytest.fixture(autouse=True)
def hdfs(spark, monkeypatch):
    """Workers of another environment are other processes, which begin with the stand-in."""
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.setitem(known_implementations, "hdfs", {"class": "hdfs_on_disk.OnDisk"})
    monkeypatch.delitem(_registry, "hdfs", raising=False)
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", str(STAND_IN))
    yield
    _registry.pop("hdfs", None)


def test_a_plan_of_an_input_at_hdfs_is_that_of_the_same_files_on_a_disk(make_job, write_input, tmp_path):
    folder = write_input([("ann", "i1", 4.0, 1), ("ann", "i2", 5.0, 2), ("bob", "i2", 3.0, 3)],
                         [("ann", None), ("bob", None)], [("i1", "Toy Story", None), ("i2", "Heat", None)])
    plans = {}
    for name, place in {"disk": str(folder), "hdfs": f"hdfs://{folder}"}.items():
        job = make_job({"input": {"path": place}, "out": str(tmp_path / name)})
        assert plan.run(job)["user"]["rows"] == 2
        plans[name] = [pq.read_table(job.space.stage("plan") / f"entity={entity}").sort_by("entity_id")
                       for entity in ENTITIES]
    assert plans["hdfs"][0].equals(plans["disk"][0]) and plans["hdfs"][1].equals(plans["disk"][1])
    assert "Toy Story" in plans["hdfs"][0]["prompt"][0].as_py()


def test_a_model_at_hdfs_is_copied_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = local_copy(files.path(f"hdfs://{embedded_path()}"), "version", kept=True)
    ours, theirs = ({path.name: path.read_bytes()
                     for path in Path(root).iterdir()} for root in (found, embedded_path()))
    assert ours == theirs and len(ours) > 3
