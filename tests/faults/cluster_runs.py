"""`dare-job run`, or one stage, on Spark's local-cluster, and SIGKILL for its processes.

Driver (Python and Java), two executors (Java) and their Python workers are processes of their own there.
"""

import contextlib
import os
import random
import re
import signal
import threading
import time
from pathlib import Path

import psutil
import pyarrow.dataset as ds
import quick_java
from fault_nights import (
    BEFORE,
    NIGHT,
    PATIENCE_S,
    ROOT,
    STAGES,
    committed,
    last_line,
    popen,
    require_whole,
    texts,
)

from dare_job.schemas import ENTITIES
from dare_job.spark.session import QUICK_START
from dare_job.storage import lease, lock

_JAVA = " ".join(word for word in quick_java.options().split() if not word.startswith("-Dspark."))
CLUSTER = {"master": "local-cluster[2,1,512]", "conf": {
    "spark.driver.memory": "512m",
    "spark.executorEnv.PYTHONPATH": str(ROOT), "spark.executor.memory": "512m", "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2", "spark.driver.extraJavaOptions": QUICK_START,
    "spark.executor.extraJavaOptions": _JAVA, "spark.driver.host": "127.0.0.1"}}
_LOOK_S = 0.02


class Run:
    """A run, or a stage of it, under way: its processes, and how far it is."""

    def __init__(self, options: list[str], out: Path):
        self._work = out / "_work" / f"dt={NIGHT}"
        self.process = popen("run", *options)
        self._said: list[str] = []
        self._reader = threading.Thread(target=lambda: self._said.append(self.process.stderr.read()))
        self._reader.start()
        self.seen: set[psutil.Process] = set()

    def ended(self) -> tuple[int, str]:
        """Wait for its end: exit code, standard error."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join(60)
        return code, "".join(self._said)

    def wait_for(self, reached) -> None:
        """Until ``reached()`` is true; AssertionError where the run ends before."""
        deadline = time.monotonic() + PATIENCE_S
        while not reached():
            assert self.process.poll() is None, f"the run ended too early: {self.ended()}"
            assert time.monotonic() < deadline, "the run got no further"
            time.sleep(_LOOK_S)

    def holds_lock(self) -> bool:
        return lease.read_owner(self._work / lock.NAME).get("pid") == self.process.pid

    def has_begun(self, stage: str) -> bool:
        """True from a stage's first moment on: the one before is finished."""
        if stage == "plan":
            return (self._work / "_lock").exists()
        return self.is_done(STAGES[STAGES.index(stage) - 1])

    def is_done(self, stage: str) -> bool:
        return (self._work / stage / "_done.json").exists()

    def chunks(self) -> int:
        return sum(1 for _ in self._work.glob("generate/entity=*/part-*.parquet"))

    def processes(self, kind: str) -> list[psutil.Process]:
        """Living processes of a kind: "python" and "java" of the driver, "executor", "worker"."""
        found = {"python": [], "java": [], "executor": [], "worker": []}
        with contextlib.suppress(psutil.Error):
            found["python"] = [psutil.Process(self.process.pid)]
            for process in found["python"][0].children(recursive=True):
                self.seen.add(process)
                with contextlib.suppress(psutil.Error):
                    found.get(_kind(process), []).append(process)
        return found[kind]


def _kind(process: psutil.Process) -> str:
    line, parents = (" ".join(found.cmdline()) for found in (process, process.parent()))
    if "pyspark.daemon" in line:
        return "worker" if "pyspark.daemon" in parents else "other"
    if line == parents:  # Java starts a program, and is a copy of itself for a moment
        return "other"
    if "CoarseGrainedExecutorBackend" in line:
        return "executor"
    return "java" if "SparkSubmit" in line else "other"


def kill(run: Run, kind: str, stage: str, chance: random.Random, seconds: dict[str, float]) -> str:
    """SIGKILL a process of a kind at a random moment of a stage; says what was done.

    kind     "driver" (its Python, its Java or both), "executor" or "worker"
    seconds  how long each stage takes where nothing disturbs it
    """
    run.wait_for(lambda: run.has_begun(stage))
    if stage == "generate":
        at = run.chunks() + chance.randint(0, 3)
        run.wait_for(lambda: run.chunks() >= at or run.is_done(stage))
    else:
        over = time.monotonic() + chance.random() * seconds[stage]
        run.wait_for(lambda: time.monotonic() > over or run.is_done(stage))
    kinds = chance.choice((["python"], ["java"], ["python", "java"])) if kind == "driver" else [kind]
    kill_now(run, kinds, chance)
    return f"{'+'.join(kinds)} in {stage}, {run.chunks()} chunks"


