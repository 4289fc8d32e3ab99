"""Java that starts quickly: no second compiler, and Spark's classes from an archive (JEP 350).

Most of what the tests wait for is Java reading and checking the same classes again. The archive is made
once, in the virtual environment, by a small run of Spark; it takes about 40 % off a start's processor time.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pyspark

from dare_job.config.settings import SparkSettings
from dare_job.spark.session import QUICK_START, require_java, session

_VARIABLES = ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS")  # of drivers, and of masters and workers


def options() -> str:
    """What Java is to be told, the archive among it once it is made."""
    archive = _archive()
    return f"{QUICK_START} -XX:SharedArchiveFile={archive}" if archive.exists() else QUICK_START


def use() -> None:
    """Have every Spark that this process and its children start use the archive; make it where needed."""
    archive = _archive()
    with open(archive.with_suffix(".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not archive.exists():
            unfinished = archive.with_suffix(".unfinished")
            variables = {**os.environ, "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={unfinished}"}
            # Java writes the archive when it ends, after Python: the pipes are open until then.
            subprocess.run([sys.executable, __file__], env=variables, check=True, capture_output=True,
                           timeout=600)
            unfinished.rename(archive)
    os.environ.update(dict.fromkeys(_VARIABLES, options()))


@lru_cache
def _archive() -> Path:
    """An archive fits one Java, and one Spark in one place."""
    java = subprocess.run([require_java(), "-version"], capture_output=True).stderr
    fits = hashlib.sha256(java + f"{pyspark.__file__} {pyspark.__version__}".encode()).hexdigest()[:12]
    return Path(sys.prefix) / f"spark-{fits}.jsa"


def _run_spark() -> None:
    """What a stage does of Spark: tables read and written, an aggregate, a join, Python, a sort."""
    import tempfile

    spark = session(SparkSettings(master="local[2]", conf={"spark.driver.memory": "1g"}))
    with tempfile.TemporaryDirectory() as folder:
        rows = spark.createDataFrame([(number, "x") for number in range(100)], "a long, b string")
        rows.write.parquet(f"{folder}/rows")
        rows = spark.read.parquet(f"{folder}/rows")
        joined = rows.groupBy("b").count().join(rows.groupBy("b").max("a"), "b")
        joined.write.partitionBy("b").parquet(f"{folder}/joined")
        assert len(rows.mapInArrow(lambda batches: batches, rows.schema).orderBy("a").toPandas()) == 100


if __name__ == "__main__":
    _run_spark()
