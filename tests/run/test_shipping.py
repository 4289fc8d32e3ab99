"""Folders packed by the driver and unpacked on executors, and what GPU a task takes."""

import os
import shutil
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from kill_points import _CONTEXT
from py4j.protocol import Py4JError
from pyspark import SparkFiles
from pyspark.errors import PySparkException

from dare_job import __version__
from dare_job.errors import InfrastructureError, ModelError
from dare_job.generate.task import Task
from dare_job.models import embedded_path
from dare_job.models import files as models_files
from dare_job.spark import executors, shipping, workers
from dare_job.spark.workers import task_threads

A, B = "aaaaaaaa-0000-4000-8000-000000000000", "bbbbbbbb-0000-4000-8000-000000000000"
SCRIPT = Path(__file__).parents[2] / "conf" / "gpu_discovery.sh"


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "pools"
    (made / "entity=user" / "global").mkdir(parents=True)
    (made / "entity=user" / "global" / "tokens.npy").write_bytes(os.urandom(5000))
    (made / "_done.json").write_text("{}")
    return made


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.spark
def test_tasks_open_one_copy_of_a_folder_that_the_driver_no_longer_has(spark, folder):
    archive, expected = shipping.ship_folder(spark, folder, "v1"), content(folder)
    assert shipping.ship_folder(spark, folder, "v1") is archive
    shutil.rmtree(folder)

    def opened(numbers):
        place = Path(shipping.unpack_archive(archive))
        found = (path for path in place.rglob("*") if path.is_file())
        files = {str(path.relative_to(place)): path.read_bytes() for path in found}
        yield str(place), os.stat(place).st_ino, files

    found = spark.sparkContext.parallelize(range(6), 6).mapPartitions(opened).collect()
    assert len(found) == 6 and len({(place, inode) for place, inode, _ in found}) == 1
    assert all(files == expected for _, _, files in found)


@pytest.mark.spark
def test_an_archive_is_named_by_its_content(spark, folder, tmp_path):
    first = shipping.ship_folder(spark, folder, "v1")
    copy = shutil.copytree(folder, tmp_path / "copy")
    os.utime(copy / "_done.json", (1, 1))
    assert shipping.ship_folder(spark, copy, "v1").sha256 == first.sha256
    (folder / "_done.json").write_text("{ }")
    assert shipping.ship_folder(spark, folder, "v2").sha256 != first.sha256


@pytest.mark.spark
def test_a_damaged_archive_is_refused_by_host_and_name(spark, folder):
    archive = shipping.ship_folder(spark, folder, "v1")
    damaged = replace(archive, sha256="0" * 64)
    with pytest.raises(InfrastructureError, match=f"{folder} cannot be unpacked on .* is damaged"):
        shipping.unpack_archive(damaged)
    with pytest.raises(InfrastructureError, match="No such file"):
        shipping.unpack_archive(replace(archive, name="gone.tar", sha256="1" * 64))


@pytest.mark.parametrize(("ship", "master", "model", "pools"), [
    ("auto", "local[2,4]", False, False), ("auto", "spark://h:7077", True, True),
    ("auto", "yarn", True, True), ("auto", "local-cluster[2,1,1024]", True, True),
    ("never", "yarn", False, False), ("always", "local[*]", True, True),
    ("pools", "k8s://https://h", False, True),
    ("model", "spark://h:7077", True, False)])
def test_what_is_shipped_to_whom(make_job, ship, master, model, pools):
    job = make_job({"spark": {"ship": ship}})

    class Spark:
        sparkContext = type("Context", (), {"master": master})

    job.__dict__["spark"] = Spark
    assert (shipping.should_ship(job, "model"), shipping.should_ship(job, "pools")) == (model, pools)


def test_only_what_a_model_is_loaded_from_is_shipped(tmp_path):
    for name in ("config.json", "model.safetensors", "pytorch_model.bin", "tokenizer.json", "README.md"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "onnx").mkdir()
    names = [file.name for file in models_files.files(tmp_path)]
    assert names == ["config.json", "model.safetensors", "tokenizer.json"]
    assert [file.name for file in models_files.files(tmp_path, weights=False)] == names[::2]


