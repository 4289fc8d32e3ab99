"""A real standalone master and its workers on loopback, from the jars of the installed pyspark."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pyspark
import quick_java

import dare_job

ROOT = Path(__file__).parents[2]
BIN = Path(__file__).with_name("bin")  # a stand-in for nvidia-smi
SPARK = Path(pyspark.__file__).parent
GPUS = ("GPU-00000000-0000-4000-8000-000000000000", "GPU-11111111-1111-4111-8111-111111111111")
_LOOPBACK = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
_ALL_WORKERS = {"spark.scheduler.minRegisteredResourcesRatio": "1.0",
                "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s"}
_START_S = 120


@dataclass(frozen=True)
class Cluster:
    """A running cluster: its URL, and the folder with a folder for each worker."""

    url: str
    folder: Path
    processes: tuple[subprocess.Popen, ...]


def environment(**more: str) -> dict[str, str]:
    """This process's, without what would tell Spark of another home, and with this checkout for Python."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("SPARK_", "PYSPARK_", "PYTHONPATH", "CUDA_"))}
    return {**kept, "OMP_NUM_THREADS": "1", "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT),
            **more}


def start(folder: Path, gpus: tuple[str, ...] = GPUS) -> Cluster:
    """A master, and a worker of one core and one GPU for each of ``gpus``; each has a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    master, url = _daemon(folder / "master.log", r"Starting Spark master at (\S+)",
                          ["org.apache.spark.deploy.master.Master", *_LOOPBACK])
    processes = [master]
    options = ("-Dspark.worker.resource.gpu.amount=1 "
               f"-Dspark.worker.resource.gpu.discoveryScript={ROOT / 'conf' / 'gpu_discovery.sh'}")
    for number, gpu in enumerate(gpus):
        home = folder / f"worker-{number}"
        home.mkdir()
        worker, _ = _daemon(folder / f"worker-{number}.log", r"(Successfully registered) with master", [
            "org.apache.spark.deploy.worker.Worker", *_LOOPBACK, "--cores", "1", "--memory", "1g",
            "--work-dir", str(home / "work"), url],
            SPARK_WORKER_OPTS=options, SPARK_LOCAL_DIRS=str(home / "local"), CUDA_VISIBLE_DEVICES=gpu,
            PATH=f"{BIN}{os.pathsep}{os.environ['PATH']}")
        processes.append(worker)
    return Cluster(url, folder, tuple(processes))


def stop(cluster: Cluster) -> None:
    for process in reversed(cluster.processes):
        process.terminate()
    for process in cluster.processes:
        process.wait(30)


def submit(master: str, *arguments, conf: dict[str, str] | None = None, options: tuple[str, ...] = (),
           entry: Path | None = None, timeout: int = 600, **variables: str) -> subprocess.CompletedProcess:
    """Run ``spark-submit --master MASTER ... __main__.py ARGUMENTS`` as an operator would, and wait."""
    settings = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "1g", "spark.executor.cores": "1",
                "spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false",
                "spark.executor.extraJavaOptions": _java_options(), **_ALL_WORKERS, **(conf or {})}
    given = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    entry = entry or Path(dare_job.__file__).with_name("__main__.py")
    command = [SPARK / "bin" / "spark-submit", "--master", master, "--driver-memory", "1g",
               "--driver-java-options", quick_java.options(), *given, *options, entry, *arguments]
    return subprocess.run([str(word) for word in command], env=environment(**variables), text=True,
                          capture_output=True, timeout=timeout)


def _java_options() -> str:
    """Those of the tests that are no settings of Spark, which executors have from the driver."""
    return " ".join(word for word in quick_java.options().split() if not word.startswith("-Dspark."))


def wheel(folder: Path, version: str | None = None) -> Path:
    """The package's wheel as a zip, as Spark unpacks it; with another ``__version__`` where one is given."""
    source = folder / "source"
    for name in ("dare_job", "pools"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    if version:
        (source / "dare_job" / "__init__.py").write_text(f'__version__ = "{version}"\n')
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w",
                    folder, source], check=True, timeout=240)
    (made,) = folder.glob("*.whl")
    return made.rename(folder / "dare_job.zip")


def _daemon(log: Path, ready: str, arguments: list[str], **variables: str) -> tuple[subprocess.Popen, str]:
    """Start one of Spark's daemons; the process, and what ``ready`` finds in its log once it is up."""
    with open(log, "w") as file:
        process = subprocess.Popen(
            [str(SPARK / "bin" / "spark-class"), *arguments], stdout=file, stderr=subprocess.STDOUT,
            env=environment(SPARK_DAEMON_MEMORY="256m", SPARK_DAEMON_JAVA_OPTS=quick_java.options(),
                            **variables), start_new_session=True)
    deadline = time.monotonic() + _START_S
    while not (found := re.search(ready, log.read_text())):
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)
    return process, found[1]


def said(done: subprocess.CompletedProcess) -> str:
    """The one line by which the command says why it ended; spark-submit writes it to standard output."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("dare-job: ")]
    assert len(lines) == 1, done.stdout[-5000:] + done.stderr[-5000:]
    return lines[0]


def tasks(logs) -> list[dict]:
    """Shard, worker, GPU, begin and end of each task of the stage generate, from the logs of the workers."""
    shards = {}
    for path in logs.glob("*.jsonl"):
        for record in map(json.loads, path.read_text().splitlines()):
            if record["event"] == "the model is loaded":
                shards[record["shard"]] = record | {"worker": path.name, "began": record["timestamp"]}
            elif record["event"] == "the shard is finished":
                shards[record["shard"]]["ended"] = record["timestamp"]
    return list(shards.values())
