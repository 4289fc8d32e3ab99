"""The scale bench runs every stage on a small world and says what each took."""

import io
import json
import runpy
import sys
import time
from contextlib import redirect_stdout

import numpy as np
import psutil
import pytest

from dare_job.bench.scale import capacity, command, gpu_days, indexes, meter
from dare_job.bench.scale.command import STEPS, exponents
from dare_job.bench.scale.gpu_days import Night
from dare_job.evaluate.replay import latency
from dare_job.evaluate.replay.sources import Corpus
from dare_job.pipeline import STAGES

FIRST = "plan of the first night"


@pytest.mark.spark
def test_a_stage_is_measured_with_java_and_its_workers_and_not_again(tmp_path, capsys):
    arguments = ["--users", "2000", "--work", str(tmp_path), "--driver-memory", "1g", "--until", FIRST]
    command.main(arguments)
    printed = capsys.readouterr().out
    found = json.loads(printed.splitlines()[-1])["sizes"]["2000"]
    assert list(found) == ["(world)", FIRST] and f"| {FIRST} |" in printed
    assert found["(world)"]["report"]["items"] == 200 and found["(world)"]["java_mib"] == 0
    assert found[FIRST]["seconds"] > 1 and found[FIRST]["cpu_s"] > found[FIRST]["java_cpu_s"] > 1
    assert found[FIRST]["java_mib"] > 100 and found[FIRST]["python_mib"] > 50
    assert found[FIRST]["memory_mib"] <= found[FIRST]["java_mib"] + found[FIRST]["python_mib"] + 1
    assert found[FIRST]["report"]["user"] == {"rows": 2000, "stale": 2000, "errors": 0}
    command.main(arguments)  # what was measured is not measured again
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["sizes"]["2000"] == found


@pytest.fixture
def in_this_process(spark, monkeypatch):
    """Steps use the tests' Spark, which is warm; the test before has measured one in processes of its own."""
    def run(command, log, env):
        cost, said, code, began = meter.Cost(), io.StringIO(), 0, time.perf_counter()
        with redirect_stdout(said), monkeypatch.context() as patch:
            patch.setattr(sys, "argv", command[2:])
            try:
                runpy.run_module(command[2], run_name="__main__")
            except SystemExit as end:
                code = end.code or 0
        cost.take(psutil.Process())
        cost.seconds = time.perf_counter() - began
        return cost, code, said.getvalue()

    monkeypatch.setattr(meter, "run", run)


@pytest.mark.slow
@pytest.mark.spark
def test_a_whole_night_is_measured_stage_by_stage(in_this_process, tmp_path, capsys):
    command.main(["--users", "2000", "--work", str(tmp_path), "--pools"])
    printed = capsys.readouterr().out
    found = json.loads(printed.splitlines()[-1])["sizes"]["2000"]
    assert [step for step in STEPS if step in found] == list(STEPS) and set(STAGES) - {"encode"} <= set(STEPS)
    for step in STEPS:
        assert found[step]["seconds"] > 0 and found[step]["cpu_s"] > 0.1 and found[step]["memory_mib"] > 50
    assert found["plan"]["report"]["user"] == {"rows": 2000, "stale": 40, "errors": 0}
    assert found["publish"]["report"]["user"]["counts"]["carried"] == 1960
    assert found["publish"]["report"]["item"]["counts"]["written"] == 4
    assert found["gate"]["report"]["user"]["empty"]["of"] == 40
    assert found["report"]["report"].endswith(".html")
    assert found["pools"]["report"]["user"]["texts"] == 2000
    assert "| plan |" in printed and found["disk_mib"] > 0
    assert not any(path.is_dir() for path in (tmp_path / "users-2000").iterdir())


def test_a_step_that_fails_is_named_with_its_log(tmp_path, capsys):
    with pytest.raises(SystemExit, match=r"plan-of-the-first-night\.log: .*7k"):
        command.main(["--users", "100", "--work", str(tmp_path), "--master", "7k"])


def test_exponents_are_those_of_the_growth():
    def cost(users):
        return {"plan": {"seconds": users / 1e4, "cpu_s": 3e-9 * users ** 2, "memory_mib": 500}}

    found = exponents({users: cost(users) for users in (10_000, 1_000_000, 100_000)})
    assert found == {"plan": {pair: {"seconds": 1.0, "cpu_s": 2.0, "memory_mib": 0.0}
                              for pair in ("10000-100000", "100000-1000000")}}


def test_pools_on_paper_are_linear_in_tokens_and_wait_for_the_global_one():
    group = {"tokens_per_cpu_s": 1e6, "bytes_per_token": 11.0, "build_memory_mib": 500}
    everybody = {"disk_mib": 2048, "cpu_s": 100.0, "build_memory_mib": 1500}
    night = Night(texts=10_000_000, stale=0.02, tokens=200, prompt=300)
    two, many = capacity.pools(night, group, everybody, 500, "2,1000")
    assert two["group pools"] == 20_000 and two["GiB"] == round(2e9 * 11 / 2**30, 1)
    assert two["build s"] == (2000 + 100) / 2 and many["build s"] == 100


def test_a_night_costs_its_prompts_and_its_tokens():
    text = np.arange(101, dtype=np.int32) + 7  # nothing of it repeats, and the pool holds other tokens
    corpus = Corpus([text], ["a"], [np.arange(50, dtype=np.int32) + 5000] * 3, ["b", "c", "d"], 4)
    night = Night(texts=864_000, stale=0.5, tokens=100, prompt=300)
    outside = {"plain": (1000.0, 0.0), "dare": (3000.0, 0.0)}
    row, = gpu_days.gpu_days(night, "h100-mistral-7b", corpus, [1], outside)
    prompt = latency.forward_ms(latency.H100, latency.MISTRAL, 1, 300, 0) / 1e3
    step = latency.forward_ms(latency.H100, latency.MISTRAL, 1, 1) / 1e3
    assert row["accepted a step"] == 0
    assert row["plain: days"] == pytest.approx(10 * (prompt + 100 * step), abs=0.01)
    assert row["with the host: plain"] == pytest.approx(10 * (prompt + 100 * (step + 1e-3)), abs=0.01)
    assert row["dare"] == pytest.approx(10 * (prompt + 100 * (step + 3e-3)), abs=0.01)
    assert row["stale: hours plain"] == pytest.approx(12 * row["with the host: plain"], abs=0.1)


def test_recombined_texts_are_made_of_recorded_pieces():
    texts = indexes.recombined([np.arange(1000), np.arange(5000, 5100)], texts=50, tokens=70)
    assert [text.size for text in texts] == [70] * 50
    for text in texts:
        steps = np.diff(text.reshape(-1)[:60].reshape(3, indexes.PIECE), axis=1)
        assert ((steps == 1) | (steps == 4001)).all()


def test_an_index_is_measured_from_its_build_to_its_use(tmp_path):
    np.save(tmp_path / "recorded.npy", np.arange(3000, dtype=np.int32) % 700)
    found = indexes.measure(tmp_path / "recorded.npy", texts=400, tokens=50, kind="global")
    assert found["texts"] == 400 and found["tokens"] >= 20_000
    assert found["disk_mib"] == pytest.approx(found["tokens"] * found["bytes_per_token"] / 2**20, abs=0.1)
    assert found["build_memory_mib"] > 100 and found["open_and_verify_ms"] > 0
    assert found["mapped_mib"] >= 0.5 * found["disk_mib"] and found["own_mib"] < 50
