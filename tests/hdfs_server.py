"""HDFS for tests: a NameNode and a DataNode if their jars are available, else a client that writes to disk.

    echo 'pypandoc<1.6' > /tmp/older                            # its setup.py needs it
    PIP_CONSTRAINT=/tmp/older pip download --no-deps --no-binary :all: pyspark==2.4.8   # jars of Hadoop 2.7.3
    export DARE_HDFS_JARS=FOLDER                               # its deps/jars, unpacked

Processes find either through environment variables, which Spark's Python workers get as well.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

JARS = os.environ.get("DARE_HDFS_JARS")
KINDS = ["disk", *(["server"] if JARS else [])]
STAND_IN = Path(__file__).parent / "files" / "hdfs_on_disk"
_SERVER = "org.apache.hadoop.hdfs.server"
_OPENS = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.lang", "java.nio", "sun.nio.ch")]
_SETTINGS = {
    "dfs.replication": "1", "dfs.webhdfs.enabled": "false", "dfs.namenode.http-address": "127.0.0.1:0",
    "dfs.datanode.http.address": "127.0.0.1:0", "dfs.datanode.address": "127.0.0.1:0",
    "dfs.datanode.ipc.address": "127.0.0.1:0"}


@contextmanager
def running(kind: str, spark, folder: Path) -> Iterator[str]:
    """Yield the URL of an empty HDFS folder. Imported clients of the other kind are unloaded."""
    from fsspec.registry import _registry

    def forget() -> None:
        _registry.pop("hdfs", None)
        for name in [name for name in sys.modules if name.split(".")[0] == "hdfs_native"]:
            del sys.modules[name]
        sys.modules.pop("dare_job.storage.hdfs", None)

    workers = spark.sparkContext.environment
    with _disk(folder) if kind == "disk" else _server(folder) as variables:
        before, theirs, path = {name: os.environ.get(name) for name in variables}, workers.copy(), sys.path[:]
        os.environ.update(variables)
        workers.update(variables)
        sys.path[:0] = [name for name in variables.get("PYTHONPATH", "").split(os.pathsep) if name]
        forget()
        try:
            yield "hdfs:///night"
        finally:
            forget()
            sys.path[:] = path
            workers.clear()
            workers.update(theirs)
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextmanager
def _disk(folder: Path) -> Iterator[dict[str, str]]:
    paths = os.pathsep.join([str(STAND_IN), str(Path(__file__).parent),  # of quick_workers.py
                             *filter(None, [os.environ.get("PYTHONPATH")])])
    yield {"HDFS_ON_DISK": str(folder), "PYTHONPATH": paths}


@contextmanager
def _server(folder: Path) -> Iterator[dict[str, str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    _configure(folder, port)
    java = ["java", "-Xmx256m", *_OPENS, f"-Dhadoop.home.dir={folder}", "-cp", f"{folder}/conf:{JARS}/*"]
    subprocess.run([*java, f"{_SERVER}.namenode.NameNode", "-format"], check=True, capture_output=True)
    with open(folder / "log", "w") as log:
        nodes = [subprocess.Popen([*java, f"{_SERVER}.{name}"], stdout=log, stderr=log)
                 for name in ("namenode.NameNode", "datanode.DataNode")]
    try:
        _wait(folder, nodes)
        yield {"HADOOP_CONF_DIR": str(folder / "conf"), "HADOOP_USER_NAME": "somebody"}
    finally:
        for node in nodes:
            node.kill()
            node.wait()


def _configure(folder: Path, port: int) -> None:
    for name in ("hdfs", "datanode", "static"):  # web pages that Spark's package does not contain
        (folder / "conf" / "webapps" / name / "WEB-INF").mkdir(parents=True)
        (folder / "conf" / "webapps" / name / "WEB-INF" / "web.xml").write_text("<web-app></web-app>")
    (folder / "conf" / "log4j.properties").write_text(
        "log4j.rootLogger=INFO,A\nlog4j.appender.A=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.A.layout=org.apache.log4j.SimpleLayout\n")
    places = {"dfs.namenode.name.dir": f"file://{folder}/name", "dfs.datanode.data.dir": f"file://{folder}/data",
              "dfs.permissions.superusergroup": "everybody", "dfs.permissions.enabled": "false"}
    for name, settings in (("core", {"fs.defaultFS": f"hdfs://127.0.0.1:{port}"}),
                           ("hdfs", _SETTINGS | places)):
        properties = "".join(f"<property><name>{key}</name><value>{value}</value></property>"
                             for key, value in settings.items())
        (folder / "conf" / f"{name}-site.xml").write_text(f"<configuration>{properties}</configuration>")


def _wait(folder: Path, nodes: list[subprocess.Popen]) -> None:
    deadline = time.monotonic() + 90
    while "Got finalize command" not in (folder / "log").read_text(errors="replace"):
        ended = [node for node in nodes if node.poll() is not None]
        if ended or time.monotonic() > deadline:
            raise RuntimeError((folder / "log").read_text(errors="replace")[-3000:])
        with suppress(subprocess.TimeoutExpired):
            nodes[0].wait(0.2)
