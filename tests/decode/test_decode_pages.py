"""Passes over pages in static shapes, as on a GPU but without recording: same text as without pages."""

import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from decode_models import VOCABULARY, assert_written, generate, oracle, prompts, tiny, write

from dare_job.decode.engine.draft_budget import max_row_nodes
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model import support
from dare_job.decode.model.masks import level_of_trees
from dare_job.decode.model.paged import forward, pool
from dare_job.decode.model.paged.forward import PagedForward, argmax_tokens, ladder, step_shapes
from dare_job.decode.model.paged.inputs import Bucket, max_width, receive, round_up_queries, round_up_tree
from dare_job.decode.model.paged.pool import PAGE, PagedCache
from dare_job.decode.model.target import Target
from dare_job.decode.model.tree import build
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from pools.tree import ROOT, DraftBatch


def paged(model) -> Target:
    target = Target(model, paged=True)
    assert target.paged is not None
    return target


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("name", [
    "llama", "qwen2-window", "gpt2",
    *(pytest.param(name, marks=pytest.mark.release)
      for name in ("gemma3", "mixtral", "mistral-window", "phi"))])
def test_strict_equals_generate(name):
    model, texts = tiny(name), prompts()
    expected = [generate(model, prompt) for prompt in texts]
    target = paged(model)
    for batch_size, nodes in ((3, 0), (1, 15), (8, 31), (5, 4)):
        drafter = oracle(expected, seed=nodes) if nodes else None
        results = write(target, texts, drafter, batch_size=batch_size, nodes=nodes)
        assert_written(results, expected)
        assert not nodes or sum(r.accepted_tokens for r in results.values()) > 20
    assert target.paged is not None, "it fell back"


@pytest.mark.parametrize(("name", "dtype"), [("llama", torch.float32), ("qwen2-window", torch.float32),
                                              ("gpt2", torch.float32), ("llama", torch.bfloat16)])
def test_logits_equal_those_of_dynamic_shapes(name, dtype):
    """Rows and trees of different sizes, on both sides of a bucket's border; free slots."""
    model, rng = tiny(name, dtype=dtype), np.random.default_rng(0)
    least = 1e-4 if dtype == torch.float32 else 0.1
    target = paged(model)
    fixed = target.paged
    for lengths in ([5], [30, 7, 19], [3, 40, 1, 9, 22]):
        lengths = np.array(lengths)
        rows = len(lengths)
        ids = rng.integers(0, VOCABULARY, (rows, lengths.max()))
        parents = np.array([[int(rng.integers(ROOT, i)) for i in range(16)] for _ in range(rows)], np.int32)
        for sizes in (np.zeros(rows, int), np.full(rows, 7), np.full(rows, 8), rng.integers(0, 17, rows)):
            drafts = DraftBatch(rng.integers(0, VOCABULARY, (rows, 16)).astype(np.int32), parents,
                                sizes.astype(np.int32), None, None)
            tree = build(ids[:, 0], drafts, np.full(rows, 99))
            logits = []
            for target.paged in (None, fixed):
                cache = target.new_cache(8)
                target.prefill(cache, np.arange(rows), ids, lengths)
                logits.append(target.forward(cache, tree, lengths).float())
            assert torch.allclose(*logits, atol=least, rtol=least), (lengths, sizes)
            choices, finite = target.verified(cache, tree, lengths, argmax_tokens)
            assert finite.all() and np.array_equal(choices, logits[1].argmax(-1).numpy())


