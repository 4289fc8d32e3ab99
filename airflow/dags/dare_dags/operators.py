"""The tasks of the nightly DAG: wait for the input, run a stage through spark-submit."""

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
    """Waits until every path of ``wait_for`` is there; a path with a scheme is asked of its own store."""

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
    """One stage of the job for one night.

    stage     a stage of `dare-job run`, or FIRST_and_LAST: the stages from one to the other
    settings  all settings of the DAGs

    A failed stage raises with its exit code and the job's own words; one that would fail again the same way
    raises AirflowFailException. A stage with an asset says in its event what it published; one that is
    switched off is skipped, and makes no event.
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
        self._outcome, self._hook = Outcome(), None  # a try before this one had its own
        self.application = application(self.installed)
        self.name = f"dare-job {self.stage} {night.date}"
        try:
            self.application_args = arguments(night, self.stage)
        except (ValueError, OSError) as error:
            raise AirflowFailException(str(error)) from error
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # of a driver that runs here
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
            hook._env = hook._env_vars  # which the hook forgets where the master is Kubernetes
        process = hook._process_spark_submit_log
        hook._process_spark_submit_log = lambda lines: process(self._outcome.listen(lines))
        hook.submit = partial(hook.submit, start_new_session=True)  # for on_kill
        return hook

    def on_kill(self) -> None:
        """End spark-submit, and with it the Python process that it started, which would go on by itself.

        That one gives its date's lock back, so that the next try can be on any host. A driver in the cluster
        comes first: the hook asks for its end only while spark-submit is there.
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
        """What is published, for the asset's event and the message; no counts of a driver in the cluster."""
        manifests = self._outcome.result
        unheard = manifests is None and self.stage != "publish"  # the driver ran in the cluster
        if manifests == {} or unheard and night.off(f"{self.stage}.model"):
            raise AirflowSkipException(f"the settings switch this stage off ({self.stage}.model)")
        manifests = manifests or {}
        counts = {entity: found["counts"] for entity, found in manifests.items()
                  if isinstance(found, dict) and "counts" in found}
        summary = {"date": night.date, "out": night.out(), "report": night.report(),
                   "counts": manifests.get("counts", counts)}
        context["outlet_events"][self.outlets[0]].extra = summary
        return summary


def end_group(leader: subprocess.Popen, patience_s: float = 20.0) -> None:
    """SIGTERM to a process and the group that it leads; after a while SIGKILL to who is still there.

    A process of its own sends the latter: Airflow kills a task that is marked as failed after five seconds.
    """
    with suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGTERM)
        later = subprocess.Popen(["sh", "-c", f"sleep {patience_s}; kill -KILL -{leader.pid}"],
                                 start_new_session=True, stderr=subprocess.DEVNULL)
        try:
            while later.poll() is None:
                leader.poll()  # takes note of its end: till then it counts as there
                os.killpg(leader.pid, 0)
                time.sleep(0.1)
        except ProcessLookupError:  # all have ended
            os.killpg(later.pid, signal.SIGKILL)
            later.wait()


def arguments(night: Night, stage: str) -> list[str]:
    """Command line of `dare-job` for a stage, or for FIRST_and_LAST. Raises as ``Night.arguments``."""
    if stage == "recommend":  # --limit limits texts in the other stages, and no recommender is no error here
        night = replace(night, params=night.params | {"model": None, "limit": None})
        return [*night.arguments(stage, stage), "--if-set"]
    first, _, last = stage.rpartition("_and_")
    return night.arguments(first or last, last)


def application(path: str | None) -> str:
    """Path of ``dare_job/__main__.py``: the one given, or the installed package's, which is not imported.

    Raises AirflowFailException where neither is there.
    """
    if path:
        return path
    found = importlib.util.find_spec("dare_job")
    if found is None or found.origin is None:
        raise AirflowFailException("dare_job is not installed beside Airflow on this worker: install it, or "
                                   "set spark.application in dare.yaml to the path of dare_job/__main__.py")
    return str(Path(found.origin).with_name("__main__.py"))
