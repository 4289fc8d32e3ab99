"""Variables and locales that notebooks, services and hosts have: each works, or one line names it."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from dare_job.cli import locales
from dare_job.config.settings import SparkSettings
from dare_job.errors import ConfigError, InfrastructureError
from dare_job.schemas import ENTITIES
from dare_job.spark import environment

ROOT = Path(__file__).parents[2]
SPARK = Path(pyspark.__file__).parent


def checked(variables: dict[str, str], master: str = "local[2]", **conf: str) -> None:
    properties = {key.replace("_", "."): value for key, value in conf.items()}
    environment.check_variables(SparkSettings(master=master, conf=properties), variables)


def refused(variables: dict[str, str], error=ConfigError, master: str = "local[2]", **conf: str) -> str:
    with pytest.raises(error) as caught:
        checked(variables, master, **conf)
    message = str(caught.value)
    assert "\n" not in message
    return message


def python(folder: Path, *lines: str) -> str:
    """A program that prints what another Python answers."""
    folder.mkdir(exist_ok=True)
    file = folder / "python"
    file.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    file.chmod(0o755)
    return str(file)


def test_no_variable_and_the_job_own_python_are_accepted():
    checked({})
    checked({"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": "jupyter",
              "PYSPARK_DRIVER_PYTHON_OPTS": "notebook", "SPARK_HOME": str(SPARK)})


@pytest.mark.parametrize(("lines", "problem"), [
    (("3.9", "", "0.1.0"), "is Python 3.9, and dare-job runs in Python"),
    (("{own}", "dare_job, torch"), "is a Python without dare_job, torch"),
    (("{own}", "", "0.0.9"), "has dare-job 0.0.9, and this is dare-job"),
    ((), "does not run"),
])
def test_another_python_of_workers_is_named_with_what_it_lacks(tmp_path, lines, problem):
    own = "{}.{}".format(*sys.version_info)
    other = python(tmp_path, *[line.format(own=own) for line in lines])
    message = refused({"PYSPARK_PYTHON": other})
    assert message.startswith(f"PYSPARK_PYTHON={other} {problem}")
    assert message.endswith(f"unset it, or set it to {sys.executable}")
    checked({"PYSPARK_PYTHON": other}, "yarn")  # it is that of other hosts, which are checked there


def test_the_python_of_workers_that_fits_is_accepted_wherever_it_is(tmp_path):
    same = tmp_path / "python"
    same.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    same.chmod(0o755)
    checked({"PYSPARK_PYTHON": str(same)})


def test_a_missing_python_and_the_property_that_names_it():
    assert refused({"PYSPARK_PYTHON": "/nope/python"}).startswith("PYSPARK_PYTHON=/nope/python is no program")
    message = refused({}, spark_pyspark_python="/nope/python")
    assert message.startswith("spark.conf spark.pyspark.python=/nope/python is no program")


@pytest.mark.parametrize(("arguments", "problem"), [
    ("--master yarn pyspark-shell", "names the master yarn, and spark.master is local[2]"),
    ("--master=spark://h:7077 pyspark-shell", "names the master spark://h:7077, and"),
    ("--conf spark.master=yarn pyspark-shell", "names the master yarn, and"),
    ("--driver-memory 4g", "does not end with pyspark-shell"), ("", "does not end with pyspark-shell"),
    ("--name 'x pyspark-shell", "cannot be read (No closing quotation)"),
])
def test_arguments_of_a_notebook_that_start_another_spark_are_named(arguments, problem):
    message = refused({"PYSPARK_SUBMIT_ARGS": arguments})
    assert message.startswith(f"PYSPARK_SUBMIT_ARGS={arguments!r} {problem}") and "unset" in message
    checked({"PYSPARK_SUBMIT_ARGS": arguments, "PYSPARK_GATEWAY_PORT": "1"})  # Java runs, nobody reads it


@pytest.mark.parametrize(("arguments", "master"), [
    ("pyspark-shell", "local[2]"), ("--master local[*] --packages a:b:1 pyspark-shell", "local[2]"),
    ("--master yarn pyspark-shell", "yarn")])
def test_arguments_of_a_notebook_that_fit_are_accepted(arguments, master):
    checked({"PYSPARK_SUBMIT_ARGS": arguments}, master)


def test_a_spark_of_another_version_is_named(tmp_path):
    assert refused({"SPARK_HOME": str(tmp_path)}).startswith(f"SPARK_HOME={tmp_path} is no installation")
    for name in ("bin/spark-submit", "jars/spark-core_2.12-3.5.1.jar"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    message = refused({"SPARK_HOME": str(tmp_path)})
    assert message.startswith(f"SPARK_HOME={tmp_path} has Spark 3.5.1, and pyspark is {pyspark.__version__}")


def test_spark_connect_is_named():
    assert refused({"SPARK_REMOTE": "sc://host"}).startswith("SPARK_REMOTE=sc://host is for Spark Connect")


def test_local_folders_that_cannot_be_written_are_named(tmp_path):
    (tmp_path / "file").touch()
    bad = f"{tmp_path}/file/a"
    message = refused({"SPARK_LOCAL_DIRS": bad}, InfrastructureError, "yarn")
    assert message == (f"SPARK_LOCAL_DIRS={bad}: {bad} cannot be written (Not a directory); set it to a "
                       "folder that can be written")
    assert refused({}, InfrastructureError, spark_local_dir=bad).startswith(f"spark.local.dir={bad}: ")
    checked({"SPARK_LOCAL_DIRS": f"{bad},{tmp_path}/good"})  # Spark uses the others


@pytest.mark.parametrize(("python_has", "locale_has", "given"), [
    ("utf-8", "ANSI_X3.4-1968", "C.UTF-8"), ("utf-8", "ISO-8859-1", "C.UTF-8"), ("utf-8", "UTF-8", None),
    ("ascii", "ANSI_X3.4-1968", None), ("iso8859-1", "ISO-8859-1", None)])
def test_java_gets_the_encoding_of_python(monkeypatch, python_has, locale_has, given):
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: python_has)
    monkeypatch.setattr(environment.locale, "getencoding", lambda: locale_has)
    variables = {}
    environment.use_utf8_in_java(variables)
    assert variables.get("LC_ALL") == given
    executors = environment.executor_locale()
    assert executors == ({"spark.executorEnv.LC_ALL": "C.UTF-8"} if python_has == "utf-8" else {})


class OtherLocale:
    """A Spark session whose Java has another encoding of file names."""

    def __init__(self, encoding: str):
        self.sparkContext = self._jvm = self.java = self.lang = self.System = self
        self.getProperty = {"sun.jnu.encoding": encoding}.get


def test_a_path_that_java_cannot_use_names_the_setting_and_the_locale(monkeypatch, tmp_path):
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.delenv("PYTHONUTF8", raising=False)
    named = {"out": tmp_path / "café", "input.path": None, "input.knowledge": "s3://bucket/é"}
    with pytest.raises(ConfigError) as caught:
        environment.check_paths(OtherLocale("ANSI_X3.4-1968"), named)
    assert str(caught.value) == (
        f"out = {tmp_path}/café: Java cannot use this path, because the encoding of the locale (LC_ALL=C) is "
        "ANSI_X3.4-1968: set LC_ALL=C.UTF-8, or another UTF-8 locale of `locale -a`")
    for encoding in ("UTF-8", "ISO-8859-1", "no such"):
        environment.check_paths(OtherLocale(encoding), named)


def test_errors_about_characters_are_explained_only_where_the_locale_lacks_them(monkeypatch):
    error = UnicodeEncodeError("ascii", "/café", 4, 5, "ordinal not in range(128)")
    assert locales.explained(error) is error  # here file names are UTF-8: a bug, which keeps its traceback
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    assert str(locales.explained(error)).startswith("/café cannot be used, because the encoding of the")
    assert locales.explained(ValueError("x")).args == ("x",)


@pytest.mark.parametrize(("encoding", "argument", "refused"), [
    ("ANSI_X3.4-1968", "caf??", True), ("UTF-8", "caf??", False), (None, "caf??", False),
    ("ANSI_X3.4-1968", "what?", False)])
def test_an_argument_that_spark_submit_has_damaged_names_the_locale(monkeypatch, encoding, argument, refused):
    monkeypatch.setattr(environment, "submitting_java_encoding", lambda: encoding)
    monkeypatch.setattr(sys, "argv", ["dare-job", "run", "--out", argument])
    for name in ("LC_ALL", "LANG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LC_CTYPE", "C.UTF-8")  # by Python itself, after Java had started
    if not refused:
        locales.check_arguments()
        return
    with pytest.raises(ConfigError, match=r"replaced characters of caf\?\? by question marks, because the "
                                          r"encoding of the locale \(neither LC_ALL nor LANG is set\)"):
        locales.check_arguments()


@pytest.mark.release
@pytest.mark.spark
def test_spark_submit_in_locale_c_ends_with_a_line_that_names_the_locale(place):
    """Its Java runs already. The path is in a file, which is UTF-8 everywhere."""
    (place / "c.yaml").write_text("{out: sortie é, input: {path: donnée}}")
    done = subprocess.run(
        [SPARK / "bin" / "spark-submit", "--master", "local[1]", ROOT / "dare_job" / "__main__.py",
         "run", "--config", "c.yaml", "--date", "2026-01-02", "--to", "plan"], cwd=place, capture_output=True,
        env={**os.environ, "LC_ALL": "C", "PYSPARK_PYTHON": sys.executable,
             "PYSPARK_DRIVER_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}, timeout=300)
    (line,) = [line for line in done.stdout.decode().splitlines() if line.startswith("dare-job: ")]
    assert done.returncode == 2
    assert "Java cannot use this path, because the encoding of the locale (LC_ALL=C)" in line
    assert not [*place.glob("sortie*/_work/dt=*/plan")]


def plan(folder: Path, out: str, **variables: str) -> tuple[int, list[str]]:
    """Run the stage plan in a process with other variables: its exit code and its lines on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "dare_job", "run", "--config", "c.yaml", "--input", "donnée", "--out", out,
         "--date", "2026-01-02", "--to", "plan"], cwd=folder, capture_output=True, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables})
    return done.returncode, done.stderr.decode().splitlines()


