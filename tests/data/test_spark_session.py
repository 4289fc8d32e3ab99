"""Starting Spark: Java, retries, and settings that win."""

import stat

import pytest

from dare_job.config.settings import SparkSettings
from dare_job.errors import InfrastructureError
from dare_job.spark.session import failure_cause, require_java, session, with_retries


def test_no_java_says_in_one_line_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(InfrastructureError) as caught:
        require_java()
    message = str(caught.value)
    assert "apt-get install openjdk-17-jre-headless" in message and "\n" not in message


def test_a_java_home_without_java_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InfrastructureError, match=f"was not found in JAVA_HOME={tmp_path}"):
        require_java()


def test_the_cause_of_a_fault_in_a_worker_is_that_of_python():
    """Nothing followed the colon."""
    frames = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    x\n'
    error = Exception(f"An exception was thrown from the Python worker:\n{frames}KeyError: 1\n\nDuring it:\n"
                      f"{frames}ValueError: colour\n\nJVM stacktrace:\n at java")
    assert failure_cause(error) == "An exception was thrown from the Python worker: ValueError: colour"


@pytest.mark.parametrize(("printed", "found"), [
    ('openjdk version "11.0.2" 2019-01-15', "Java 11"), ('java version "1.8.0_292"', "Java 8"),
    ("segmentation fault", "no working Java"),
])
def test_an_old_java_is_refused(monkeypatch, tmp_path, printed, found):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{printed}' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InfrastructureError, match=f"{found}, Spark needs 17"):
        require_java()


@pytest.mark.parametrize(("master", "expected"), [
    ("local", "local[1,4]"), ("local[3]", "local[3,4]"), ("local[2,1]", "local[2,1]"), ("yarn", "yarn"),
    ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
])
def test_local_masters_retry(master, expected):
    assert with_retries(master) == expected


def test_a_running_session_is_taken_and_its_settings_follow(spark):
    assert session(SparkSettings(conf={"spark.sql.shuffle.partitions": "3"})) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.speculation") == "false"
    assert spark.sparkContext.master == "local[2,4]"
