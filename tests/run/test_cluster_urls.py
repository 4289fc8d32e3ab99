"""A night on a standalone cluster without a shared disk: input, output and pools at s3://, the model and the
package (as a wheel) sent along.
"""

import os

import pytest
import standalone
import yaml
from run_helpers import NIGHT_1, NIGHT_2, settings

from dare_job.schemas import ENTITIES
from dare_job.storage import paths
from dare_job.tables import published

pytestmark = [pytest.mark.spark, pytest.mark.release]


def rows(out, entity: str) -> dict[str, dict]:
    folder = out / "knowledge" / f"entity={entity}" / f"dt={NIGHT_2}"
    return {row["entity_id"]: row for row in published.dataset(folder).to_table().to_pylist()}


def test_a_night_without_a_shared_disk(store, nights, cluster, tmp_path):
    """Texts are those of a local night; wheel and credentials come to executors as the documents say."""
    world, out = paths.path(f"{store}/cluster/world"), paths.path(f"{store}/cluster/out")
    paths.upload(nights.world, world)
    for entity in ENTITIES:
        night = f"knowledge/entity={entity}/dt={NIGHT_1}"
        paths.upload(nights.out / night, out / night)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(
        settings(nights.world, tmp_path / "unused", model={"device": "cpu"}, baseline={"rows": 0})))
    given = {f"spark.executorEnv.{name}": value for name, value in os.environ.items()
             if name.startswith("AWS_")}
    done = standalone.submit(
        cluster.url, "run", "--config", tmp_path / "job.yaml", "--date", NIGHT_2, "--input", world,
        "--out", out,
        conf={"spark.executor.resource.gpu.amount": "1", "spark.task.resource.gpu.amount": "1",
              "spark.executorEnv.PYTHONPATH": "package", **given},
        options=("--archives", f"{standalone.wheel(tmp_path)}#package"))
    assert done.returncode == 0, done.stderr[-5000:]
    tasks = standalone.tasks(out / "_work" / f"dt={NIGHT_2}" / "logs")
    assert {task["gpu"] for task in tasks} == set(standalone.GPUS)
    assert len({task["worker"] for task in tasks}) == 2 and {task["loads"] for task in tasks} == {1}
    for entity in ENTITIES:
        ours, local = rows(out, entity), rows(nights.out, entity)
        assert ours.keys() == local.keys() and len(ours) >= 25
        assert all(ours[id_]["knowledge"] == row["knowledge"] for id_, row in local.items())
    drafted = [row for row in rows(out, "user").values()
               if row["generated_dt"] == NIGHT_2 and row["accepted_tokens"]]
    assert len(drafted) > 5, "nothing was drafted from the pools"
    assert not (tmp_path / "unused").exists()
