"""Spark's Python daemon with the modules of the tasks loaded, so that its workers start at once.

Spark forks Python workers from a daemon that has loaded nothing. So each new worker, such as the one of the
next attempt at a failed task, loads torch, transformers and the engine itself: seconds of CPU time.
As a script with the argument ``compile`` this file only fills the kernels' cache.
"""

import fcntl
import os
import sys
from pathlib import Path


def load() -> None:
    """Import what this daemon's tasks import; ``spark.workers`` names their kind in the environment."""
    import pyarrow.dataset  # noqa: F401
    import pyspark.worker  # noqa: F401

    import dare_job.data.render
    import dare_job.generate.previous_text  # noqa: F401

    kind = os.environ.get("DARE_JOB_WORKERS")
    if kind == "encoder":
        import dare_job.publish.features.encoder  # noqa: F401
    elif kind:
        import dare_job.generate.worker
        import dare_job.recommend.rows  # noqa: F401

        compile_kernels()


def compile_kernels() -> None:
    """Decode once. One process at a time, so that the others find the compiled kernels in the cache."""
    with open(Path(sys.prefix) / "kernels.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        from dare_job.generate.loading import warm_up

        warm_up()


if __name__ == "__main__":
    if sys.argv[1:] == ["compile"]:
        compile_kernels()
    else:
        from pyspark.daemon import manager

        load()
        manager()
