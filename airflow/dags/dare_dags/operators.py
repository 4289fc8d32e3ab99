"""Tasks of the nightly DAG: wait for the input, run a stage with spark-submit."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Asset, BaseSensorOperator, ObjectStoragePath
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
)

from dare_dags.night import Night
from dare_dags.outcome import Outcome

KNOWLEDGE, FEATURES = Asset("dare_job_knowledge"), Asset("dare_job_features")
CANDIDATES = Asset("dare_job_candidates")
_EXIT_CODE = re.compile(r"(?:spark exit code|Error code) is: (\d+)")


class InputSensor(BaseSensorOperator):
    """Waits until all paths of ``Night.awaited`` exist; URLs are looked up in their stores."""

    def __init__(self, *, timezone: str, **kwargs):
        super().__init__(**kwargs)
        self.timezone = timezone

    def poke(self, context) -> bool:
        missing = self._missing(context)
        self.log.info("waiting for %s", ", ".join(missing) or "nothing")
        return not missing

    def execute(self, context):
        try:
            return super().execute(context)
        except AirflowSensorTimeout:
            hours, missing = self.timeout / 3600, ", ".join(self._missing(context))
            raise AirflowSensorTimeout(f"no input after {hours:g} h: {missing} missing") from None

    def _missing(self, context) -> list[str]:
        return [path for path in Night.of(context, self.timezone).awaited() if not _exists(path)]


def _exists(path: str) -> bool:
    return ObjectStoragePath(path).exists() if "://" in path else Path(path).exists()


class StageOperator(SparkSubmitOperator):
    """Runs one stage of the job.

    A failed stage raises an exception with its exit code and error message: AirflowFailException if a retry
    would fail as well. A stage with an asset reports in its event what it published. A stage that is switched
    off is skipped and creates no event.

    Parameters
    ----------
    stage
        A stage of `dare-job run`, or FIRST_and_LAST for the stages from one to the other.
    settings
        All settings of the DAGs.
    """

    def __init__(self, *, stage: str, settings: dict, **kwargs):
        spark = settings["spark"]
        conf = spark["conf"] | settings["stages"][stage]["conf"]
        super().__init__(conn_id=spark["connection"], conf=conf, env_vars=spark["env"] or None,
                         **kwargs)
        self.stage = stage
        self.installed = spark["application"]
        self.timezone = settings["timezone"]
        self._outcome = Outcome()

    def execute(self, context):
        night = Night.of(context, self.timezone)
        self._outcome, self._hook = Outcome(), None  # previous attempts had their own
        self.application = application(self.installed)
        self.name = f"dare-job {self.stage} {night.date}"
        try:
            self.application_args = arguments(night, self.stage)
        except (ValueError, OSError) as error:
            raise AirflowFailException(str(error)) from error
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # for a driver on this machine
        try:
            super().execute(context)
        except AirflowException as error:
            codes = [int(code) for code in _EXIT_CODE.findall(str(error)) if code != "0"]
            in_cluster = self._hook._connection["deploy_mode"] == "cluster"
            raise self._outcome.failure(self.stage, codes[-1] if codes else None, in_cluster) from error
        return self._published(context, night) if self.outlets else None

    def _get_hook(self):
        hook = super()._get_hook()
        if hook._connection["deploy_mode"] != "cluster":
            hook._env = hook._env_vars  # the hook drops it if the master is Kubernetes
        process = hook._process_spark_submit_log
        hook._process_spark_submit_log = lambda lines: process(self._outcome.listen(lines))
        hook.submit = partial(hook.submit, start_new_session=True)  # for on_kill
        return hook

    def on_kill(self) -> None:
        """Stop spark-submit and the Python process that it started, which would otherwise continue.

        That process then releases the lock of the date, so that the next attempt can run on any host.
        A driver in the cluster is stopped first: the hook can stop it only while spark-submit is running.
        """
        submitted = self._hook and self._hook._submit_sp
        if submitted and self._hook._connection["deploy_mode"] == "cluster":
            super().on_kill()
            end_group(submitted)
            return
        if submitted:
            end_group(submitted)
        super().on_kill()

    def _published(self, context, night: Night) -> dict:
        """Summary for the event of the asset and the message; without counts for a driver in the cluster."""
        manifests = self._outcome.result
        unknown = manifests is None and self.stage != "publish"  # the driver ran in the cluster
        if manifests == {} or unknown and night.is_unset(f"{self.stage}.model"):
            raise AirflowSkipException(f"this stage is off: {self.stage}.model is not set")
        manifests = manifests or {}
        counts = {entity: found["counts"] for entity, found in manifests.items()
                  if isinstance(found, dict) and "counts" in found}
        summary = {"date": night.date, "out": night.out(), "report": night.report(),
                   "counts": manifests.get("counts", counts)}
        context["outlet_events"][self.outlets[0]].extra = summary
        return summary


def end_group(leader: subprocess.Popen, patience_s: float = 20.0) -> None:
    """Send SIGTERM to a process group, and SIGKILL to its remaining processes after ``patience_s`` seconds.

    A separate process sends SIGKILL, because Airflow kills a task marked as failed after five seconds.
    """
    with suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGTERM)
        killer = subprocess.Popen(["sh", "-c", f"sleep {patience_s}; kill -KILL -{leader.pid}"],
                                 start_new_session=True, stderr=subprocess.DEVNULL)
        try:
            while killer.poll() is None:
                leader.poll()  # reaps it; until then it counts as running
                os.killpg(leader.pid, 0)
                time.sleep(0.1)
        except ProcessLookupError:  # all have exited
            os.killpg(killer.pid, signal.SIGKILL)
            killer.wait()


def arguments(night: Night, stage: str) -> list[str]:
    """Arguments of ``dare-job`` for a stage or FIRST_and_LAST.

    Raises
    ------
    ValueError
        As ``Night.arguments``.
    """
    if stage == "recommend":  # --model and --limit are for the other stages
        night = replace(night, params=night.params | {"model": None, "limit": None})
        return [*night.arguments(stage, stage), "--if-set"]
    first, _, last = stage.rpartition("_and_")
    return night.arguments(first or last, last)


def application(path: str | None) -> str:
    """Path of ``dare_job/__main__.py``, by default that of the installed package, which is not imported.

    Raises
    ------
    AirflowFailException
        The package is not installed.
    """
    if path:
        return path
    found = importlib.util.find_spec("dare_job")
    if found is None or found.origin is None:
        raise AirflowFailException("dare_job is not installed with Airflow on this worker: install it, or "
                                   "set spark.application in dare.yaml to the path of dare_job/__main__.py")
    return str(Path(found.origin).with_name("__main__.py"))
