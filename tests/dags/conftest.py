"""The DAGs as Airflow loads them, and Airflow homes for runs."""

import os
import tempfile

import pytest
from airflow_home import Airflow, load_dags

# Airflow makes its home when it is imported, by default in the user's.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="dare-airflow-")


@pytest.fixture(scope="session")
def bag():
    return load_dags()


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    """Factory: an Airflow home with a database, whose DAGs have these settings."""
    def make(settings: dict, **environment: str) -> Airflow:
        made = Airflow(tmp_path_factory.mktemp("airflow"), settings, environment)
        made.run("db", "migrate")
        return made
    return make
