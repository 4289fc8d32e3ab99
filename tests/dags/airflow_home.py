"""An Airflow home for tests: settings of the DAGs, commands as processes, what the database says of tasks."""

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import yaml

from dare_job.spark.session import QUICK_START

ROOT = Path(__file__).parents[2]
DAGS = ROOT / "airflow" / "dags"
NIGHTLY, NIGHT = "dare_job_nightly", "2026-01-02"
STAGES = ("plan", "embed", "group_and_route", "pools", "generate", "gate", "publish", "encode", "recommend")
TASKS = ("inputs", *STAGES, "texts_over", "notify", "ended")
SPARK = {  # a quick start and a quiet console
    "spark.driver.memory": "1g", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": f"{QUICK_START} -Dlog4j.configurationFile="
                                     f"{(ROOT / 'dare_job' / 'spark' / 'log4j2.properties').as_uri()}"}
DEADLINE_S = 1200
CONNECTION = {"conn_type": "spark", "host": "local[1,4]", "extra": {"spark-binary": "spark-submit"}}


@dataclass(frozen=True)
class Airflow:
    """``home`` holds the database and dare.yaml; ``environment`` is laid over that of the tests."""

    home: Path
    settings: dict
    environment: dict = field(default_factory=dict)

    def __post_init__(self):
        (self.home / "dare.yaml").write_text(yaml.safe_dump(self.settings), encoding="utf-8")

    @property
    def variables(self) -> dict[str, str]:
        return {**os.environ, "AIRFLOW_HOME": str(self.home),
                "DARE_DAGS_SETTINGS": str(self.home / "dare.yaml"),
                "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS), "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
                "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(CONNECTION), "OMP_NUM_THREADS": "1",
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **self.environment}

    def start(self, *arguments: str) -> subprocess.Popen:
        """An ``airflow`` command as a process of its own group, its words in ``home/commands.log``."""
        with open(self.home / "commands.log", "ab") as log:
            return subprocess.Popen(["airflow", *arguments], env=self.variables, cwd=self.home, stdout=log,
                                    stderr=subprocess.STDOUT, start_new_session=True)

    def run(self, *arguments: str, succeeds: bool = True, timeout_s: float = 900) -> str:
        """Run a command to its end; what it said."""
        done = subprocess.run(["airflow", *arguments], env=self.variables, cwd=self.home, text=True,
                              capture_output=True, timeout=timeout_s)
        said = done.stdout + done.stderr
        assert (done.returncode == 0) == succeeds, said[-6000:]
        return said

    def run_unlocked(self, *arguments: str, tries: int = 10) -> str:
        """``run`` while Airflow is running: its SQLite database may be locked, then try again."""
        for _ in range(tries - 1):
            try:
                return self.run(*arguments)
            except AssertionError as error:
                if "database is locked" not in str(error):
                    raise
        return self.run(*arguments)

    def said(self) -> str:
        """What started commands said until now."""
        return (self.home / "commands.log").read_text(encoding="utf-8", errors="replace")

    def tasks(self) -> dict[str, tuple[str, int]]:
        """State and number of tries of each task of the nightly DAG's one run."""
        rows = self.rows("select task_id, state, try_number from task_instance where dag_id = ?", NIGHTLY)
        return {task: (state, tries) for task, state, tries in rows}

    def rows(self, query: str, *values) -> list[tuple]:
        with sqlite3.connect(f"file:{self.home / 'airflow.db'}?mode=ro", uri=True, timeout=30) as database:
            return database.execute(query, values).fetchall()


def load_dags():
    """The DAG folder, loaded as Airflow's components do, which takes no database."""
    from airflow.dag_processing.dagbag import BundleDagBag

    return BundleDagBag(dag_folder=DAGS, bundle_path=DAGS, bundle_name="dags-folder")


def small(world: Path, out: Path, **more) -> dict:
    """Settings of the DAGs for a small world: demo.yaml, short texts, quick retries."""
    given = ["decode.max_new_tokens=48", "decode.batch_size=4", "decode.nodes=12", "embed.epochs=3",
             "embed.dim=8", "spark.rows_per_commit=4", "spark.shards=4", "baseline.rows=0",
             # texts of few tokens are cut off, and some are equal
             "gates.max_share.cut_off=null", "gates.max_share.same_text=null"]
    params = {"config": [str(ROOT / "conf" / "demo.yaml")], "input": str(world), "out": str(out),
              "set": given}
    return {"retry_delay_s": 2, "spark": {"conf": SPARK}, **more,
            "params": {**params, **more.get("params", {})}}


@contextmanager
def webhook():
    """A connection to a local web server, as JSON, and what was posted there."""
    posted = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/hook-3141"
    yield json.dumps({"conn_type": "http", "password": address}), posted
    server.shutdown()


def wait(reached, what: str, home: Airflow | None = None, run: subprocess.Popen | None = None) -> None:
    """Until ``reached()``; AssertionError where it takes too long, or ``run`` has ended before."""
    deadline = time.monotonic() + DEADLINE_S
    while not reached():
        said = home.said()[-6000:] if home else ""
        assert run is None or run.poll() is None, f"{what}: the run ended before; {said}"
        assert time.monotonic() < deadline, f"{what}: {said}"
        time.sleep(0.05 if run else 1)


def chunks(out: Path) -> dict[str, tuple[int, bytes]]:
    """The finished chunks of NIGHT, as ``files``."""
    return files(out / "_work" / f"dt={NIGHT}" / "generate", "entity=*/part-*.parquet")


def files(folder: Path, pattern: str = "**/*") -> dict[str, tuple[int, bytes]]:
    """Modification time and content of the files below a folder."""
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes())
            for path in sorted(folder.glob(pattern)) if path.is_file()}
