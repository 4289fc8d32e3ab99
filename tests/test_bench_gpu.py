"""``bench gpu`` in tiny shapes on a CPU: all but graphs and energy (``test_bench_gpu_power``)."""

import json
import subprocess
import sys
from dataclasses import make_dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch

from dare_job.bench.gpu import kernels, measure, peers, replay, shapes, texts, vllm_peer
from dare_job.bench.gpu.task import RecordedTarget, Task, accepted
from dare_job.bench.peers import environments
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.settings import EngineSettings
from dare_job.decode.trie_search.trie import Trie
from dare_job.errors import ConfigError, DataError
from dare_job.evaluate.measured import markdown_table
from pools.draft import DraftSettings

CPU = torch.device("cpu")
WORDS = [f"w{n}" for n in range(30)]


def words_tokenizer(folder):
    """The folder with a tokenizer of one token a word."""
    model = tokenizers.models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="w0")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


WITHOUT = """
import json, runpy, sys
sys.modules.update(dict.fromkeys(("typer", "rich", "structlog", "pydantic", "jinja2", "psutil",
                                  "prometheus_client", "pyspark", "pandas", "pyarrow", "faiss", "sklearn")))
sys.argv = ["gpu", "--device", "cpu", "--small"]
runpy.run_module("dare_job.bench.gpu", run_name="__main__")
print(json.dumps(sorted(name for name in sys.modules if name.startswith("dare_job."))))
"""


@pytest.mark.release
def test_the_whole_command_without_the_jobs_other_packages():
    """The packages cannot be imported."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    out, last, imported = done.stdout.strip().rsplit("\n", 2)
    assert {name.split(".")[1] for name in json.loads(imported)} == {"bench", "decode", "errors", "evaluate"}
    found = json.loads(last)
    assert found["label"] in out and found["small"]
    assert found["label"].endswith(f"follows {found['texts']}") and found["texts"].startswith("made-up text ")
    assert found["ceilings"]["bandwidth"] > 0 and found["ceilings"]["flops"] > 0
    assert all(line["equal"] == line["texts"] > 0 for line in found["equality"])
    assert all(line["right"] for line in found["attention"])
    assert all(line["ms"] > 0 for line in (*found["shapes"], *found["trie"]))
    assert found["curves"] and all(line["ms"] > 0 and line["floor_ms"] > 0 for line in found["curves"])
    assert {line["way"] for line in found["ways"]} == {"eager", "fixed shapes"}
    ways = {(line["batch"], line["way"]): line for line in found["replay"]}
    for batch in (1, 3):
        assert ways[batch, "plain"]["accepted_per_step"] == 0
        assert ways[batch, "drafted"]["accepted_per_step"] > 0.5
        for way in ("plain", "drafted", "budgeted", "generate", "generate_batch"):
            assert ways[batch, way]["tokens_per_s"] > 0, ways[batch, way]
    assert found["energy"] == "no GPU: not measured"
    assert [line["target"] for line in found["targets"]] == [
        *(f"{beams} beams in a trie of 1728 ids: children and their log-probabilities, ms at most"
          for beams in ("2 x 70", "32 x 20")),
        "small: a step of 1 token over its floor, at most", "small: 64 queries over a step of 1, at most",
        "batch 1: drafts with a budget over plain, at least",
        "batch 1: drafts with a budget over generate, above",
        "batch 1: drafts with a budget over generate_batch, above",
        "batch 1: drafts with a budget over vllm, above",
        "batch 3: drafts with a budget over generate, above",
        "batch 3: drafts with a budget over generate_batch, above",
        "batch 3: drafts with a budget over vllm, above"]
    for line in found["targets"]:
        assert line["result"] in ("met", "missed", "not measured"), line
        assert line.get("why") if line["result"] == "not measured" else line["measured"] > 0, line
    assert found["seconds"] > 0


@pytest.mark.release
@pytest.mark.parametrize("words", [("-m", "dare_job.bench", "gpu"), ("-m", "dare_job.bench.gpu")])
def test_it_is_a_command_of_the_benches_and_a_module_of_its_own(words):
    done = subprocess.run([sys.executable, *words, "--device", "cpu", "--prompt-tokens=0"],
                          capture_output=True, text=True)
    assert done.returncode in (1, 2) and "--prompt-tokens must be at least 1" in done.stderr


def test_attention_over_pages_is_compared_with_its_definition(monkeypatch):
    """In bfloat16; attention that reads a wrong page is told."""
    assert [line["right"] for line in kernels.attention(torch.device("cpu"))] == [True] * 3
    exact = kernels.text_attention

    def wrong(query, keys, values, starts, lengths, table, *options):
        if query.dtype == torch.bfloat16:
            table = table.roll(1, 1)
        return exact(query, keys, values, starts, lengths, table, *options)

    monkeypatch.setattr(kernels, "text_attention", wrong)
    assert [line["right"] for line in kernels.attention(torch.device("cpu"))] == [False] * 3


def test_new_shapes_leave_the_device_s_settings_as_they_were():
    before = torch.backends.cuda.cudnn_sdp_enabled()
    lines = kernels.shapes(torch.device("cpu"), small=True)
    assert [bool(line["first_ms"]) for line in lines] == [True, True, False, False, False]
    assert all(line["ms"] > 0 for line in lines) and torch.backends.cuda.cudnn_sdp_enabled() == before


@pytest.mark.parametrize(("codes", "length"), [(3, 3), (1, 2), (4, 1)])
def test_a_full_trie_is_that_of_all_ids(codes, length):
    expected = Trie.from_codes(np.indices((codes,) * length).reshape(length, -1).T)
    found = kernels.full_trie(codes, length)
    for name, array in vars(expected).items():
        assert np.array_equal(getattr(found, name), array), name


def test_a_level_of_a_trie_is_measured_with_and_without_the_choice_of_beams():
    lines = kernels.trie(CPU, small=True)
    assert [(line["rows"], line["part"]) for line in lines] == [
        (rows, part) for rows in (2, 32) for part in (kernels.CONSTRAINT, kernels.LEVEL)]
    assert all(line["ms"] > 0 and line["ids"] == 12**3 for line in lines)


VLLM = """
class SamplingParams:
    def __init__(self, **options):
        self.new = options["max_tokens"]

