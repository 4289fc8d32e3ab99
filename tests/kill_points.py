"""Runs a function in a separate process that SIGKILLs its process group just before it changes a file of a
folder.

Every change is a kill point: creating, opening for writing, syncing, renaming, exchanging, removing, and a
table write of Spark. A point is selected by its number in an undisturbed run or by a pattern of its label.
"""

import multiprocessing
import os
import re
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([
    "dare_job.cli", "dare_job.pipeline", "dare_job.stages.generate", "dare_job.stages.publish", "faiss",
    "dare_job.publish.report.page", "pytest", "yaml",
    *(f"dare_job.stages.{stage}" for stage in ("plan", "embed", "group", "route", "pools"))])
_EVENTS = {"open": "open", "os.mkdir": "mkdir", "os.rename": "rename", "os.link": "link",
           "os.remove": "remove", "os.rmdir": "rmdir"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def undisturbed(root: Path, function, *arguments, copies: Path | None = None) -> list[str]:
    """Run to the end and return the labels of all points below ``root``, in order.

    copies : folder for copies of ``root`` as a kill at each point would leave it, named 0, 1, ...
    """
    ours, theirs = _CONTEXT.Pipe(duplex=False)
    process = _process(theirs, root, None, function, arguments, copies)
    theirs.close()
    with suppress(EOFError):  # the process failed; pytest shows its standard error
        labels = ours.recv()
    process.join()
    assert process.exitcode == 0
    return labels


def killed(at: int | str, root: Path, function, *arguments) -> int:
    """Run up to a point, SIGKILL, and return the process id."""
    process = _process(None, root, at, function, arguments)
    process.join()
    assert process.exitcode == -signal.SIGKILL, f"{at}: not reached"
    return process.pid


def _process(*arguments):
    process = _CONTEXT.Process(target=_child, args=arguments)
    process.start()
    return process


def _child(answer, root: Path, at, function, arguments, copies: Path | None = None) -> None:
    os.setpgid(0, 0)
    points = Points(root, at, copies)
    points.watch()
    function(*arguments)
    if answer:
        answer.send(points.reached)
    os._exit(0 if at is None else 1)


class Points:
    """Counts the points below a folder; kills at one of them, or copies the folder at each."""

    def __init__(self, root: Path, at: int | str | None, copies: Path | None = None):
        self.reached: list[str] = []
        self._root, self._at, self._copies = f"{root}/", at, copies

    def reach(self, event: str, *paths: str) -> None:
        if not paths[0].startswith(self._root):
            return
        label = f"{event} {' -> '.join(path.removeprefix(self._root) for path in paths)}"
        if self._at == len(self.reached) or (isinstance(self._at, str) and re.search(self._at, label)):
            os.killpg(0, signal.SIGKILL)
        if self._copies:
            shutil.copytree(self._root, self._copies / str(len(self.reached)))
        self.reached.append(label)

    def watch(self) -> None:
        """Install the hooks in this process."""
        from pyspark.sql import DataFrameWriter

        from dare_job.storage import atomic_folder

        exchange, write = atomic_folder._exchange, DataFrameWriter.parquet

        def exchanging(one: Path, other: Path) -> bool:
            self.reach("exchange", str(one), str(other))
            return exchange(one, other)

        def writing(writer, path: str, *arguments, **options) -> None:
            self.reach("spark", path.removeprefix("file://"))
            write(writer, path, *arguments, **options)

        def syncing(file: int) -> None:  # a killed process keeps its writes even without a sync
            self.reach("sync", os.readlink(f"/proc/self/fd/{file}"))

        atomic_folder._exchange, DataFrameWriter.parquet, os.fsync = exchanging, writing, syncing
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple) -> None:
        if event not in _EVENTS or (event == "open" and not (arguments[2] or 0) & _WRITING):
            return
        named = arguments[:2] if event in ("os.rename", "os.link") else arguments[:1]
        if isinstance(named[0], int):
            return
        folder = arguments[-1] if event in ("os.remove", "os.rmdir") and arguments[-1] >= 0 else None
        base = os.readlink(f"/proc/self/fd/{folder}") if folder is not None else os.getcwd()
        self.reach(_EVENTS[event], *(os.path.join(base, os.fsdecode(name)) for name in named))
