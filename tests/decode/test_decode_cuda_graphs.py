"""Recorded and replayed forward passes; a tape on the CPU replaces CUDA graphs."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from decode_models import VOCABULARY, assert_written, generate, oracle, prompts, tiny, write
from tape import Recorder

from dare_job.decode.model import prepacked
from dare_job.decode.model.paged import forward
from dare_job.decode.model.paged.forward import PagedForward
from dare_job.decode.model.paged.pool import PAGE
from dare_job.decode.model.target import Target
from dare_job.decode.model.tree import build
from pools.tree import ROOT, DraftBatch


@pytest.fixture
def recorder(monkeypatch):
    monkeypatch.setattr(prepacked, "is_fast", lambda dtype: False)  # compiled layers are on no tape
    return Recorder(monkeypatch)


def recorded(model) -> Target:
    target = Target(model, paged=False)
    target.paged = PagedForward(model, target.traits, record=True, fuse=False)
    return target


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("name", [
    "llama", "qwen2-window", "gpt2", *(pytest.param(name, marks=pytest.mark.release)
                                       for name in ("phi", "mixtral"))])
def test_replayed_forwards_give_the_text_of_generate(name, recorder):
    """Lengths, trees, rows and slots change between steps, and only tapes run."""
    model, texts = tiny(name), prompts()
    expected = [generate(model, text) for text in texts]
    target, steps = recorded(model), 0
    for batch_size, nodes in ((3, 0), (5, 9)):
        results = write(target, texts, oracle(expected, seed=nodes), batch_size=batch_size, nodes=nodes)
        assert_written(results, expected)
        steps += sum(result.target_steps for result in results.values()) // batch_size
    assert target.paged is not None and all(map(len, recorder.tapes))
    assert len(recorder.tapes) < steps / 2, "hardly anything was replayed"


def test_each_bucket_is_run_twice_before_it_is_recorded(recorder):
    model = tiny("llama")
    target, runs = recorded(model), []
    run = target.paged._run
    target.paged._run = lambda *args: (runs.append(len(recorder.log)), run(*args))[1]
    write(target, prompts(), batch_size=3, nodes=0)
    count = len(recorder.tapes)
    assert recorder.log == ["side stream", "forbid synchronization", "record"] * count and count > 1
    assert runs == list(range(1, 3 * count + 1)), "a bucket that was known was run again"


def test_an_engine_with_drafts_records_its_shapes_in_the_cache_of_one_without(recorder):
    model = tiny("llama")
    target, counts = recorded(model), []
    for nodes in (0, 3, 3):
        write(target, prompts((5, 9)), batch_size=2, nodes=nodes)
        counts.append(len(recorder.tapes))
        widths = {bucket.width for bucket, _ in target.spare_cache.graphs}
        assert widths == ({1} if nodes == 0 else {1, 16})
    assert counts[0] < counts[1] == counts[2]


@torch.inference_mode()
def test_compilation_for_the_first_shape_takes_no_time_from_the_others(recorder, monkeypatch):
    target = recorded(tiny("llama"))
    cache, record, clock = target.new_cache(2), PagedForward._record_one, [0.0]
    cache.reserve(9)

    def record_slowly(*args):
        clock[0] += 30.0 if not recorder.tapes else 1.0
        record(*args)

    monkeypatch.setattr(PagedForward, "_record_one", record_slowly)
    monkeypatch.setattr(forward, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    target.paged.prepare(cache, 3, forward.argmax_tokens, 2.5)
    assert len(recorder.tapes) == 1 + 3
    target.paged.prepare(cache, 3, forward.argmax_tokens, 2.5)
    assert len(recorder.tapes) == 1 + 3


def test_synchronization_is_detected_before_the_recording(recorder, caplog):
    """Nothing stays half recorded: the engine continues without graphs, with the same text."""
    model = tiny("llama")
    expected = [generate(model, text) for text in prompts()]
    target = recorded(model)
    layer = model.model.norm.forward
    model.model.norm.forward = lambda states: layer(states) * (1.0 if states.sum().item() else 1.0)
    assert_written(write(target, prompts(), oracle(expected)), expected)
    assert not target.paged.records and not recorder.tapes and "record" not in recorder.log
    assert "cannot be recorded as a CUDA graph (aten.item.default waits" in caplog.text


def test_python_values_are_constant_in_a_replay(recorder):
    """A replay does not run Python code: a model that counts its calls keeps the count of the recording."""
    model = tiny("gpt2")
    target, calls = recorded(model), []
    layer = model.transformer.ln_f.forward
    model.transformer.ln_f.forward = lambda states: (calls.append(1), layer(states))[1]
    write(target, prompts((5,)), batch_size=1, nodes=0)
    assert len(recorder.tapes) == 1 and len(calls) == 1 + 3  # the prompt, two runs, the recording


def test_graphs_share_an_output_buffer_and_a_growing_pool_drops_them(recorder):
    model = tiny("llama", max_position_embeddings=1024)
    model.generation_config.repetition_penalty = 1.5  # so that steps need logits
    texts = prompts((9, 30, 12))
    expected = [generate(model, text) for text in texts]
    target = recorded(model)
    assert_written(write(target, texts, oracle(expected), nodes=9), expected)
    cache, few = target.spare_cache, len(recorder.tapes)
    outputs = [known.output for known in cache.graphs.values()]
    assert len(outputs) == few > 1 and len(cache.graph_logits) == max(map(len, outputs))
    long = prompts((PAGE + 3, 5, 40), seed=1)
    longer = [generate(model, text) for text in long]
    assert_written(write(target, long, oracle(longer), nodes=9), longer)
    assert target.spare_cache is cache and cache.table.shape[1] > 1
    assert len(recorder.tapes) > few and len(cache.graphs) == len(recorder.tapes) - few


def test_the_least_recently_used_graph_is_dropped(recorder, monkeypatch):
    model, texts = tiny("llama"), prompts()
    expected = [generate(model, text) for text in texts]
    monkeypatch.setattr(forward, "_MAX_GRAPHS", 2)
    target = recorded(model)
    assert_written(write(target, texts, oracle(expected), nodes=15), expected)
    assert len(target.spare_cache.graphs) == 2 < len(recorder.tapes)


def test_logits_of_a_replay_are_those_of_a_run(recorder):
    model, rng = tiny("qwen3"), np.random.default_rng(0)
    target = recorded(model)
    plain = Target(model, paged=True)
    for seed in range(4):
        lengths = rng.integers(3, 60, 3)
        ids = rng.integers(0, VOCABULARY, (3, lengths.max()))
        parents = np.array([[int(rng.integers(ROOT, i)) for i in range(9)] for _ in range(3)], np.int32)
        drafts = DraftBatch(rng.integers(0, VOCABULARY, (3, 9)).astype(np.int32), parents,
                            np.array([9, 4, 7 + seed % 2], np.int32), None, None)
        tree = build(ids[:, 0], drafts, np.full(3, 99))
        found = []
        for one in (target, plain):
            cache = one.acquire_cache(4)
            one.spare_cache = cache
            one.prefill(cache, np.arange(3), ids, lengths)
            found.append(one.forward(cache, tree, lengths))
        assert torch.allclose(*found, atol=1e-5), seed
    assert 1 <= len(recorder.tapes) < 4
