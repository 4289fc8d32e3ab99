"""A real standalone master with two workers on loopback: generate through spark-submit, a GPU a task."""

import json
import os
import shutil
import time
from itertools import combinations
from pathlib import Path

import pytest
import standalone
import yaml
from run_helpers import NIGHT_1, NIGHT_2, settings, snapshot

from dare_job import pipeline
from dare_job.model import embedded_path
from dare_job.stages.generate import TASKS
from dare_job.tables import ENTITIES

pytestmark = pytest.mark.spark
ONE_GPU_A_TASK = {"spark.executor.resource.gpu.amount": "1", "spark.task.resource.gpu.amount": "1"}
SHARDS = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    running = standalone.start(tmp_path_factory.mktemp("cluster"))
    yield running
    standalone.stop(running)


@pytest.fixture(scope="module")
def finished(nights, job_of, tmp_path_factory):
    """A second night on a local master, and a copy of its output in which generate has not run yet."""
    folder = tmp_path_factory.mktemp("finished")
    shutil.copytree(embedded_path(), folder / "model")
    for out in ("local", "cluster"):
        for entity in ENTITIES:
            night = f"knowledge/entity={entity}/dt={NIGHT_1}"
            shutil.copytree(nights.out / night, folder / out / night)
    sections = {"model": {"name": str(folder / "model"), "device": "cpu"}, "baseline": {"rows": 0},
                "decode": {"max_new_tokens": 40}, "spark": {"shards": SHARDS}}
    job = job_of(folder / "local", NIGHT_2, **sections)
    for stage in pipeline.STAGES[:pipeline.STAGES.index("generate")]:
        pipeline.run_stage(job, stage)
    shutil.copytree(folder / "local" / "_work", folder / "cluster" / "_work")
    for stage in ("generate", "publish"):
        pipeline.run_stage(job, stage)
    (folder / "job.yaml").write_text(yaml.safe_dump(settings(nights.world, folder / "cluster", **sections)))
    return folder


@pytest.fixture(scope="module")
def generated(cluster, finished):
    """The stage on the cluster, with the driver's model and pools out of the way; its record of tasks."""
    work = finished / "cluster" / "_work" / f"dt={NIGHT_2}"
    hide = os.pathsep.join([str(finished / "model"), str(work / "pools")])
    done = standalone.submit(
        cluster.url, "generate", "--config", finished / "job.yaml", "--date", NIGHT_2,
        entry=Path(__file__).with_name("hidden_folders.py"), conf=ONE_GPU_A_TASK, HIDE=hide)
    assert done.returncode == 0, done.stderr[-5000:]
    return [json.loads(line) for line in (work / "generate" / TASKS).read_text().splitlines()]


def test_texts_are_those_of_a_local_run_from_shipped_model_and_pools(generated, finished, job_of):
    done = standalone_publish(finished, job_of)
    for entity in ENTITIES:
        ours, local = (snapshot(finished / out, entity, NIGHT_2) for out in ("cluster", "local"))
        assert ours.keys() == local.keys() and len(ours) >= 25
        for column in ("knowledge", "token_ids", "error", "text_key"):
            assert {id_: row[column] for id_, row in ours.items()} == {
                id_: row[column] for id_, row in local.items()}
        drafted = [row for row in ours.values() if row["pool"] and row["accepted_tokens"]]
        assert len(drafted) > 10, "no text was drafted from the pools"
    assert done["rows"] > 0


def standalone_publish(finished, job_of) -> dict:
    """Publish what the cluster wrote; fails where a row is missing."""
    config = yaml.safe_load((finished / "job.yaml").read_text())
    sections = {name: config[name] for name in ("model", "baseline", "decode", "spark")}
    manifests = pipeline.run_stage(job_of(finished / "cluster", NIGHT_2, **sections), "publish")
    return manifests["user"]["counts"]


def test_each_task_has_a_gpu_of_its_own(generated):
    assert {task["gpu"] for task in generated} == set(standalone.GPUS)
    assert sum(task["rows"] for task in generated) > 50 and len(generated) >= 4
    for one, other in combinations(generated, 2):
        at_once = one["began"] < other["ended"] and other["began"] < one["ended"]
        assert not at_once or one["gpu"] != other["gpu"]


def test_a_worker_keeps_its_gpu_and_loads_the_model_once(generated):
    workers = {(task["worker"], task["gpu"]) for task in generated}
    assert len(workers) == 2 and len({worker for worker, _ in workers}) == 2
    assert {task["loads"] for task in generated} == {1}


def test_what_was_shipped_goes_away_with_the_application(generated, cluster):
    deadline = time.monotonic() + 30
    while left := [*cluster.folder.glob("worker-*/local/*/executor-*")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
