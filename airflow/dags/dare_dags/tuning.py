"""Runs ``dare-job tune`` on this worker and writes its file atomically."""

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

from airflow.sdk import ObjectStoragePath
from airflow.sdk.exceptions import AirflowFailException

from dare_dags.operators import application
from dare_dags.outcome import Outcome

_LOG = logging.getLogger(__name__)


def run(params: dict, day: str, spark: dict) -> str:
    """Write ``params["tuned"]/<day>.yaml``; returns its path.

    Parameters
    ----------
    params
        ``tune.params`` of defaults.yaml.
    spark
        Section ``spark`` of defaults.yaml, for the code and the environment of the job.

    Raises
    ------
    AirflowFailException
        A parameter is missing, or a retry would fail as well.
    AirflowException
        The command failed otherwise.
    """
    script = application(spark["application"])
    folder = Path(_required(params, "tuned", "the folder to write to"))
    folder.mkdir(parents=True, exist_ok=True)
    partial, file = folder / f".{day}.yaml.partial", folder / f"{day}.yaml"
    python = spark["env"].get("PYSPARK_PYTHON", sys.executable)
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as copies:
        command = [python, script, *arguments(params, script, Path(copies)), "--save", str(partial)]
        _LOG.info("running %s", command)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**os.environ, **spark["env"]}) as process:
            try:
                for line in outcome.listen(process.stdout):
                    _LOG.info(line.rstrip())
            except BaseException:  # timed out or stopped
                process.kill()
                raise
    if process.returncode:
        raise outcome.failure("tune", process.returncode)
    os.replace(partial, file)
    return str(file)


def arguments(params: dict, script: str, copies: Path) -> list[str]:
    """Arguments of ``dare-job tune`` without its output.

    Parameters
    ----------
    copies
        Empty folder for texts from a URL.
    """
    text = params["text"]
    if not text:
        text = newest(_required(params, "out", "the output folder of the nightly runs, or set text"), copies)
    tokenizer = params["tokenizer"] or str(Path(script).parent / "models" / "embedded")
    words = ["tune", "--text", str(text), "--column", params["column"], "--tokenizer", tokenizer]
    for name, option in (("id_column", "--id-column"), ("latency", "--latency"), ("model", "--model")):
        if params[name]:
            words += [option, params[name]]
    return [*words, *params["options"]]


def newest(out: str, copies: Path) -> Path:
    """Folder of the newest published user texts; from a URL, the files in the manifest are copied first.

    Raises
    ------
    AirflowFailException
        There are none.
    """
    dates = [folder for folder in ObjectStoragePath(f"{out}/knowledge/entity=user").glob("dt=*")
             if _is_dated(folder.name) and (folder / "_manifest.json").exists()]
    if not dates:
        raise AirflowFailException(f"{out} has no published user texts yet: run the nightly DAG first")
    found = max(dates, key=lambda folder: folder.name)
    if "://" not in out:
        return Path(out, "knowledge", "entity=user", found.name)
    for name in json.loads((found / "_manifest.json").read_text())["files"]:
        with (found / name).open("rb") as source, open(copies / name, "wb") as copy:
            shutil.copyfileobj(source, copy)
    return copies


def _is_dated(name: str) -> bool:
    """Whether a folder is named dt=YYYY-MM-DD with a date that exists."""
    text = name.removeprefix("dt=")
    try:
        return name != text and date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _required(params: dict, name: str, meaning: str) -> str:
    if not params[name]:
        raise AirflowFailException(f"tune.params.{name} is not set in dare.yaml: {meaning}")
    return params[name]