@torch.inference_mode()
def test_accepted_nodes_follow_their_row():
    """The cache after ``commit`` equals that after a prompt of the same tokens."""
    target, rng = paged(tiny("llama")), np.random.default_rng(1)
    lengths = np.array([6, 11, 3])
    texts = rng.integers(0, VOCABULARY, (3, 16))
    parents = np.array([[ROOT, ROOT, 1, 2, 0], [ROOT, 0, 1, ROOT, 3], [ROOT] * 5], np.int32)
    paths, counts = np.array([[0, 2, 3, 4], [0, 4, 5, 0], [0, 0, 0, 0]]), np.array([4, 3, 1])
    tokens = rng.integers(0, VOCABULARY, (3, 5)).astype(np.int32)
    for row, path in enumerate(paths):
        for depth, node in enumerate(path[1 : counts[row]], 1):
            tokens[row, node - 1] = texts[row, lengths[row] + depth]
    drafts = DraftBatch(tokens, parents, np.array([5, 5, 2], np.int32), None, None)
    tree = build(texts[np.arange(3), lengths], drafts, np.full(3, 9))
    cache, whole = target.new_cache(3), target.new_cache(3)
    target.prefill(cache, np.arange(3), texts[:, :11], lengths)
    target.forward(cache, tree, lengths)
    target.commit(cache, lengths, paths, counts - 1)
    target.prefill(whole, np.arange(3), texts, lengths + counts)
    for row, end in enumerate(lengths + counts):
        for ours, expected in zip(cache.entries(row, end), whole.entries(row, end), strict=True):
            assert torch.allclose(ours, expected, atol=1e-5)


def test_texts_cross_a_bucket_border_and_the_cache_grows():
    """256 columns: prompts on both sides of it, more rows than slots, and a longer prompt later on."""
    model = tiny("llama", max_position_embeddings=1024)
    many = PAGE
    texts = prompts((many - 20, 9, many + 3, many - 1, 30, 2 * many - 10))
    expected = [generate(model, text) for text in texts]
    target = paged(model)
    for nodes in (0, 15):
        results = write(target, texts, oracle(expected), batch_size=2, nodes=nodes)
        assert_written(results, expected)


def test_previous_text_after_prompts_and_rows_that_end():
    model = tiny("llama", seed=1)
    plain, texts = [generate(model, text) for text in prompts()], prompts()
    model.generation_config.eos_token_id = int(plain[0][17])
    expected = [generate(model, text) for text in texts]
    assert len({len(text) for text in expected}) > 1
    old = [np.delete(text, [5, 6]) for text in plain]
    target = paged(model)
    for batch_size, nodes in ((1, 9), (3, 9), (3, 0)):
        engine = Engine(target, EngineSettings(max_new_tokens=40, batch_size=batch_size, nodes=nodes,
                                               score="always"), oracle(plain))
        requests = (Request(row, text, previous_ids=old[row]) for row, text in enumerate(texts))
        results = {result.id: result for result in engine.run(requests)}
        assert_written(results, expected)
        assert sum(result.reused_tokens for result in results.values()) >= 20


@pytest.mark.parametrize("rule", ["relaxed", "top_k", "threshold", "literal"])
def test_relaxed_rules_read_the_same_logits(rule):
    model, texts = tiny("llama", seed=1), prompts()
    drafts = [np.roll(generate(model, text), 1) for text in texts]
    options = dict(rule=rule, k=60, p=1e-6, batch_size=3, nodes=9)
    target = paged(model)
    fixed = write(target, texts, oracle(drafts, error_rate=0.0), **options)
    target.paged = target.spare_cache = None
    plain = write(target, texts, oracle(drafts, error_rate=0.0), **options)
    assert sum(result.relaxed_tokens for result in plain.values()) > 10
    for row, result in plain.items():
        assert np.array_equal(fixed[row].token_ids, result.token_ids)
        assert np.array_equal(fixed[row].relaxed, result.relaxed)


@pytest.mark.parametrize("options", [{"repetition_penalty": 1.7}, {"no_repeat_ngram_size": 2},
                                     {"min_new_tokens": 30, "eos_token_id": list(range(60))}], ids=str)
