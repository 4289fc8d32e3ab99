"""Rows that take for ever: ended by a limit of their own, or with their worker, and nobody else is lost."""

import json
import shutil
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from socket import gethostname
from types import SimpleNamespace

import pyarrow as pa
import pytest
import torch
from shard_helpers import committed, prepared, prompt, write

from dare_job.decode.engine import engine
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.errors import DeviceError, InfrastructureError
from dare_job.generate import baseline, hangs, loading, shard_plan
from dare_job.generate import hangs as generate_hangs
from dare_job.generate.hangs import EXIT_CODE, Watchdog
from dare_job.generate.task import Task
from dare_job.models import embedded_path
from dare_job.stages import generate

PROMPTS = {f"u{n:02d}": prompt(n) for n in range(14)}
MARK = "Zorgon"  # in the prompts that the sleepy model hangs on
SLEEPY = '''
import time

import torch
from transformers import LlamaForCausalLM


class SleepyLlama(LlamaForCausalLM):
    """Never answers a forward that holds the marked prompt."""

    def forward(self, input_ids=None, **kwargs):
        mark = torch.tensor({mark})
        windows = input_ids.unfold(1, len(mark), 1) if input_ids.shape[1] >= len(mark) else None
        if windows is not None and bool((windows == mark).all(-1).any()):
            time.sleep(3600)
        return super().forward(input_ids=input_ids, **kwargs)
'''


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """What the rows say where nothing is late."""
    rows = write(prepared(tmp_path_factory.mktemp("in-time")), PROMPTS)
    return {name: row["token_ids"] for name, row in rows.items()}


def test_a_row_that_makes_its_batch_late_is_found_out_alone(tmp_path, monkeypatch, texts):
    """By a clock of the test's own: a second a forward, and 0.01 s where the row is not there."""
    forward, now = Engine._forward, [0.0]

    def slow(self, *args):
        now[0] += 1 if "u05" in self.active_ids() else 0.01
        return forward(self, *args)

    monkeypatch.setattr(Engine, "_forward", slow)
    monkeypatch.setattr(engine, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    rows = write(prepared(tmp_path, row_timeout_s=3.5), PROMPTS)
    assert sorted(rows) == sorted(PROMPTS) and rows["u05"]["finish_reason"] == "error"
    assert "timed out after" in rows["u05"]["error"] and "decode.row_timeout_s = 3.5" in rows["u05"]["error"]
    assert {name: row["token_ids"] for name, row in rows.items() if not row["error"]} == {
        name: ids for name, ids in texts.items() if name != "u05"}


def test_rows_on_which_a_worker_hung_come_alone_and_last_and_are_given_up_after_two(
        tmp_path, monkeypatch, texts):
    task = prepared(tmp_path)
    hangs.record_hang(task, 0, "here:1", ["u01", "u02"], "the first")
    hangs.record_hang(task, 0, "here:2", ["u02"], "the last")
    hangs.record_hang(task, 1, "here:3", ["u03"], "")  # another shard
    hangs.record_hang(replace(task, plan_token="cut-0"), 0, "here:4", ["u01"], "")  # an earlier plan
    assert hangs.hang_reasons(task, 0) == {"u01": ["the first"], "u02": ["the first", "the last"]}
    assert hangs.hang_count(tmp_path, task.plan_token) == 3
    batches = []
    run = Engine.run

    def watched(self, requests):
        for result in run(self, requests):
            batches.append((self.settings.batch_size, result.id))
            yield result

    monkeypatch.setattr(Engine, "run", watched)
    rows = write(task, PROMPTS)
    assert batches[-1] == (1, "u01") and Counter(size for size, _ in batches) == {4: 12, 1: 1}
    assert rows["u02"]["error"] == "ended 2 workers, the last with this row alone: the last"
    assert not rows["u01"]["error"]
    assert {name: row["token_ids"] for name, row in rows.items() if name != "u02"} == {
        name: ids for name, ids in texts.items() if name != "u02"}


def test_chunks_of_an_earlier_attempt_are_not_written_again(tmp_path):
    task = prepared(tmp_path)
    before = write(task, PROMPTS)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("entity=user/*")}
    lost = sorted(times)[1]
    lost.unlink()
    assert write(task, PROMPTS).keys() == before.keys()
    assert {path: path.stat().st_mtime_ns for path in times if path != lost} == {
        path: at for path, at in times.items() if path != lost}


