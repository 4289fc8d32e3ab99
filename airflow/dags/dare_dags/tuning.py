"""Runs ``dare-job tune`` on this worker and leaves its file complete or not at all."""

import logging
import os
import subprocess
import sys
from pathlib import Path

from airflow.sdk.exceptions import AirflowFailException

from dare_dags.operators import application
from dare_dags.outcome import Outcome

_LOG = logging.getLogger(__name__)


def run(params: dict, day: str, spark: dict) -> str:
    """Write ``params["tuned"]/<day>.yaml``; its path.

    params  as ``tune.params`` of defaults.yaml
    spark   where the job's code is, and the environment it runs in

    Raises AirflowFailException where a parameter is missing or the job says that trying again is vain.
    """
    script = application(spark["application"])
    folder = Path(_given(params, "tuned", "the folder to write to"))
    folder.mkdir(parents=True, exist_ok=True)
    partial, file = folder / f".{day}.yaml.partial", folder / f"{day}.yaml"
    python = spark["env"].get("PYSPARK_PYTHON", sys.executable)
    command = [python, script, *arguments(params, script), "--out", str(partial)]
    _LOG.info("running %s", command)
    outcome = Outcome()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, **spark["env"]}) as process:
        try:
            for line in outcome.listen(process.stdout):
                _LOG.info(line.rstrip())
        except BaseException:  # a timeout, or the task was stopped
            process.kill()
            raise
    if process.returncode:
        raise outcome.failure("tune", process.returncode)
    os.replace(partial, file)
    return str(file)


def arguments(params: dict, script: str) -> list[str]:
    """Of ``dare-job tune``, but for its output."""
    text = params["text"] or newest(_given(params, "out", "the nights' output folder, or give text"))
    tokenizer = params["tokenizer"] or str(Path(script).parent / "model" / "embedded")
    given = ["tune", "--text", str(text), "--column", params["column"], "--tokenizer", tokenizer]
    for name, option in (("id_column", "--id-column"), ("latency", "--latency"), ("model", "--model")):
        if params[name]:
            given += [option, params[name]]
    return [*given, *params["options"]]


def newest(out: str) -> Path:
    """Folder of the newest published texts of users. Raises AirflowFailException where there are none."""
    if "://" in out:
        raise AirflowFailException(f"tune.params.out = {out} is a URL, and tuning reads texts from a disk: "
                                   "copy a date's folder of users there and name it in tune.params.text")
    dates = sorted(Path(out).glob("knowledge/entity=user/dt=*/_manifest.json"))
    if not dates:
        raise AirflowFailException(f"{out} has no published texts of users yet: run the nightly DAG first")
    return dates[-1].parent


def _given(params: dict, name: str, meaning: str) -> str:
    if not params[name]:
        raise AirflowFailException(f"tune.params.{name} of dare.yaml is not set: {meaning}")
    return params[name]