@pytest.mark.spark
def test_another_model_under_the_same_path_is_refused(make_job, tmp_path):
    model = shutil.copytree(embedded_path(), tmp_path / "model")
    task = Task.of(make_job({"model": {"name": str(model)}}))
    assert task.here() == task and not task.archives
    there = replace(task, model_hash=models_files.fingerprint(model))
    assert there.here() == task
    (model / "config.json").write_text((model / "config.json").read_text() + " ")
    other = replace(task, model_hash=models_files.fingerprint(embedded_path()), model=str(model))
    with pytest.raises(ModelError, match=f"the model in {model} differs from the driver's"):
        replace(other, model_hash="0" * 64).here()
    with pytest.raises(ModelError, match=f"the model in {model} differs from the driver's"):
        replace(task, draft=str(model), draft_hash="0" * 64).here()
    with pytest.raises(ModelError, match="does not exist; copy the driver's folder"):
        replace(other, model=str(tmp_path / "gone")).here()


@pytest.mark.spark
def test_a_draft_model_travels_beside_the_model(make_job, tmp_path):
    """And is opened where a task runs; one that is the model itself travels once."""
    drafter = shutil.copytree(embedded_path(), tmp_path / "drafter")
    (drafter / "config.json").write_text((drafter / "config.json").read_text() + " ")
    for folder, archives in ((drafter, 2), (embedded_path(), 1)):
        job = make_job({"spark": {"ship": "always"}, "drafter": {"model": str(folder)}},
                       model=models_files.fingerprint(embedded_path()))
        task = Task.of(job)
        assert len(task.archives) == archives and task.draft == str(folder) and not task.draft_hash
        here = task.here()
        assert here.draft != task.draft and (here.draft == here.model) == (archives == 1)
        assert models_files.fingerprint(here.draft) == job.draft_hash


@pytest.mark.parametrize(("address", "visible", "index"), [
    (f"GPU-{B}", None, 1), (f"GPU-{A}", f"GPU-{A},GPU-{B}", 0), ("1", None, 1), ("5", "4,5", 1)])
def test_a_gpu_is_found_by_uuid_or_by_the_index_of_nvidia_smi(address, visible, index):
    assert workers.gpu_index(address, [A, B], visible) == index


@pytest.mark.parametrize(("address", "uuids", "visible"), [
    ("2", [A, B], None), ("GPU-cc", [A, B], None), ("0", [A, B], "4,5"), ("0", [], None),
    ("0", [A], f"GPU-{A}"), ("-1", [A], None)])
def test_a_gpu_that_torch_does_not_see_is_named_with_the_fix(address, uuids, visible):
    with pytest.raises(InfrastructureError, match=f"the GPU {address}, but torch sees .*gpu_discovery.sh"):
        workers.gpu_index(address, uuids, visible)


def test_a_task_with_a_gpu_does_not_go_on_without_one():
    """On this machine torch may see GPUs, but none with this UUID."""
    assert workers.select_device("cpu", "GPU-of-nobody") == "cpu"
    assert workers.select_device("auto", None) == "auto"
    with pytest.raises(InfrastructureError, match="model.device=cpu"):
        workers.select_device("auto", "GPU-of-nobody")


