"""How many rows this worker process decodes at once: as many as asked for, until its memory was short."""

import logging

from dare_job.spark.task import Task

_LOG = logging.getLogger("dare_job")
_sizes: dict[tuple, int] = {}  # where they are not as asked for


def of(task: Task) -> int:
    """Rows at once, now."""
    return _sizes.get(_key(task), task.config.decode.batch_size)


def halve(task: Task) -> bool:
    """Half as many from now on, for the rest of this run; False where it is one row already."""
    size = of(task)
    if size == 1:
        return False
    set_to(task, size // 2)
    _LOG.warning("memory is too short for %d rows at once (decode.batch_size): this worker goes on with %d",
                 size, size // 2)
    return True


def set_to(task: Task, size: int) -> None:
    _sizes[_key(task)] = size


def _key(task: Task) -> tuple:
    return task.run_id, task.folder, task.model, task.config.decode.batch_size
