"""Rows that take for ever: ended by a limit of their own, or with their worker, and nobody else is lost."""

import json
import shutil
import time
from collections import Counter
from dataclasses import replace

import pytest
from shard_helpers import committed, prepared, prompt, write

from dare_job.decode import Engine
from dare_job.model import embedded_path
from dare_job.spark import cut, hangs
from dare_job.spark.task import Task
from dare_job.spark.watchdog import EXIT_CODE, Watchdog
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
    forward = Engine._forward

    def slow(self, *args):
        if "u05" in self.in_slots():
            time.sleep(0.3)
        return forward(self, *args)

    monkeypatch.setattr(Engine, "_forward", slow)
    rows = write(prepared(tmp_path, row_timeout_s=0.9), PROMPTS)
    assert sorted(rows) == sorted(PROMPTS) and rows["u05"]["finish_reason"] == "error"
    assert "timed out after" in rows["u05"]["error"] and "decode.row_timeout_s = 0.9" in rows["u05"]["error"]
    assert {name: row["token_ids"] for name, row in rows.items() if not row["error"]} == {
        name: ids for name, ids in texts.items() if name != "u05"}


def test_rows_on_which_a_worker_hung_come_alone_and_last_and_are_given_up_after_two(
        tmp_path, monkeypatch, texts):
    task = prepared(tmp_path)
    hangs.note(task, 0, ["u01", "u02"], "here:1")
    hangs.note(task, 0, ["u02"], "here:2")
    hangs.note(task, 1, ["u03"], "here:3")  # another shard
    hangs.note(replace(task, cut="cut-0"), 0, ["u01"], "here:4")  # an earlier cut
    assert hangs.times(task, 0) == Counter(u01=1, u02=2) and hangs.count(tmp_path, task.cut) == 3
    batches = []
    run = Engine.run

    def watched(self, requests):
        for result in run(self, requests):
            batches.append((self.settings.batch_size, result.id))
            yield result

    monkeypatch.setattr(Engine, "run", watched)
    rows = write(task, PROMPTS)
    assert batches[-1] == (1, "u01") and Counter(size for size, _ in batches) == {4: 12, 1: 1}
    assert "hung 2 times" in rows["u02"]["error"] and not rows["u01"]["error"]
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


class Slow:
    """An engine whose results take their time; its clock stands still meanwhile."""

    clock_s = 0.0

    def in_slots(self):
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
    dog = Watchdog(0.4, noted.append, ended.append)
    with dog.on():
        for _ in dog.over(engine, engine.run(seconds, steps)):
            time.sleep(0.02)
    assert (noted, ended) == (([["a", "b"]], [EXIT_CODE]) if bites else ([], []))
    assert [("no forward of the model has ended for" in line, line.endswith("being decoded: a, b"))
            for line in job_log] == [(True, True)] * bites


def test_the_watchdog_waits_for_rows_and_for_readers():
    ended, engine = [], Slow()
    dog = Watchdog(0.3, ended.append, ended.append)

    def results():
        with dog.paused():
            time.sleep(0.7)  # Spark has no rows yet
        yield 1

    with dog.on():
        for _ in dog.over(engine, results()):
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


@pytest.mark.slow
@pytest.mark.spark
def test_a_forward_that_never_ends_costs_its_worker_and_its_row_and_nobody_else(
        make_job, sleepy, texts):
    prompts = {name: PROMPTS[name] for name in sorted(PROMPTS)[:10]}
    prompts["u05"] = prompts["u05"].replace("User 5", f"User of {MARK}")
    job = make_job({
        "model": {"name": str(sleepy), "trust_remote_code": True}, "waves": {"when": "never"},
        "decode": {"max_new_tokens": 20, "min_new_tokens": 20, "batch_size": 4, "nodes": 4,
                   "hang_timeout_s": 4},
        "spark": {"rows_per_commit": 4, "shards": 1}})
    columns = ("entity string, entity_id string, prompt string, prompt_sha256 string, text_key string, "
               "error string, pool string, pool_kind string, own_ids array<int>, strict boolean")
    rows = [("user", name, words, "s", "k", None, "global", "global", None, False)
            for name, words in prompts.items()]
    work = cut.prepare(job, "f", lambda limit: job.spark.createDataFrame(rows, columns))
    task = Task.of(job, "", work.token)
    generate._write_wave(job, work, 1, task)

    written = committed(task)
    assert sorted(written) == sorted(prompts)
    assert [name for name, row in written.items() if row["error"]] == ["u05"]
    assert "hung 2 times: no forward with this row ended within 4 s" in written["u05"]["error"]
    assert {name: row["token_ids"] for name, row in written.items() if name != "u05"} == {
        name: ids for name, ids in texts.items() if name in prompts and name != "u05"}
    found = [json.loads(path.read_text())["ids"] for path in (work.folder / hangs.FOLDER).glob("*.json")]
    assert sorted(map(len, found))[0] == 1 and all("u05" in ids for ids in found)
    assert len(found) == hangs.count(work.folder, work.token) == 2