def test_rules_of_the_generation_config(options):
    model, texts = tiny("qwen2", seed=2), prompts()
    for key, value in options.items():
        setattr(model.generation_config, key, value)
    expected = [generate(model, text) for text in texts]
    assert_written(write(paged(model), texts, oracle(expected)), expected)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_drafts_do_not_affect_other_rows(value):
    model, bad = tiny("llama", seed=1), VOCABULARY - 1
    target = paged(model)
    with torch.no_grad():
        model.get_input_embeddings().weight[bad] = value
        model.lm_head.weight[bad].zero_()
    texts = [np.where(text == bad, 5, text).astype(np.int32) for text in prompts()]
    expected = [generate(model, text) for text in texts]
    drafts = [np.where(np.arange(40) % 7 == 3, bad, text) for text in expected]
    poisoned = {1: np.append(texts[1], bad).astype(np.int32)}
    results = write(target, [*texts, poisoned[1]], oracle([*drafts, drafts[0]]), batch_size=3)
    assert results[len(texts)].error == "the model's logits are not finite"
    assert_written(results, expected)


def test_few_buckets_serve_many_steps():
    assert [round_up_queries(n) for n in (1, 3, 8, 9, 64, 65, 250, 257, 512, 513, 2048, 2049)] == [
        1, 3, 8, 16, 64, 80, 256, 288, 512, 576, 2048, 2176]
    assert ladder(20) == [24, 16, 8, 7, 6, 5, 4, 3, 2, 1] and ladder(8) == [8, 7, 6, 5, 4, 3, 2, 1]
    rng, shapes, traits = np.random.default_rng(0), set(), support.traits(tiny("llama"))
    for _ in range(300):
        sizes = rng.integers(0, 17, 8).astype(np.int32)
        drafts = DraftBatch(np.zeros((8, 16), np.int32), np.full((8, 16), ROOT, np.int32), sizes, None, None)
        tree = build(np.zeros(8, np.int64), drafts, np.full(8, 9))
        shape = Bucket.of(level_of_trees(tree, rng.integers(100, 400, 8)), traits, 2)
        assert shape.queries >= len(tree.tokens) and shape.width >= tree.width and not shape.limited
        shapes.add(shape)
    assert len(shapes) <= 12


def test_default_draft_nodes_do_not_widen_the_attention_of_all_rows():
    """The trees of all slots are padded to the widest: their scores stay below 2**15 a head."""
    for slots in (1, 8, 32, 128, 512):
        width = max_row_nodes(slots, paged=True) + 1
        assert slots * width**2 <= 2**15 and width == max_width(slots)
        assert {shape.width for shape in step_shapes(slots, width - 1, 1)} <= {1, 16, 32, 64, 128}
    assert [max_row_nodes(slots, paged=True) for slots in (1, 8, 32, 128)] == [127, 63, 31, 15]


def test_shapes_recorded_at_the_start_serve_every_step_without_much_waste():
    """No step takes a shape more than twice as wide as needed: attention to trees grows with the square."""
    slots, nodes = 32, 31
    shapes = step_shapes(slots, nodes, 2)
    assert len(set(shapes)) == len(shapes)
    for width in (1, 2, 9, 16, 17, 32):
        for count in range(max(2, width), slots * width + 1, 7):
            own = Bucket(round_up_queries(count), round_up_tree(width), round_up_tree(width), 2, False)
            serving = [shape for shape in shapes if shape.serves(own)]
            assert serving and min(shape.queries for shape in serving) == own.queries, (width, count)
    wide = Bucket(64, 128, 128, 2, False)
    assert not any(wide.serves(Bucket(64, width, width, 2, False)) for width in (16, 32))


def test_a_model_with_its_own_attention_uses_dynamic_shapes(caplog):
    """So does a model with different logits in static shapes."""
    assert Target(tiny("gpt_neo"), paged=True).paged is None
    model = tiny("llama")
    expected = [generate(model, text) for text in prompts()]
    inner = model.model.forward

    def wrong(*args, past_key_values=None, **kwargs):
        out = inner(*args, past_key_values=past_key_values, **kwargs)
        if isinstance(past_key_values, PagedCache):
            out.last_hidden_state = out.last_hidden_state.roll(1, 1)
        return out

    model.model.forward = wrong
    target = Target(model, paged=True)
    assert target.paged is None and "over pages (it gives different logits)" in caplog.text
    assert_written(write(target, prompts(), oracle(expected)), expected)