class LLM:
    def __init__(self, folder, **options):
        import json, pathlib
        self.model = json.loads((pathlib.Path(folder) / "config.json").read_text())["architectures"]
        assert self.model == ["LlamaForCausalLM"] and options["max_num_seqs"] == 5
    def reset_prefix_cache(self):
        self.empty = True
    def generate(self, prompts, params, use_tqdm):
        assert self.empty and all(prompt["prompt_token_ids"] for prompt in prompts)
        self.empty, missing = False, len(prompts) == 5
        text = type("Text", (), {"token_ids": [0] * (params.new - missing)})
        return [type("Output", (), {"outputs": [text]}) for _ in prompts]
"""


def test_what_vllm_measured_before_it_ended_counts(tmp_path, monkeypatch):
    """Its second batch size ends with an error. A substitute has its interface, as far as it is called."""
    (tmp_path / "vllm.py").write_text(VLLM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(environments.INTERPRETER, sys.executable)
    python, why = vllm_peer.interpreter()
    assert not why
    target = Target(shapes.large("small", CPU, torch.float32), check=False)
    task = Task.of(texts.made_up(5, 40, 512), 9, 512)
    parts = {1: task.part(1, 40), 5: task}
    seconds, why = vllm_peer.generate(python, target, parts, None)
    assert list(seconds) == [1] and seconds[1] > 0
    assert why == "vllm ended with exit code 1: a text has another number of tokens"
    assert vllm_peer.generate(python, target, parts, 1e-3) == (
        {}, "left out for lack of time: vllm had 0 s; a larger --seconds gives it more")


def test_an_interpreter_without_vllm_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv(environments.INTERPRETER, str(tmp_path / "python"))
    assert vllm_peer.interpreter()[1] == f"{tmp_path / 'python'} cannot run: No such file or directory"


@pytest.mark.parametrize("paged", [True, False])
def test_the_replay_writes_the_recorded_texts_and_runs_the_model(paged):
    target = Target(shapes.large("small", CPU, torch.float32), check=False, paged=paged)
    task = Task.of(texts.made_up(7, 40, 512), 9, 512).part(7, 40)
    drafter = RetrievalDrafter(DraftSettings(depth=16))
    recorded = RecordedTarget(target, task.requests, task.texts)
    forwards = []
    target.model.register_forward_hook(lambda *call: forwards.append("model"))
    forward = target._forward
    target._forward = lambda *args, **options: forwards.append("target") or forward(*args, **options)
    settings = EngineSettings(max_new_tokens=None, batch_size=3, nodes=8, depth=16, score="never")
    results = {r.id: r for r in Engine(recorded, settings, drafter).run(task.requests)}
    for row, text in enumerate(task.texts):
        assert results[row].error is None and np.array_equal(results[row].token_ids, text)
    steps = max(result.target_steps for result in results.values())
    assert len(forwards) > steps > 0
    counted = sum(r.accepted_tokens for r in results.values()) / sum(r.target_steps for r in results.values())
    assert counted == pytest.approx(accepted(task, 8), rel=0.35) and counted > 0.5


@pytest.mark.slow
def test_the_label_says_whether_texts_are_recorded(monkeypatch, tmp_path):
    """Of the command as a whole, whatever it was given: no figure of made-up texts passes for another."""
    for part in (measure.curves, measure.replay):
        monkeypatch.setattr(part, "measure", lambda *_: [])
    monkeypatch.setattr(measure.curves, "ways", lambda *_: [])
    monkeypatch.setattr(measure.peers, "measure", lambda *_: [])
    file, tokenizer = tmp_path / "profiles.jsonl", words_tokenizer(tmp_path)
    file.write_text("\n".join(json.dumps({"say": " ".join(WORDS)}) for _ in range(9)))
    for words, source in (((), "made-up text with the repetition of recorded profiles, seed 0"),
                          (("--texts", str(file), "--column", "say", "--tokenizer", str(tokenizer)),
                           "recorded text, column say of profiles.jsonl")):
        found = measure.run(measure.parsed(["--device", "cpu", "--small", *words]))
        assert found["texts"] == source and found["label"] == (
            "replay at full cost: every forward is run, weights and prompts are random, and which draft "
            f"tokens pass follows {source}")


def test_costs_of_a_forward():
    model = shapes.large("small", CPU, torch.float32)
    weights = sum(p.numel() for p in model.parameters()) - 512 * 128  # looked up, not multiplied with
    moved, computed = shapes.costs(model, 3, 6, 100)
    cache = 2 * 3 * 100 * 2 * 2 * 32  # keys and values, rows, tokens, layers, heads, width
    assert moved == 4 * (weights + cache)
    assert computed == 6 * (2 * weights + 4 * 2 * 128 * 100)


def test_texts_from_a_file(tmp_path):
    words_tokenizer(tmp_path)
    file = tmp_path / "texts.jsonl"
    lines = [{"say": " ".join(WORDS[start : start + 12])} for start in range(6)] + [{"say": "w1 w2"}, {}]
    file.write_text("\n".join(map(json.dumps, lines)))
    found = texts.from_file(file, "say", tmp_path, 2, 10, 512)
    assert replay.label(found).endswith("pass follows recorded text, column say of texts.jsonl")
    assert "made" not in replay.label(found)
    assert [text.tolist() for text in found.new] == [list(range(4, 14)), list(range(5, 15))]
    assert sorted(map(len, found.old)) == [2, 12, 12, 12, 12]
    with pytest.raises(DataError, match="2 texts|0 texts|6 texts"):
        texts.from_file(file, "say", tmp_path, 9, 10, 512)
    with pytest.raises(ConfigError, match="17 distinct tokens, the replayed shape has 10"):
        texts.from_file(file, "say", tmp_path, 2, 10, 10)
    with pytest.raises(DataError, match="say holds no text"):
        file.write_text('{"say": 3}')
        texts.from_file(file, "say", tmp_path, 1, 1, 512)


@pytest.mark.parametrize(("words", "message"), [
    (("--shapes", "llama-9"), "llama-9"), (("--batches", "0,4"), "--batches"),
    (("--batches", "x"), "--batches"), (("--texts", "somewhere"), "--tokenizer"),
    (("--new-tokens", "7"), "--new-tokens at least 8")], ids=str)
def test_options_that_cannot_be(words, message):
    with pytest.raises(ConfigError, match=message):
        measure.run(measure.parsed(["--device", "cpu", *words]))


@pytest.mark.parametrize("size", ["page_size", "block_size"])
def test_pages_are_set_by_the_name_that_transformers_has(monkeypatch, size):
    """block_size: 5.17."""
    fields = (size, "num_blocks", "max_batch_tokens", "max_requests_per_batch")
    monkeypatch.setattr(peers, "ContinuousBatchingConfig", make_dataclass("Config", fields))
    target = Target(shapes.large("small", CPU, torch.float32), check=False)
    room = peers._batching(target, Task.of(texts.made_up(3, 40, 512), 9, 512))
    assert getattr(room, size) == 32 and room.num_blocks == 2 * 3 * 3 and room.max_requests_per_batch == 3


def test_targets_are_held_against_what_was_measured():
    curve = [{"model": "m", "context": c, "rows": 1, "queries": q, "ms": ms, "floor_ms": 4.0}
             for c, q, ms in ((256, 1, 4.8), (256, 64, 6.6), (1024, 1, 9.0))]
    lines = [{"batch": 32, "way": way, "tokens_per_s": speed} for way, speed in
             (("plain", 100.0), ("budgeted", 250.0), ("generate", 300.0))]
    lines += [{"batch": 32, "way": "generate_batch", "error": "it does not run"}]
    found = measure.targets(curve, lines, ["m"], [32], "made-up text")
    assert {line["target"]: (line.get("measured"), line["result"], line.get("why")) for line in found} == {
        "m: a step of 1 token over its floor, at most": (1.2, "met", None),
        "m: 64 queries over a step of 1, at most": (1.375, "missed", None),
        "batch 32: drafts with a budget over plain, at least": (2.5, "met", None),
        "batch 32: drafts with a budget over generate, above": (0.833, "missed", None),
        "batch 32: drafts with a budget over generate_batch, above": (
            None, "not measured", "generate_batch: it does not run"),
        "batch 32: drafts with a budget over vllm, above": (None, "not measured", "vllm: not run")}
    assert [line.get("text") for line in found] == [None, None, *["made-up text"] * 4]
    assert markdown_table(lines[3:], ("way", "tokens_per_s", "error")).endswith(
        "| generate_batch |  | it does not run |")


def test_the_published_line_is_a_target_in_the_shapes_that_it_is_near_to():
    """Two texts of 40 tokens after 9, 10 steps each with 15 draft tokens, at the same time."""
    task = Task.of(texts.made_up(2, 40, 512), 9, 512)
    task = replace(task, texts=[text[:13] for text in task.texts])
    results = [SimpleNamespace(id=number, target_steps=10) for number in (1, 0)]
    prompts = sum(len(request.prompt_ids) for request in task.requests)
    ms = 10 * (7.09 + 0.021 * 32 + 3.9e-5 * (prompts + 13)) + 0.021 * prompts
    rate = replay.published_rate(task, 2, 15, results)
    assert rate == pytest.approx(1e3 * 26 / ms)
    line = {"batch": 2, "way": "drafted", "tokens_per_s": 0.8 * rate, "published_tokens_per_s": rate}
    for model, count in (("mistral-7b", 1), ("qwen2.5-0.5b", 0)):
        found = [(each["measured"], each["result"]) for each in measure.targets([], [line], [model], [2], "")
                 if "published" in each["target"]]
        assert found == [(0.8, "missed")] * count


def test_a_target_without_a_measurement_is_listed_and_says_why():
    curve = [{"model": "m", "context": 256, "rows": 1, "queries": 1, "ms": 4.8, "floor_ms": 4.0}]
    found = measure.targets(curve, [], ["m", "n"], [1, 4], "made-up text")
    assert [line["result"] for line in found] == ["met"] + ["not measured"] * 10
    lacks = "its latency curve has no step of one row with so many queries:"
    assert [(line["target"], line["why"]) for line in found[1:]] == [
        ("m: 64 queries over a step of 1, at most", f"{lacks} 64"),
        ("n: a step of 1 token over its floor, at most", f"{lacks} 1, 64"),
        ("n: 64 queries over a step of 1, at most", f"{lacks} 1, 64"),
        *((f"batch {batch}: drafts with a budget over {way}",
           f"budgeted: not run; {way.split(',')[0]}: not run")
          for batch, way in ((1, "plain, at least"), (1, "generate, above"), (1, "generate_batch, above"),
                             (1, "vllm, above"), (4, "generate, above"), (4, "generate_batch, above"),
                             (4, "vllm, above")))]
    table = markdown_table(found, ("target", "measured", "result", "why"))
    assert "|  | not measured | its latency curve" in table