def discover(path: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run([SCRIPT], env={"PATH": path, **variables}, capture_output=True, text=True)


def test_the_discovery_script_prints_what_spark_reads(tmp_path):
    path = f"{Path(__file__).with_name('bin')}:/usr/bin:/bin"
    assert discover(path).stdout == (
        '{"name": "gpu", "addresses": ["GPU-00000000-0000-4000-8000-000000000000", '
        '"GPU-11111111-1111-4111-8111-111111111111"]}\n')
    one = discover(path, CUDA_VISIBLE_DEVICES="GPU-11111111-1111-4111-8111-111111111111")
    assert one.stdout == '{"name": "gpu", "addresses": ["GPU-11111111-1111-4111-8111-111111111111"]}\n'


@pytest.mark.parametrize(("prints", "code", "said"), [
    (None, 0, "nvidia-smi was not found"), ("Failed to initialize NVML: mismatch", 15, "Failed to init"),
    ("", 0, "lists no GPU"), ("No devices were found", 0, "named no GPU but said: No devices were found")])
def test_the_discovery_script_says_why_there_is_no_gpu(tmp_path, prints, code, said):
    if prints is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho '{prints}'\nexit {code}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    (tmp_path / "hostname").symlink_to(shutil.which("hostname"))
    done = discover(str(tmp_path))  # nothing else, as this machine may have GPUs
    assert done.returncode == 1 and not done.stdout and said in done.stderr


def test_an_executor_that_does_not_see_the_output_is_named(tmp_path):
    (tmp_path / "_lock").touch()
    seen = {"input.path": str(tmp_path)}
    assert list(executors.host_problems(str(tmp_path), ["_lock"], __version__, seen)) == []
    ((host, problem),) = executors.host_problems(str(tmp_path), ["_lock", "plan"], __version__, {}, 0)
    assert host and problem.startswith(f"does not see plan in {tmp_path}, the driver does: out must be")
    ((_, problem),) = executors.host_problems(str(tmp_path / "gone"), [], __version__, {}, 0)
    assert "No such file or directory" in problem
    ((_, problem),) = executors.host_problems(str(tmp_path), [], "0.0.9", {})
    assert problem == f"has dare-job {__version__}, the driver 0.0.9: install the same version"
    seen["input.knowledge"] = str(tmp_path / "text")
    ((_, problem),) = executors.host_problems(str(tmp_path), [], __version__, seen, 0)
    assert problem.startswith(f"does not see {tmp_path / 'text'}, the driver does") and (
        "input.knowledge must be under the same path" in problem)
    assert [path.name for path in tmp_path.iterdir()] == ["_lock"]


def _unpack(start, answers, served: str, folders: str, sha256: str) -> None:
    os.environ["SPARK_EXECUTOR_DIRS"] = folders
    SparkFiles._root_directory, SparkFiles._is_running_on_worker = served, True
    start.wait(60)
    place = shipping.unpack_archive(shipping.Archive("pools", "a.tar", sha256))
    answers.put((place, os.stat(place).st_ino))


def test_tasks_at_once_unpack_once(folder, tmp_path):
    """Eight processes ask at the same moment; whoever came second would have replaced the folder."""
    served = tmp_path / "served"
    served.mkdir()
    paths = [path for path in folder.rglob("*") if path.is_file()]
    shipping._pack(served / "a.tar", folder, paths)
    start, answers = _CONTEXT.Barrier(8), _CONTEXT.Queue()
    task = (start, answers, str(served), f"{tmp_path / 'host'}{os.pathsep}/elsewhere",
            shipping._digest(served / "a.tar"))
    running = [_CONTEXT.Process(target=_unpack, args=task) for _ in range(8)]
    for process in running:
        process.start()
    found = {answers.get(timeout=60) for _ in running}
    for process in running:
        process.join()
    ((place, _),) = found
    assert content(Path(place)) == content(folder)
    assert Path(place).parent == tmp_path / "host" / "dare-job"


def test_an_executor_waits_for_files_that_its_disk_shows_late(tmp_path):
    threading.Timer(0.5, (tmp_path / "_lock").touch).start()
    assert list(executors.host_problems(str(tmp_path), ["_lock"], __version__, {}, 60)) == []


@pytest.mark.spark
def test_what_a_task_raises_reaches_the_driver_as_it_was(spark):
    def work(numbers):
        raise InfrastructureError("host-7 does not see /out: mount it")

    def count(numbers):
        yield 1 / 0

    numbers = spark.sparkContext.parallelize(range(2), 2)
    with pytest.raises(InfrastructureError, match="^host-7 does not see /out: mount it$"), \
            executors.one_line_errors():
        numbers.mapPartitions(work).collect()
    with pytest.raises((Py4JError, PySparkException), match="ZeroDivisionError"), executors.one_line_errors():
        numbers.mapPartitions(count).collect()


def test_lost_executors_are_no_fault_of_the_program():
    lost = ("An error occurred while calling o1.collectToPython.\n: org.apache.spark.SparkException: Job "
            "aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure: "
            "Lost task 0.3 in stage 1.0 (TID 4) (10.0.0.7 executor 3): ExecutorLostFailure")
    with pytest.raises(InfrastructureError, match="too often.*run it again.*Task 0 in stage 1.0 failed 4"), \
            executors.one_line_errors():
        raise Py4JError(lost)


@pytest.mark.parametrize(("master", "asked", "expected"), [
    ("local[1,4]", None, 8), ("local[4,4]", None, 2), ("local[16,4]", None, 1), ("local[1,4]", "3", 3),
    ("local[4,4]", "5,2", 2), ("local[1,4]", "many", 8), ("spark://h:7077", "3", 1)])
def test_a_worker_has_its_share_of_a_machine_and_no_more_than_it_is_allowed(
        monkeypatch, master, asked, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    slots = int(master[6:].split(",")[0]) if master.startswith("local") else 2

    class Spark:
        sparkContext = type("Context", (), {"master": master, "defaultParallelism": slots})
        conf = {"spark.task.cpus": "1"}

    assert task_threads(Spark) == expected