def test_a_forward_that_cannot_be_recorded_only_costs_speed(caplog, monkeypatch):
    """First with compiled parts, then without; then nothing is recorded."""
    model = tiny("llama")
    expected, target, tried = [generate(model, text) for text in prompts()], paged(model), []

    def refuse(forward, *_, **__):
        tried.append(forward._fuse)
        raise RuntimeError("operation not permitted when stream is capturing\nand more lines")

    monkeypatch.setattr("dare_job.decode.model.paged.forward.fused", lambda model: nullcontext())
    monkeypatch.setattr("dare_job.decode.model.paged.recording.graph_pool", lambda: (0, 1))
    monkeypatch.setattr(PagedForward, "_record_one", refuse)
    target.paged = PagedForward(model, target.traits, record=True, fuse=True)
    assert_written(write(target, prompts(), oracle(expected)), expected)
    assert tried == [True, False] and not target.paged.records
    assert caplog.text.count("LlamaForCausalLM cannot be recorded as a CUDA graph") == 2
    assert "and more lines" not in caplog.text


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_with_a_fixed_shape_logits_do_not_depend_on_the_other_rows(dtype, monkeypatch):
    """To the last bit, beside other prompts, trees and texts, and in another slot."""
    monkeypatch.setattr(forward, "PROMPT_TOKENS", 256)
    target, rng = paged(tiny("llama", dtype=dtype)), np.random.default_rng(3)
    prompt, tokens = rng.integers(0, VOCABULARY, 19), rng.integers(0, VOCABULARY, (1, 7)).astype(np.int32)
    parents = np.array([[ROOT, 0, 0, 2, ROOT, 4, 1]], np.int32)
    outcomes = []
    for neighbours, slot in ((0, 0), (2, 0), (3, 2)):
        lengths = rng.integers(3, 40, neighbours + 1)
        lengths[slot] = len(prompt)
        ids = rng.integers(0, VOCABULARY, (len(lengths), lengths.max()))
        ids[slot, : len(prompt)] = prompt
        sizes = rng.integers(0, 8, len(lengths)).astype(np.int32)
        sizes[slot] = 7
        drafted = rng.integers(0, VOCABULARY, (len(lengths), 7)).astype(np.int32)
        drafted[slot] = tokens
        drafts = DraftBatch(drafted, np.repeat(parents, len(lengths), 0), sizes, None, None)
        tree = build(ids[:, 0], drafts, np.full(len(lengths), 99))
        cache = target.new_cache(4)
        cache.fixed_nodes = 7
        read = target.prefill(cache, np.arange(len(lengths)), ids, lengths)[slot]
        logits = target.forward(cache, tree, lengths)[tree.starts[slot] : tree.starts[slot + 1]]
        outcomes.append(torch.cat((read[None], logits)))
        assert len({bucket for bucket, _ in cache.graphs}) == 1
    assert torch.equal(outcomes[0][1:], outcomes[1][1:]) and torch.equal(outcomes[0][1:], outcomes[2][1:])
    assert torch.equal(outcomes[0], outcomes[1]) and torch.equal(outcomes[0], outcomes[2])


def test_a_fixed_shape_changes_no_text(monkeypatch):
    monkeypatch.setattr(forward, "PROMPT_TOKENS", 256)
    model, texts = tiny("qwen2-window"), prompts()
    expected = [generate(model, prompt) for prompt in texts]
    target = paged(model)
    for batch_size, nodes, one_shape in ((3, 15, True), (3, 15, False), (5, 4, True)):
        results = write(target, texts, oracle(expected), batch_size=batch_size, nodes=nodes,
                        one_shape=one_shape)
        assert_written(results, expected)
        cache = target.spare_cache  # the second engine has that of the first one, and other shapes
        assert cache.fixed_nodes == (nodes if one_shape else None)
        shapes = {bucket.queries for bucket, _ in cache.graphs}
        assert len(shapes) == 1 if one_shape else len(shapes) > 3


