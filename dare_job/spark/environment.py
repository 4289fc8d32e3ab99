"""Checks of the environment that Spark starts in: variables, and the locale of Java.

Spark would ignore such a variable in part, or fail later with a stack trace that does not name it.
"""

import codecs
import locale
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import dare_job
from dare_job.config.settings import SparkSettings
from dare_job.errors import ConfigError, InfrastructureError
from dare_job.storage import paths

SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, which has started Java already
_UTF8 = "C.UTF-8"
_ENCODING = "sun.jnu.encoding"  # Java's property: of file names and arguments
_NEEDED = ("dare_job", "pyarrow", "numpy", "torch", "transformers")  # by Python workers
_PROBE = """
import importlib.util, sys
missing = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
print("%d.%d" % sys.version_info[:2])
print(", ".join(missing))
if "dare_job" not in missing:
    import dare_job
    print(dare_job.__version__)
"""


def is_local(master: str) -> bool:
    """True for ``local[...]``, where tasks run on the driver's own host as its children."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def check_variables(settings: SparkSettings, variables: Mapping[str, str] = os.environ) -> None:
    """Check the variables that Spark reads, before Java starts.

    Raises
    ------
    ConfigError
        PYSPARK_PYTHON, PYSPARK_SUBMIT_ARGS, SPARK_HOME or SPARK_REMOTE does not fit.
    InfrastructureError
        No folder of SPARK_LOCAL_DIRS, or of ``spark.local.dir``, is writable.
    """
    if SUBMITTED not in variables:
        _check_remote(variables)
        _check_home(variables)
        _check_arguments(settings, variables)
        if is_local(settings.master):
            _check_python(settings, variables)
    _check_local_folders(settings, variables)


def worker_python(settings: SparkSettings, variables: Mapping[str, str]) -> tuple[str, str]:
    """What sets the Python of the workers, and that Python: by default that of this process."""
    if named := settings.conf.get("spark.pyspark.python"):
        return "spark.conf spark.pyspark.python", named
    return "PYSPARK_PYTHON", variables.get("PYSPARK_PYTHON") or sys.executable


def _check_python(settings: SparkSettings, variables: Mapping[str, str]) -> None:
    name, python = worker_python(settings, variables)
    program = shutil.which(python, path=variables.get("PATH"))
    fix = f"unset it, or set it to {sys.executable}"
    if program is None:
        raise ConfigError(f"{name}={python} is no program that can be run: {fix}")
    if os.path.abspath(program) != os.path.abspath(sys.executable) and (problem := _python_problem(program)):
        raise ConfigError(f"{name}={python} {problem}: {fix}")


@cache
def _python_problem(python: str) -> str | None:
    """Why this Python cannot run the job's workers; None if it can."""
    answer = subprocess.run([python, "-c", _PROBE, *_NEEDED], capture_output=True, text=True)
    version, missing, *ours = [*answer.stdout.splitlines(), "", ""][:3]
    own = "{}.{}".format(*sys.version_info)
    if answer.returncode or not version:
        return f"does not run ({' '.join(answer.stderr.split()[-12:]) or f'exit code {answer.returncode}'})"
    if version != own:
        return f"is Python {version}, and dare-job runs in Python {own}"
    if missing:
        return f"is a Python without {missing}"
    if ours != [dare_job.__version__]:
        return f"has dare-job {ours[0]}, and this is dare-job {dare_job.__version__}"
    return None


def _check_arguments(settings: SparkSettings, variables: Mapping[str, str]) -> None:
    text = variables.get("PYSPARK_SUBMIT_ARGS")
    if text is None:
        return
    name = f"PYSPARK_SUBMIT_ARGS={text!r}"
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{name} cannot be read ({error}): unset it") from None
    if words[-1:] != ["pyspark-shell"]:
        raise ConfigError(f"{name} does not end with pyspark-shell: add that word, or unset the variable")
    master = _named_master(words)
    if master and master != settings.master and not (is_local(master) and is_local(settings.master)):
        raise ConfigError(f"{name} names the master {master}, and spark.master is {settings.master}: unset "
                          f"the variable, or set spark.master={master}")


def _named_master(words: list[str]) -> str | None:
    """The last master in arguments of spark-submit; None if they name none."""
    master = None
    for option, value in zip(words, [*words[1:], ""], strict=True):
        if option == "--master":
            master = value
        elif option.startswith("--master="):
            master = option.partition("=")[2]
        elif option == "--conf" and value.startswith("spark.master="):
            master = master or value.partition("=")[2]
    return master