def kill_now(run: Run, kinds: list[str], chance: random.Random) -> None:
    """SIGKILL a process of each kind, as soon as there is one."""
    run.wait_for(lambda: _killed([run.processes(name) for name in kinds], chance))


def _killed(kinds: list[list[psutil.Process]], chance: random.Random) -> bool:
    """SIGKILL for one process of each kind; false where there is none, or it had ended by itself."""
    killed = False
    for victim in [chance.choice(found) for found in kinds] if all(kinds) else []:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGKILL)
            killed = True
    return killed


class Watch:
    """Reads the published dates all the time, as a consumer would; ``wrong`` says what it should not see."""

    def __init__(self, out: Path, undisturbed: Path):
        self._out = out
        self._before, self._night = texts(out, BEFORE), set(texts(undisturbed, NIGHT))
        self.reads, self.wrong = 0, None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.is_set() and self.wrong is None:
            try:
                self._read()
            except Exception as error:  # told by the test, with the seed
                self.wrong = repr(error)
            time.sleep(0.05)

    def _read(self) -> None:
        assert texts(self._out, BEFORE) == self._before, "the date before has changed"
        for entity in ENTITIES:
            folder = self._out / "knowledge" / f"entity={entity}" / f"dt={NIGHT}"
            if folder.exists():
                ids = ds.dataset(folder).to_table(columns=["entity_id"])["entity_id"].to_pylist()
                assert sorted(ids) == sorted(name for kind, name in self._night if kind == entity), ids
        self.reads += 1


def play(options: list[str], out: Path, undisturbed: Path, seed: int, seconds: dict[str, float], dare_job,
         *runs: tuple[tuple[str, str], ...]) -> list[str]:
    """One run after the other, each with its kills (kind, stage), and a last one in this process to its end.

    While a run writes, another one is refused. Checks all the while, and at the end, that nothing is lost,
    doubled or written again. Returns what was killed. Fails with the seed in its message.
    """
    chance, done, kept = random.Random(seed), [], {}
    killed: set[psutil.Process] = set()
    try:
        with Watch(out, undisturbed) as watch:
            for kills in runs:
                run = Run(options, out)
                run.wait_for(run.holds_lock)
                require_refused(run, dare_job("run", *options))
                for kind, stage in kills:
                    done.append(kill(run, kind, stage, chance, seconds))
                    kept = _grown(kept, out)
                    run.processes("worker")
                code, said = run.ended()
                killed |= run.seen
                _check_end(code, said, kills, done)
                kept = _grown(kept, out)
            taken_over = code == -signal.SIGKILL
            code, said = dare_job("run", *options)
            assert code == 0, said[-5000:]
            assert not taken_over or f"from process {run.process.pid} on " in " ".join(said.split()), said
            kept = _grown(kept, out)
        assert watch.wrong is None and watch.reads > 10, watch.wrong
        assert psutil.wait_procs(list(killed), timeout=120)[1] == [], "processes were left behind"
        require_whole(out, undisturbed)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, killed so far: {done}: {error}") from error
    return done


def require_refused(run: Run, ended: tuple[int, str]) -> None:
    """Fail unless another command of the same date ended because ``run`` writes it, and ``run`` goes on."""
    code, said = ended
    assert code == 5, said
    assert f"another command writes this date (process {run.process.pid}" in last_line(said), said
    assert run.process.poll() is None, "the run was disturbed"


def _grown(kept: dict, out: Path) -> dict:
    """What is committed by now; fails where some of it is gone or was written again."""
    found = committed(out)
    assert found.items() >= kept.items(), f"written again: {sorted(kept.items() - found.items())}"
    return found


def _check_end(code: int, said: str, kills, done: list[str]) -> None:
    """A run without a killed driver ends well; one whose Java alone was killed says so in a line."""
    if not any(kind == "driver" for kind, _ in kills):
        assert code == 0, said[-5000:]
    elif done[-1].startswith("java in publish") and code == 0:
        assert "texts generated for" in said, said[-5000:]  # publish needed Java no more
    elif done[-1].startswith("java in"):
        lines = [line for line in said.splitlines() if line.startswith("dare-job: ")]
        assert code == 5 and len(lines) == 1, (code, said[-5000:])
        assert re.search("run (it|the command) again", lines[0]), lines  # command: without Spark
    else:
        assert code == -signal.SIGKILL, (code, said[-5000:])