@pytest.mark.parametrize("error", [
    torch.AcceleratorError("CUDA error: device-side assert triggered\nCUDA kernel errors might be ..."),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx")],
    ids=["context lost", "cublas"])
def test_a_device_that_fails_over_a_row_fails_the_task_and_at_last_costs_that_row(
        tmp_path, monkeypatch, texts, error):
    """Each attempt is a process of its own in Spark, for which a device that has failed is of no more use."""
    task, forward = prepared(tmp_path), Engine._forward

    def failing(self, *args):
        if "u05" in self.active_ids():
            raise error
        return forward(self, *args)

    monkeypatch.setattr(Engine, "_forward", failing)
    for attempt in (1, 2):
        with pytest.raises(DeviceError, match=f"^{gethostname()}: the device failed: .*CUDA error: [^\n]*$"):
            write(task, PROMPTS)
        assert hangs.hang_count(tmp_path, task.plan_token) == attempt
    assert [len(whys) for whys in hangs.hang_reasons(task, 0).values() if len(whys) > 1] == [2]
    rows = write(task, PROMPTS)
    assert "ended 2 workers, the last with this row alone: " in rows["u05"]["error"]
    assert "the device failed: " in rows["u05"]["error"]
    assert {name: row["token_ids"] for name, row in rows.items() if not row["error"]} == {
        name: ids for name, ids in texts.items() if name != "u05"}


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
                                   torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")])
def test_a_model_that_does_not_get_on_its_device_is_the_hosts_fault(tmp_path, monkeypatch, error):
    def fail(*args, **options):
        raise error

    monkeypatch.setattr(Target, "load", fail)
    loading._load.cache_clear()
    with pytest.raises(InfrastructureError, match=f"the device failed: .*{error}; give each task"):
        write(prepared(tmp_path), PROMPTS)


class Slow:
    """An engine whose results take their time; its clock stands still meanwhile."""

    clock_s = 0.0

    def active_ids(self):
        return ["a", "b"]

    def run(self, seconds, steps=0):
        for wait in seconds:
            for _ in range(steps):
                time.sleep(0.1)
                self.clock_s += 0.1
            time.sleep(wait)
            yield wait


@pytest.mark.parametrize(("seconds", "steps", "bites"), [
    ([0.1] * 6, 0, False), ([0.0], 8, False), ([0.1, 0.9, 0.1], 0, True)],
    ids=["results come", "steps end", "nothing ends"])
def test_the_watchdog_ends_the_process_where_nothing_ends(job_log, seconds, steps, bites):
    noted, ended, engine = [], [], Slow()
    dog = Watchdog(0.4, lambda *arguments: noted.append(arguments), ended.append)
    with dog.running():
        for _ in dog.watch(engine, engine.run(seconds, steps)):
            time.sleep(0.02)
    assert ended == [EXIT_CODE] * bites
    assert noted == [(["a", "b"], "no forward pass finished within 0.4 s (decode.hang_timeout_s)")] * bites
    assert [("no forward pass has finished for" in line, line.endswith("being decoded: a, b"))
            for line in job_log] == [(True, True)] * bites


def test_the_watchdog_waits_for_rows_and_for_readers():
    ended, engine = [], Slow()
    dog = Watchdog(0.3, lambda *arguments: ended.append(arguments), ended.append)

    def results():
        with dog.paused():
            time.sleep(0.7)  # Spark has no rows yet
        yield 1

    with dog.running():
        for _ in dog.watch(engine, results()):
            time.sleep(0.7)
    assert not ended


@pytest.fixture
def sleepy(tmp_path, monkeypatch):
    """Folder of the embedded model in a class that sleeps over a marked prompt."""
    from transformers import AutoTokenizer

    folder = shutil.copytree(embedded_path(), tmp_path / "sleepy")
    mark = AutoTokenizer.from_pretrained(folder)(f" {MARK}", add_special_tokens=False)["input_ids"]
    (folder / "sleepy.py").write_text(SLEEPY.replace("{mark}", str(mark)))
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "sleepy.SleepyLlama"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def cut_of(make_job):
    """Factory: a cut of one shard of these prompts, its job and its task; four rows at once and a chunk."""
    def make(prompts: dict[str, str], hang_timeout_s: float = 4, **model):
        job = make_job({
            "model": model, "waves": {"when": "never"},
            "decode": {"max_new_tokens": 20, "min_new_tokens": 20, "batch_size": 4, "nodes": 4,
                       "hang_timeout_s": hang_timeout_s},
            "spark": {"rows_per_commit": 4, "shards": 1}, "baseline": {"rows": 4}})
        columns = ("entity string, entity_id string, prompt string, prompt_sha256 string, text_key string, "
                   "error string, pool string, pool_kind string, own_ids array<int>, strict boolean, "
                   "rank int")
        rows = [("user", name, words, "s", "k", None, "global", "global", None, False, 0)
                for name, words in prompts.items()]
        work = shard_plan.load_or_create(job, "f", lambda limit: job.spark.createDataFrame(rows, columns))
        return job, work, Task.of(job, "", work.token)
    return make


@pytest.mark.spark
@pytest.mark.parametrize("late", [
    pytest.param(["u05"], id="one", marks=pytest.mark.release),
    pytest.param(["u01", "u09"], id="two batches", marks=pytest.mark.release),
    pytest.param(["u04", "u05", "u06"], id="three of a batch", marks=pytest.mark.release)])
def test_a_forward_that_never_ends_costs_its_worker_and_its_row_and_nobody_else(
        cut_of, sleepy, texts, late):
    """More than one row ends more attempts than Spark allows (spark.task.maxFailures is 4)."""
    prompts = {name: PROMPTS[name] for name in sorted(PROMPTS)[:10]}
    for name in late:
        prompts[name] = prompts[name].replace(f"User {int(name[1:])}", f"User of {MARK}")
    job, work, task = cut_of(prompts, name=str(sleepy), trust_remote_code=True)
    generate._write_wave(job, work, 1, task)

    written = committed(task)
    assert sorted(written) == sorted(prompts)
    assert [name for name, row in sorted(written.items()) if row["error"]] == late
    given_up = "ended 2 workers, the last with this row alone: no forward pass finished within 4 s"
    assert all(given_up in written[name]["error"] for name in late)
    assert {name: row["token_ids"] for name, row in written.items() if not row["error"]} == {
        name: ids for name, ids in texts.items() if name in prompts and name not in late}
    found = [json.loads(path.read_text())["ids"] for path in (work.folder / hangs.FOLDER).glob("*.json")]
    assert sorted(map(len, found))[0] == 1 and all(set(ids) & set(late) for ids in found)
    assert len(found) == hangs.hang_count(work.folder, work.token)
    assert all(sum(name in ids for ids in found) == 2 for name in late)


@pytest.mark.slow
@pytest.mark.spark
def test_a_device_that_always_hangs_ends_the_run(cut_of, monkeypatch, job_log):
    def hang(batches, task):
        import os

        from dare_job.generate import hangs

        hangs.record_hang(task, 0, "here:1", [], "")
        os._exit(75)
        yield

    job, work, task = cut_of({"u00": PROMPTS["u00"]})
    monkeypatch.setattr(hangs, "MAX_SHARD_HANGS", 8)
    monkeypatch.setattr(generate, "write_shard", hang)
    with pytest.raises(InfrastructureError, match="Spark lost .* Python workers .* run it again"):
        generate._write_wave(job, work, 1, task)
    count = hangs.hang_count(work.folder, work.token)
    assert hangs.MAX_SHARD_HANGS <= count < hangs.MAX_SHARD_HANGS + 4  # Spark's tries
    assert sum(" failed 4 times; retrying the remaining rows" in line for line in job_log) == 1


@pytest.mark.slow
@pytest.mark.spark
def test_what_fails_without_a_hang_has_the_tries_of_spark_and_no_more(cut_of, monkeypatch, tmp_path):
    faults = {"infrastructure": "^host-7 has lost its GPU$", "device": "^host-7: the device failed$",
              "killed": "Spark lost .* Python workers", "program": "ZeroDivisionError"}

    def fail(batches, task):
        import os

        from dare_job.errors import DeviceError, InfrastructureError

        with open(tries, "a") as file:
            file.write(fault + "\n")
        if fault == "infrastructure":
            raise InfrastructureError("host-7 has lost its GPU")
        if fault == "device":
            raise DeviceError("host-7: the device failed", ["u00"])
        if fault == "killed":
            os.kill(os.getpid(), 9)
        yield 1 / 0

    tries = str(tmp_path / "tries")
    job, work, task = cut_of({"u00": PROMPTS["u00"]})
    hangs.record_hang(task, 0, "here:1", ["u00"], "")  # of the run before
    monkeypatch.setattr(generate, "write_shard", fail)
    for fault, message in faults.items():
        with pytest.raises(Exception, match=message) as found:
            generate._write_wave(job, work, 1, task)
        assert isinstance(found.value, InfrastructureError) == (fault != "program"), fault
    assert Counter(Path(tries).read_text().split()) == dict.fromkeys(faults, 4)


@pytest.mark.parametrize(("method", "wait_s", "bites"), [
    ("engine", 1.5, True), ("generate", 0.1, False),
    *(pytest.param(*each, marks=pytest.mark.release) for each in (
        ("engine", 0.1, False), ("generate", 1.5, True)))])
def test_the_baseline_is_watched_while_it_decodes(tmp_path, monkeypatch, method, wait_s, bites):
    """Of either method; the process would end at the first bite."""
    task, ended = prepared(tmp_path, hang_timeout_s=0.8, max_new_tokens=12, min_new_tokens=12), []
    monkeypatch.setattr(generate_hangs, "Watchdog", partial(Watchdog, end=ended.append))
    monkeypatch.setattr(baseline, {"engine": "_by_generate", "generate": "_by_engine"}[method],
                        lambda requests, task, dog: 1)
    target = loading.load_task_model(task).target

    def slowed(forward):
        def slow(*args, **options):
            time.sleep(wait_s if not ended else 0)
            return forward(*args, **options)

        return slow

    if method == "engine":
        monkeypatch.setattr(target, "_forward", slowed(target._forward))
    else:
        monkeypatch.setattr(target.model.model, "forward", slowed(target.model.model.forward))
    rows = pa.Table.from_pylist([{"entity": "user", "entity_id": "u00", "prompt": PROMPTS["u00"]}])
    stats = pa.Table.from_batches(baseline.decode_baseline(rows.to_batches(), task)).to_pylist()
    assert {row["method"]: row["tokens"] for row in stats}[method] == 12
    assert ended == [EXIT_CODE] * bites and hangs.hang_count(tmp_path, task.plan_token) == bites
    if bites:
        with pytest.raises(InfrastructureError, match="no forward pass finished within 0.8 s"):
            list(baseline.decode_baseline(rows.to_batches(), task))


@pytest.mark.slow
@pytest.mark.spark
def test_a_baseline_that_hangs_is_tried_once_and_costs_no_night(cut_of, sleepy, monkeypatch, job_log):
    job, work, _ = cut_of({"u00": PROMPTS["u00"]}, name=str(sleepy), trust_remote_code=True)
    rows = [("user", f"u{n:02d}", f"User of {MARK} {n}.") for n in range(4)]
    monkeypatch.setattr(baseline, "_generated", lambda job, cut: job.spark.createDataFrame(
        rows, "entity string, entity_id string, prompt string"))
    assert baseline.measure_baseline(job, work, 1)["measured"] is None
    assert baseline.measure_baseline(job, work, 1)["measured"] is None  # and is not tried again
    (line,) = [line for line in job_log if "no baseline" in line]
    assert line.endswith("no forward pass finished within 4 s (decode.hang_timeout_s)")
    assert len(list((work.folder / hangs.FOLDER).glob("*.json"))) == 1
    assert hangs.hang_count(work.folder, work.token) == 0  # of the rows
