"""A driver that runs on Airflow's worker gets the environment of ``spark.env``, whatever the master."""

import json
import sys

import pytest
import yaml
from airflow_home import DAGS

sys.path.append(str(DAGS))

MASTERS = ("local[1,4]", "spark://host:7077", "yarn", "k8s://https://host:443")


@pytest.fixture
def submitted(monkeypatch, tmp_path):
    """What a spark-submit that only tells its environment says for a master and a mode of deployment."""
    binary = tmp_path / "spark-submit"
    binary.write_text(f'#!/bin/sh\necho "Exit code: 0"\necho "$PYSPARK_PYTHON $*" > {tmp_path}/said\n')
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("PYSPARK_PYTHON", "/airflow/python")

    def submit(master: str, mode: str) -> str:
        from airflow.providers.apache.spark.hooks import spark_submit
        from dare_dags.operators import StageOperator

        monkeypatch.setattr(spark_submit, "kube_client", object(), raising=False)  # to end drivers with
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(
            {"conn_type": "spark", "host": master, "extra": {"deploy-mode": mode}}))
        settings = yaml.safe_load((DAGS / "dare_dags" / "defaults.yaml").read_text())
        settings["spark"]["env"] = {"PYSPARK_PYTHON": "/job/python"}
        operator = StageOperator(task_id="plan", stage="plan", settings=settings)
        operator._get_hook().submit("main.py")
        return (tmp_path / "said").read_text()

    return submit


@pytest.mark.parametrize("master", MASTERS)
def test_spark_submit_and_with_it_the_driver_has_the_python_of_the_settings(submitted, master):
    said = submitted(master, "client")
    assert said.startswith("/job/python --master " + master)


def test_a_driver_in_the_cluster_has_it_as_a_setting_of_spark(submitted):
    said = submitted(MASTERS[-1], "cluster")
    assert said.startswith("/airflow/python ")
    assert "--conf spark.kubernetes.driverEnv.PYSPARK_PYTHON=/job/python" in said
