"""Runs a command and samples what its whole tree of processes takes: wall and processor time, memory."""

import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_EVERY_S = 0.25  # between two samples at least
_SHARE = 0.02  # of all time that samples may take: for one the kernel walks through a process's memory
_MIB = 1 << 20


@dataclass
class Cost:
    """What a tree of processes took.

    memory_mib  peak of all proportional set sizes: a shared page is counted once; java_mib and python_mib are
                the peaks of the parts, which need not be at the same time
    cpu_s       without what a process did after its last sample; java_cpu_s is Java's part
    """

    seconds: float = 0.0
    cpu_s: float = 0.0
    java_cpu_s: float = 0.0
    memory_mib: int = 0
    java_mib: int = 0
    python_mib: int = 0
    _cpu: dict[tuple[int, float, bool], float] = field(default_factory=dict, repr=False)

    def take(self, root: psutil.Process) -> None:
        """Add a sample of the tree below ``root``; processes that end meanwhile are left out."""
        java = other = 0
        for process in [root, *_children(root)]:
            try:
                is_java = process.name() == "java"
                key = (process.pid, process.create_time(), is_java)
                self._cpu[key] = sum(process.cpu_times()[:2])
                memory = process.memory_full_info().pss
            except (psutil.Error, OSError):
                continue
            java, other = java + memory * is_java, other + memory * (not is_java)
        self.cpu_s = round(sum(self._cpu.values()), 2)
        self.java_cpu_s = round(sum(spent for (_, _, is_java), spent in self._cpu.items() if is_java), 2)
        self.memory_mib = max(self.memory_mib, (java + other) // _MIB)
        self.java_mib, self.python_mib = max(self.java_mib, java // _MIB), max(self.python_mib, other // _MIB)

    def record(self) -> dict:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}


def _children(root: psutil.Process) -> list[psutil.Process]:
    try:
        return root.children(recursive=True)
    except psutil.Error:
        return []


def run(command: Sequence[str], log: Path, env: dict[str, str]) -> tuple[Cost, int, str]:
    """Run a command with its standard error in ``log``; its cost, exit code and standard output."""
    cost, began = Cost(), time.perf_counter()
    with open(log, "wb") as errors, tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=env)
        try:
            root = psutil.Process(process.pid)
            while process.poll() is None:
                sampled = time.perf_counter()
                cost.take(root)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(_EVERY_S, (time.perf_counter() - sampled) / _SHARE))
        except BaseException:
            process.terminate()
            process.wait()
            raise
        cost.seconds = round(time.perf_counter() - began, 2)
        output.seek(0)
        return cost, process.returncode, output.read()
