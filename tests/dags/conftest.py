"""The DAGs as Airflow loads them, and Airflow homes for runs."""

import os
import tempfile

import pytest
from airflow_home import DAGS, Airflow

# Airflow makes its home when it is imported, by default in the user's.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="dare-airflow-")


@pytest.fixture(scope="session")
def bag():
    """The DAG folder, loaded as Airflow's components do, which takes no database."""
    from airflow.dag_processing.dagbag import BundleDagBag

    return BundleDagBag(dag_folder=DAGS, bundle_path=DAGS, bundle_name="dags-folder")


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    """Factory: an Airflow home with a database, whose DAGs have these settings."""
    def make(settings: dict, **environment: str) -> Airflow:
        made = Airflow(tmp_path_factory.mktemp("airflow"), settings, environment)
        made.run("db", "migrate")
        return made
    return make