def _check_home(variables: Mapping[str, str]) -> None:
    home = variables.get("SPARK_HOME")
    if not home:
        return
    import pyspark

    jar = next(Path(home).glob("jars/spark-core_*.jar"), None)
    if jar is None or not (Path(home) / "bin" / "spark-submit").is_file():
        raise ConfigError(f"SPARK_HOME={home} is no installation of Spark (no bin/spark-submit, or no "
                          "jars/spark-core_*.jar): unset it")
    version = jar.stem.rpartition("_")[2].partition("-")[2]
    if version.split(".")[:2] != pyspark.__version__.split(".")[:2]:
        raise ConfigError(f"SPARK_HOME={home} has Spark {version}, and pyspark is {pyspark.__version__}: "
                          "unset it, or install Spark and pyspark of one version")


def _check_remote(variables: Mapping[str, str]) -> None:
    if remote := variables.get("SPARK_REMOTE"):
        raise ConfigError(f"SPARK_REMOTE={remote} is for Spark Connect, which the job cannot use: unset it, "
                          "and name the cluster in spark.master")


def _check_local_folders(settings: SparkSettings, variables: Mapping[str, str]) -> None:
    """Spark uses the folders that it can write to, and ends without a message if there is none."""
    name, text = "SPARK_LOCAL_DIRS", variables.get("SPARK_LOCAL_DIRS")
    if not text:
        name, text = "spark.local.dir", settings.conf.get("spark.local.dir")
    problems = [_write_problem(folder) for folder in text.split(",")] if text else []
    if problems and all(problems):
        raise InfrastructureError(f"{name}={text}: {problems[0]}; set it to a folder that can be written")


def _write_problem(folder: str) -> str | None:
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"{folder} cannot be written ({error.strerror})"


def use_utf8_in_java(variables=os.environ) -> None:
    """Give Java, which is started next, the encoding of file names that Python uses.

    With LC_ALL=C, Python takes UTF-8, and Java would write each é of a path as a question mark.
    """
    if sys.getfilesystemencoding() == "utf-8" and _codec(locale.getencoding()) != "utf-8":
        variables["LC_ALL"] = _UTF8


def executor_locale() -> dict[str, str]:
    """Properties that give Java on executors the same encoding of file names: services often have no locale.
    """
    utf8 = sys.getfilesystemencoding() == "utf-8"
    return {"spark.executorEnv.LC_ALL": _UTF8} if utf8 else {}


def check_paths(spark, named: Mapping[str, paths.AnyPath | str | None]) -> None:
    """Check that Java can use paths, where they are on the disk.

    Parameters
    ----------
    named
        Paths by setting.

    Raises
    ------
    ConfigError
        Java's locale has no such characters.
    """
    encoding = spark.sparkContext._jvm.java.lang.System.getProperty(_ENCODING)
    for name, text in named.items():
        path = paths.path(text, name) if text else None
        if path is None or not paths.is_local(path):
            continue
        try:
            str(path.absolute()).encode(_codec(encoding) or "utf-8")
        except UnicodeEncodeError:
            raise ConfigError(f"{name} = {path.absolute()}: Java cannot use this path, because "
                              f"{locale_problem(encoding)}") from None


def submitting_java_encoding() -> str | None:
    """Encoding of file names in the Java of spark-submit; None if that did not start this process."""
    if SUBMITTED not in os.environ:
        return None
    from pyspark import SparkContext

    SparkContext._ensure_initialized()
    return SparkContext._jvm.java.lang.System.getProperty(_ENCODING)


def locale_problem(encoding: str, variables: Mapping[str, str] = os.environ) -> str:
    """Words that name the locale, its encoding and the fix."""
    names = ["LC_ALL", "LC_CTYPE", "LANG"]
    if variables.get("LC_CTYPE") == _UTF8:  # Python itself sets it where no locale is set (PEP 538)
        names.remove("LC_CTYPE")
    named = next((f"{name}={variables[name]}" for name in names if variables.get(name)),
                 "neither LC_ALL nor LANG is set")
    utf8 = "" if variables.get("PYTHONUTF8", "1") == "1" else ", and unset PYTHONUTF8"
    return (f"the encoding of the locale ({named}) is {encoding}: set LC_ALL={_UTF8}, or another UTF-8 "
            f"locale of `locale -a`{utf8}")


def _codec(name: str) -> str | None:
    try:
        return codecs.lookup(name).name
    except LookupError:
        return None
