"""Spark's Python daemon with the modules of the tasks loaded, so that its workers start at once.

Spark forks Python workers from a daemon that has loaded nothing. So each new worker, such as the one of the
next attempt at a failed task, loads torch, transformers and the engine itself: seconds of CPU time.
"""

import os

import pyarrow.dataset  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager


def load() -> None:
    """Import what this daemon's tasks import; ``spark.workers`` names their kind in the environment."""
    import dare_job.data.render
    import dare_job.generate.previous_text  # noqa: F401

    kind = os.environ.get("DARE_JOB_WORKERS")
    if kind == "encoder":
        import dare_job.publish.features.encoder  # noqa: F401
    elif kind:
        import dare_job.generate.worker
        import dare_job.recommend.rows  # noqa: F401
        from dare_job.decode.draft.warm_up import warm_up

        warm_up()


if __name__ == "__main__":
    load()
    manager()
