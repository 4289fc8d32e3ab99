"""A real standalone master with two workers on loopback: generate through spark-submit, a GPU a task."""

import json
import os
import shutil
import time
from itertools import combinations
from pathlib import Path

import pyarrow.dataset as ds
import pytest
import standalone
import yaml
from run_helpers import NIGHT_2, settings

from dare_job.models import embedded_path
from dare_job.schemas import ENTITIES
from dare_job.workspace import DONE

pytestmark = pytest.mark.spark
ONE_GPU_A_TASK = {"spark.executor.resource.gpu.amount": "1", "spark.task.resource.gpu.amount": "1"}
WORK = f"_work/dt={NIGHT_2}"
SHARDS = 6
GENERATE = ("run", "--from", "generate", "--to", "generate")


@pytest.fixture(scope="module")
def folder(nights, tmp_path_factory):
    """The second night's output up to its pools, and a copy of the model."""
    made = tmp_path_factory.mktemp("night")
    shutil.copytree(nights.out, made / "out")
    for name in ("generate", "logs"):
        shutil.rmtree(made / "out" / WORK / name)
    shutil.copytree(embedded_path(), made / "model")
    model = {"name": str(made / "model"), "device": "cpu"}
    (made / "job.yaml").write_text(yaml.safe_dump(
        settings(nights.world, made / "out", model=model, baseline={"rows": 0}, spark={"shards": SHARDS})))
    return made


@pytest.fixture(scope="module")
def generated(cluster, folder):
    """The stage on the cluster, with the driver's model and pools out of the way; its tasks."""
    hide = os.pathsep.join([str(folder / "model"), str(folder / "out" / WORK / "pools")])
    done = standalone.submit(
        cluster.url, *GENERATE, "--config", folder / "job.yaml", "--date", NIGHT_2,
        entry=Path(__file__).with_name("hidden_folders.py"), conf=ONE_GPU_A_TASK, HIDE=hide)
    assert done.returncode == 0, done.stderr[-5000:]
    return standalone.tasks(folder / "out" / WORK / "logs")


def written(out: Path, entity: str) -> dict[str, tuple]:
    """What generate wrote, by id: text, token ids, error."""
    rows = ds.dataset(out / WORK / "generate" / f"entity={entity}", format="parquet").to_table().to_pylist()
    found = {row["entity_id"]: (row["knowledge"], row["token_ids"], row["error"]) for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.release
def test_texts_are_those_of_a_local_run_from_shipped_model_and_pools(generated, folder, nights):
    for entity in ENTITIES:
        ours = written(folder / "out", entity)
        assert ours == written(nights.out, entity) and ours
    record = json.loads((folder / "out" / WORK / "generate" / DONE).read_text())
    not_tried_again = 1  # the user without a history
    assert record["written_now"] == nights.second["written"] + nights.second["errors"] - not_tried_again
    assert record["accepted_tokens"] > 100, "no text was drafted from the pools"


@pytest.mark.release
def test_each_task_has_a_gpu_of_its_own(generated):
    assert {task["gpu"] for task in generated} == set(standalone.GPUS)
    assert len(generated) == SHARDS
    for one, other in combinations(generated, 2):
        at_once = one["began"] < other["ended"] and other["began"] < one["ended"]
        assert not at_once or one["gpu"] != other["gpu"]


@pytest.mark.release
def test_a_worker_keeps_its_gpu_and_loads_the_model_once(generated):
    workers = {(task["worker"], task["gpu"]) for task in generated}
    assert len(workers) == 2 and len({worker for worker, _ in workers}) == 2
    assert {task["loads"] for task in generated} == {1}


BROKEN = """
import os

if os.sep + "worker-0" + os.sep in os.getcwd() or os.environ.get("ALL_BROKEN"):
    from dare_job.errors import InfrastructureError
    from dare_job.spark import workers

    def select_device(device, address):
        raise InfrastructureError(f"host-0 has lost its GPU {address}")

    workers.select_device = select_device
"""


@pytest.mark.release
@pytest.mark.parametrize("hosts", ["one", "all"])
def test_a_host_with_a_broken_gpu_is_left_out_and_costs_the_night_only_where_all_have_one(
        cluster, folder, nights, tmp_path, hosts):
    """With spark.excludeOnFailure, as on large clusters; Python imports sitecustomize as it starts."""
    shutil.copytree(folder / "out", tmp_path / "out", ignore=shutil.ignore_patterns("generate", "logs"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "sitecustomize.py").write_text(BROKEN)
    path = os.pathsep.join([str(tmp_path / "broken"), str(standalone.ROOT)])
    conf = {**ONE_GPU_A_TASK, "spark.excludeOnFailure.enabled": "true", "spark.executorEnv.PYTHONPATH": path}
    conf |= {"spark.executorEnv.ALL_BROKEN": "1"} if hosts == "all" else {}
    done = standalone.submit(cluster.url, *GENERATE, "--config", folder / "job.yaml", "--date", NIGHT_2,
                             "--out", tmp_path / "out", conf=conf)
    if hosts == "all":
        assert done.returncode == 5
        assert standalone.said(done).startswith("dare-job: host-0 has lost its GPU GPU-")
        return
    assert done.returncode == 0, done.stderr[-5000:]
    tasks = standalone.tasks(tmp_path / "out" / WORK / "logs")
    assert len(tasks) == SHARDS and {task["gpu"] for task in tasks} == {standalone.GPUS[1]}
    for entity in ENTITIES:
        assert written(tmp_path / "out", entity) == written(nights.out, entity)


@pytest.mark.release
def test_what_was_shipped_goes_away_with_the_application(generated, cluster):
    deadline = time.monotonic() + 30
    while left := [*cluster.folder.glob("worker-*/local/*/executor-*")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