@pytest.fixture
def place(tmp_path, write_tables):
    write_tables(tmp_path / "donnée", [("ann", "i1", 5.0, 1)], [("ann", None)], [("i1", "Film", None)])
    (tmp_path / "c.yaml").write_text("spark: {master: 'local[1]', conf: {spark.driver.memory: 1g}}\n")
    return tmp_path


def test_without_utf8_a_path_ends_with_a_line_that_names_the_locale(place):
    code, lines = plan(place, "sortie", LC_ALL="C", PYTHONUTF8="0")
    assert (code, len(lines)) == (2, 1) and not (place / "sortie").exists()
    assert "the locale (LC_ALL=C) is ascii: set LC_ALL=C.UTF-8" in lines[0]
    assert lines[0].endswith("unset PYTHONUTF8")


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(("name", "value", "code"), [
    ("SPARK_LOCAL_DIRS", "c.yaml/local", 5), ("PYSPARK_PYTHON", "/nope/python", 2),
    ("PYSPARK_SUBMIT_ARGS", "--master yarn pyspark-shell", 2), ("SPARK_HOME", "/nope", 2)])
def test_a_command_ends_with_the_line_before_it_reads_anything(place, name, value, code):
    found, lines = plan(place, "sortie", **{name: value})
    assert (found, len(lines)) == (code, 1) and lines[0].startswith(f"dare-job: {name}="), lines
    assert not [*place.glob("sortie/_work/dt=*/input")]


@pytest.mark.release
@pytest.mark.spark
def test_a_plan_is_made_at_a_path_with_an_accent_under_lc_all_c_and_a_notebook(place):
    """And on this disk, whatever file system fs.defaultFS names."""
    config = (place / "c.yaml").read_text().replace(
        "spark.driver.memory: 1g", "spark.driver.memory: 1g, spark.hadoop.fs.defaultFS: 's3a://bucket'")
    (place / "c.yaml").write_text(config)
    before = {*os.listdir(place), "sortie é [1]"}
    code, lines = plan(place, "sortie é [1]", LC_ALL="C", PYSPARK_DRIVER_PYTHON="jupyter",
                       PYSPARK_DRIVER_PYTHON_OPTS="notebook", SPARK_HOME=str(SPARK),
                       PYSPARK_SUBMIT_ARGS="--master local[3] --name notebook pyspark-shell",
                       SPARK_LOCAL_DIRS=f"{place}/c.yaml/no,{place}/donnée")
    assert code == 0, lines[-20:]
    for entity in ENTITIES:
        folder = place / "sortie é [1]" / "_work" / "dt=2026-01-02" / "plan" / f"entity={entity}"
        assert pq.read_table(folder).num_rows == 1
    assert {*os.listdir(place)} == before