def test_a_target_and_its_draft_model_share_the_memory(monkeypatch):
    """Each has as many pages, also if the other one has filled its own when the cache is created."""
    cuda, free = torch.device("cuda"), pool._ACTIVATION_BYTES + 1000 * PAGE * 400
    monkeypatch.setattr(pool, "_free_bytes", lambda device: free)
    assert pool.affordable_pages(cuda, 400) == 900
    assert pool.affordable_pages(torch.device("cpu"), 400) is None
    target, draft = (SimpleNamespace(device=cuda, cache_bytes=(size, 0), page_limit=None, spare_cache="cache")
                     for size in (300, 100))
    pool.share_memory(target, draft)
    assert target.page_limit == draft.page_limit == 900 and target.spare_cache is None
    monkeypatch.setattr(pool, "_free_bytes", lambda device: 0)
    target.spare_cache = "cache"
    pool.share_memory(target, draft)
    assert target.page_limit == draft.page_limit == 900 and target.spare_cache == "cache"
    on_cpu = Target(tiny("llama"), paged=True)
    pool.share_memory(on_cpu, on_cpu)
    assert on_cpu.page_limit is None and on_cpu.new_cache(1).limit is None


def test_a_result_is_read_after_the_device_has_copied_it(monkeypatch):
    """A substitute for a tensor on CUDA, whose copy has its values once the device is done."""
    copy = torch.zeros(3)
    result = SimpleNamespace(is_cuda=True, device="cuda:1", to=lambda place, non_blocking: copy)
    stream = SimpleNamespace(synchronize=lambda: copy.fill_(7))
    monkeypatch.setattr(torch.cuda, "current_stream", {"cuda:1": stream}.get)
    monkeypatch.setattr(copy, "numpy", lambda: np.array(copy.tolist()))
    assert receive(result).tolist() == [7, 7, 7]


@torch.inference_mode()
def test_a_pool_that_grows_keeps_its_entries_and_no_old_memory():
    cache = PagedCache([(1, 4, 4)] * 2, 2, torch.float32, "cpu")
    cache.reserve(3)
    for stack in cache._stacks:
        stack.normal_()
    before = [values.clone() for values in cache.entries(0, 3)]
    cache.reserve(5 * PAGE)
    assert all(torch.equal(*pair) for pair in zip(cache.entries(0, 3), before, strict=True))
    assert all(view.untyped_storage().data_ptr() in {stack.untyped_storage().data_ptr()
                                                      for stack in cache._stacks} for view in cache._pools)


@pytest.mark.parametrize(("free_bytes", "through_host"), [(None, False), (4 * 2 * 7 * 4, False), (223, True)])
def test_a_stack_passes_through_the_host_where_old_and_new_do_not_fit(free_bytes, through_host, monkeypatch):
    """A stack of 2 x 3 entries of 4 floats grows to 2 x 7: 224 bytes."""
    entries, zeros, freed = torch.randn(2, 3, 1, 4), torch.zeros, []
    stacks = [entries.clone()]
    old = weakref.ref(stacks[0])
    monkeypatch.setattr(torch.Tensor, "cpu", torch.Tensor.clone)
    monkeypatch.setattr(torch, "zeros", lambda *args, **options: (
        freed.append(old() is None), zeros(*args, **options))[1])
    grown = pool._grown(stacks, 0, 7, free_bytes)
    assert grown.shape == (2, 7, 1, 4) and torch.equal(grown[:, :3], entries) and not grown[:, 3:].any()
    assert freed == [through_host]  # the old stack's memory is free before the new one is allocated
