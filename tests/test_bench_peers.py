"""``bench peers``: options, the script of our own methods on a task, copied tokens, and targets."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dare_job.bench.decode import methods
from dare_job.bench.decode.methods import Budget, Learned
from dare_job.bench.gpu.machine import Ceilings
from dare_job.bench.peers import compare_engines, environments, task, time_shares
from dare_job.decode.model.target import Target
from dare_job.errors import ConfigError, InfrastructureError
from dare_job.models.files import resolve
from pools.index import Index

SCRIPT = Path(task.__file__).parent / "workers" / "own.py"


def options(**changes) -> compare_engines.Options:
    return compare_engines.Options(**{"config": None, "date": "2026-01-02"} | changes)


def test_options_that_do_not_fit_are_named():
    with pytest.raises(ConfigError, match="--rows must have a number for each of the 2 batch sizes"):
        options(batch=(1, 8), rows=(4,))
    with pytest.raises(ConfigError, match="--engines tgi is not one of vllm, llama.cpp, transformers"):
        task.chosen(compare_engines._METHODS)("--engines", "dare-job,tgi")
    with pytest.raises(ConfigError, match="--dtypes int8 is not one of float32, bfloat16"):
        task.chosen(task._DTYPES)("--dtypes", "int8")


@pytest.mark.parametrize("has_instructions", [True, False])
def test_bfloat16_is_measured_where_there_are_instructions_for_it(monkeypatch, has_instructions):
    monkeypatch.setattr(task.torch.cpu, "_is_avx512_bf16_supported", lambda: has_instructions)
    assert options().types() == ("float32", "bfloat16")[:1 + has_instructions]
    assert options().types("cuda") == ("float32", "bfloat16")
    assert options(dtypes=("bfloat16",)).types() == ("bfloat16",)


@pytest.mark.parametrize(("text", "share"), [
    ([1, 2, 3, 4], 1), ([9, 1, 2, 3, 4, 9, 9, 9], 0.5), ([1, 2, 3, 9], 0), ([5, 6, 7, 8, 9], 0.8), ([], 0)])
def test_copied_tokens_lie_in_four_tokens_of_the_prompt(text, share):
    assert task.copied_share([1, 2, 3, 4, 5, 6, 7, 8], text) == pytest.approx(share)


def speed(engine, method, batch, tokens_per_s):
    return {"engine": engine, "method": method, "dtype": "float32", "batch": batch,
            "tokens_per_s": tokens_per_s}


def test_targets_compare_with_each_peer():
    table = [speed("dare-job", "plain", 1, 30.0), speed("dare-job", "dare strict", 1, 60.0),
             speed("vllm", "plain", 1, 33.0), speed("vllm", "n-gram", 1, 40.0),
             speed("vllm", "suffix", 1, 55.0),
             speed("dare-job", "dare strict", 32, 200.0), speed("llama.cpp", "plain", 32, 150.0)]
    assert [(each["measured"], each["met"]) for each in compare_engines._targets(table)] == [
        (1.5, True), (round(60 / 55, 5), False), (round(30 / 33, 5), False), (round(200 / 150, 5), True)]


def test_strict_texts_in_float32_have_to_be_those_of_generate():
    def of(method, equal, dtype="float32"):
        return {"engine": "dare-job", "method": method, "dtype": dtype, "batch": 1, "tokens_per_s": 1.0,
                "rows": 4, "equal_to_generate": equal}

    table = [of("plain", 4), of("dare strict", 3), of("dare relaxed", 0), of("dare strict", 0, "bfloat16")]
    assert [(each["measured"], each["met"]) for each in compare_engines._targets(table)] == [(1, False)]
    assert [each["met"] for each in compare_engines._targets([of("plain", 4)])] == [True]
    assert compare_engines._targets([of("plain", None)]) == []


def test_texts_that_a_batch_changes_are_counted_against_the_smallest_batch_of_the_same_method():
    def of(batch, texts, method="plain"):
        return {"engine": "dare-job", "method": method, "dtype": "bfloat16", "batch": batch, "texts": texts}

    one, eight = of(1, {"a": [1], "b": [2]}), of(8, {"a": [1], "b": [3], "c": [4]})
    other = of(1, {"a": [9], "b": [3]}, "generate")
    measured = [eight, other, one]
    assert [compare_engines._changed_by_batch(each, measured) for each in measured] == [1, 0, 0]
    rows = [compare_engines._row(each, measured) for each in measured]
    assert [row["equal_to_generate"] for row in rows] == [1, 2, 0]
    assert [row["equal_to_first"] for row in rows] == [2, 0, 2]
    assert compare_engines._row(eight, [eight, one])["equal_to_generate"] is None  # it is not measured


def test_figures_of_methods_without_earlier_texts_do_not_depend_on_them(tmp_path):
    prompts = {"0": np.arange(4), "1": np.arange(5)}
    with_texts = task.Rows(prompts, {"0": np.arange(9)}, [np.arange(30)], (0,))
    without = task.Rows(prompts, {}, [], (0,))
    contents = [task.content(rows, tmp_path, tmp_path, repeats=1) for rows in (with_texts, without)]
    assert contents[0] != contents[1]
    assert task.alone(contents[0]) == task.alone(contents[1]) == contents[1]
    assert contents[0]["rows"][0]["previous"] == list(range(9))


@pytest.mark.slow
def test_an_engine_that_cannot_be_installed_says_how_to_go_on(tmp_path, monkeypatch):
    monkeypatch.setitem(environments._PACKAGES, "vllm", ("no-such-package-of-anybody==9",))
    with pytest.raises(InfrastructureError, match="(?s)vllm cannot be installed.*--engines"):
        environments.python_of("vllm", tmp_path)
    assert environments.python_of("dare-job", tmp_path) == Path(sys.executable)


def test_on_cuda_vllm_is_that_of_an_environment_that_the_user_has(tmp_path, monkeypatch):
    assert environments.python_of("vllm", tmp_path, "cuda") == Path(sys.executable)
    monkeypatch.setenv("DARE_VLLM_PYTHON", "/opt/vllm/bin/python")
    assert environments.python_of("vllm", tmp_path, "cuda") == Path("/opt/vllm/bin/python")
    variables = environments.variables("vllm", Path("p"), [0, 1], "cuda")
    assert variables["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0" and "VLLM_CPU_KVCACHE_SPACE" not in variables


def test_an_engine_forgets_prompts_and_texts_before_each_measured_call(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import harness
    import own

    prompts = {str(n): np.concatenate([np.arange(3, 103), [200 + n, 210]]) for n in range(6)}
    content = task.content(task.Rows(prompts, {}, [np.arange(30)], (0,)), resolve("embedded"), tmp_path,
                           threads=1, device="cpu", max_new_tokens=2, repetition_penalty=None, repeats=2)
    engine, calls = own.Engine(content, "plain", "float32"), []
    write = engine.write

    def recorded(rows, batch, tokens):
        cached = engine._target.prefix_cache.group(list(prompts.values()))[0][0]
        calls.append((tokens, cached is not None))
        return write(rows, batch, tokens)

    engine.write = recorded
    harness._measure(engine, content, 6, content["rows"])
    assert calls == [(8, False)] + 2 * [(1, False), (2, False)]
    assert engine._target.prefix_cache.group(list(prompts.values()))[0][0] is not None


def test_tokens_reused_with_the_prompt_count_neither_as_steps_nor_as_accepted_by_one(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import harness

    class Engine:
        accepted, reused = 0, 0

        def forget(self):
            pass

        def write(self, rows, batch, tokens):
            self.accepted, self.reused = self.accepted + 4, self.reused + 6
            return [[1] * 10 for _ in rows]

    found = harness._measure(Engine(), {"repeats": 2, "max_new_tokens": 10}, 2, ["a", "b"])
    assert (found["tokens"], found["reused_share"]) == (20, 0.3)
    assert found["accepted_per_step"] == 4 / (20 - 2 - 4 - 6)


@pytest.mark.release
def test_each_method_of_ours_writes_the_texts_of_generate(tmp_path):
    rng, file, results = np.random.default_rng(0), tmp_path / "task.json", tmp_path / "results.jsonl"
    prompts = {str(n): rng.integers(3, 200, 20 + n) for n in range(4)}
    rows = task.Rows(prompts, {"0": rng.integers(3, 200, 9)}, [rng.integers(3, 200, 30)], (0,))
    file.write_text(json.dumps(task.content(
        rows, resolve("embedded"), tmp_path, batches=[(2, 4)], repeats=1, threads=1, device="cpu",
        max_new_tokens=12, repetition_penalty=None)))
    for method in ("generate", "plain", "prompt drafts", "resd", "dare strict"):
        done = subprocess.run([sys.executable, SCRIPT, file, results, method, "float32"], capture_output=True,
                              text=True, env=os.environ | {"PYTHONPATH": str(Path.cwd())})
        assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in results.read_text().splitlines()]
    assert len(found) == 5 and all(each["texts"] == found[0]["texts"] for each in found)
    assert all(each["batch"] == 2 and each["tokens_per_s"] > 0 and len(each["texts"]) == 4 for each in found)


def test_the_parts_of_decoding_add_up_to_its_time(tmp_path):
    target = Target.load(resolve("embedded"), "float32", "cpu")
    rng, pool = np.random.default_rng(0), Index.build([np.arange(5, 40, dtype=np.int32)])
    requests = [task.request(str(n), rng.integers(3, 200, 20 + n).astype(np.int32),
                             np.arange(9, 30, dtype=np.int32), pool) for n in range(4)]
    budget, method = Budget(2, 8, 12, 1), methods.STRICT
    began = time.perf_counter()
    line = time_shares.measure(target, requests, method, budget, Ceilings(1e9, 1e9))
    took = time.perf_counter() - began
    again = methods.run_method(method, target, requests, budget, Learned(method, target, budget))
    assert line["tokens"] == again.tokens  # nothing stays patched, and nothing else is decoded
    assert all(line["seconds"][part] > 0 for part in time_shares.PARTS)
    assert 0.95 * line["tokens"] / line["tokens_per_s"] <= sum(line["seconds"].values()) <= took
    assert set(line["least"]) == {"prompts", "linear", "attention", "logits"}


def test_a_part_does_not_count_the_parts_it_calls_and_prompts_count_all(monkeypatch):
    now = [0]
    monkeypatch.setattr(time_shares.time, "perf_counter", lambda: now[0])
    clock = time_shares.Clock(Ceilings(2.0, 8.0))

    def takes(seconds, *calls):
        now[0] += seconds
        for call in calls:
            call()

    inner = clock.timed("linear", lambda: takes(3, lambda: clock.work("linear", 4, 8)))
    clock.timed("other_forward", lambda: takes(2, inner))()
    clock.timed("prompts", lambda: takes(7, inner, lambda: clock.work("logits", 2, 80)))()
    takes(1)
    clock.count()
    assert clock.seconds == {"linear": 3, "other_forward": 2, "prompts": 10, "other": 1}
    assert clock.min_seconds == {"linear": 2, "prompts": 12}  # the slower of reading and multiplying
