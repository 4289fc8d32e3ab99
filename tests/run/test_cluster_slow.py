"""The whole job on Spark's local-cluster, and what a standalone one refuses."""

import json
import os
from pathlib import Path

import pytest
import standalone
import yaml
from run_helpers import NIGHT_1, leftovers, settings, snapshot

from dare_job.schemas import ENTITIES

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]
ONE_GPU_A_TASK = {"spark.executor.resource.gpu.amount": "1", "spark.task.resource.gpu.amount": "1"}


def night(nights, folder: Path, master: str, conf: dict, *options, **variables):
    """``dare-job run`` of the first night on a cluster, with the settings of the local run in ``nights``."""
    (folder / "job.yaml").write_text(yaml.safe_dump(settings(
        nights.world, folder / "out", model={"device": "cpu"}, baseline={"rows": 0})))
    return standalone.submit(master, "run", "--config", folder / "job.yaml", "--date", NIGHT_1,
                             conf={**ONE_GPU_A_TASK, **conf}, options=options, **variables)


def check(done, nights, folder: Path) -> list[dict]:
    """Fails where a published text differs from the local run's; returns the tasks."""
    assert done.returncode == 0, done.stderr[-5000:]
    assert json.loads(done.stdout.splitlines()[-1])["written"] == nights.first["written"]
    for entity in ENTITIES:
        ours, local = (snapshot(out, entity, NIGHT_1) for out in (folder / "out", nights.out))
        texts = [{id_: (row["knowledge"], row["error"], row["text_key"]) for id_, row in rows.items()}
                 for rows in (ours, local)]
        assert texts[0] == texts[1] and len(ours) >= 25
    assert leftovers(folder / "out") == []
    return standalone.tasks(folder / "out" / "_work" / f"dt={NIGHT_1}" / "logs")


@pytest.mark.release
def test_another_version_on_the_executors_is_refused(cluster, nights, tmp_path):
    """Which shows too that executors import what was sent, not what is installed."""
    archives = ("--archives", f"{standalone.wheel(tmp_path, '9.9.9')}#package")
    done = night(nights, tmp_path, cluster.url, {"spark.executorEnv.PYTHONPATH": "package"}, *archives)
    assert done.returncode == 5 and "has dare-job 9.9.9, the driver" in standalone.said(done)


@pytest.mark.release
def test_executors_without_the_package_are_named_with_the_fix(cluster, nights, tmp_path):
    (tmp_path / "dare_job").mkdir()
    (tmp_path / "dare_job" / "__init__.py").touch()  # hides what is installed
    done = night(nights, tmp_path, cluster.url, {"spark.executorEnv.PYTHONPATH": str(tmp_path)})
    assert done.returncode == 5
    assert "executors cannot import dare_job.spark: ship dare-job" in standalone.said(done)


@pytest.mark.parametrize("master", [
    pytest.param("local[two]", id="none", marks=pytest.mark.release),
    pytest.param("spark://127.0.0.1:9", id="not there", marks=pytest.mark.release)])  # Spark waits a minute
def test_where_spark_does_not_start_one_line_says_so(nights, tmp_path, master):
    done = night(nights, tmp_path, master, {})
    assert done.returncode == 5 and standalone.said(done).startswith("dare-job: Spark did not start")


@pytest.mark.release
def test_local_cluster_gives_the_same_texts(nights, tmp_path):
    """Its two workers share one environment, so each finds both GPUs and gives its task the first."""
    path = f"{standalone.BIN}{os.pathsep}{os.environ['PATH']}"
    conf = {"spark.worker.resource.gpu.amount": "1",
            "spark.worker.resource.gpu.discoveryScript": str(ROOT / "conf" / "gpu_discovery.sh"),
            "spark.executorEnv.PYTHONPATH": str(ROOT)}
    done = night(nights, tmp_path, "local-cluster[2,1,1024]", conf, PATH=path)
    tasks = check(done, nights, tmp_path)
    assert {task["gpu"] for task in tasks} == {standalone.GPUS[0]}
    assert len({task["worker"] for task in tasks}) == 2 and {task["loads"] for task in tasks} == {1}
