"""Draft budget: which nodes are kept, when drafting pauses, and that text does not change."""

import json
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from decode_models import generate, prompts, tiny

from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine import latency_probe
from dare_job.decode.engine.draft_budget import AdaptiveBudget, max_row_nodes
from dare_job.decode.engine.engine import Engine
from dare_job.decode.engine.latency import LatencyCurve
from dare_job.decode.model.target import Target
from dare_job.decode.model.tree import build
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.decode.verify.result import VerificationResult
from dare_job.evaluate.replay import budgets
from pools.draft import DraftSettings
from pools.index import Index
from pools.tree import ROOT, DraftBatch

TEXTS = prompts()
QUERIES = (1, 2, 3, 5, 9, 17, 33, 65)
FLAT = LatencyCurve.of({str(b): {str(q): 20.0 for q in QUERIES} for b in (1, 8)}, "flat")
LINEAR = LatencyCurve.of({str(b): {str(q): 5.0 + 0.3 * b * q for q in QUERIES} for b in (1, 8)}, "linear")
STEEP = LatencyCurve.of({str(b): {str(q): 5.0 * b * q * q for q in QUERIES} for b in (1, 8)}, "steep")


def test_largest_measured_queries_of_a_batch_size():
    table = {"1": {"1": 1.0, "65": 2.0}, "4": {"1": 1.0, "17": 2.0}, "8": {"1": 1.0, "33": 2.0}}
    curve = LatencyCurve.of(table, "x")
    assert [curve.max_queries(rows) for rows in (1, 2, 4, 6, 8, 20)] == [65, 17, 17, 17, 33, 33]


def drafts_of(scores: np.ndarray, sizes=None) -> DraftBatch:
    """Return chains with these scores (R, N)."""
    rows, nodes = scores.shape
    parents = np.tile(np.arange(ROOT, nodes - 1, dtype=np.int32), (rows, 1))
    sizes = np.full(rows, nodes, np.int32) if sizes is None else sizes
    return DraftBatch(np.ones((rows, nodes), np.int32), parents, sizes, scores.astype(np.float32),
                      np.zeros((rows, nodes), np.uint8))


def step(budget: AdaptiveBudget, drafts: DraftBatch, accepted: int) -> np.ndarray:
    """Run one step with ``accepted`` nodes in each row; return the kept sizes."""
    kept = budget.select(drafts, 0.0)
    tree = build(np.zeros(drafts.rows, np.int64), kept, np.full(drafts.rows, 99))
    counts = np.minimum(accepted, kept.sizes).astype(np.int64)
    paths = np.tile(np.arange(tree.depth + 1), (drafts.rows, 1))
    none = np.zeros(paths.shape, np.int32)
    yes = np.ones(drafts.rows, np.bool_)
    budget.observe(tree, VerificationResult(counts, paths, none, none.astype(np.bool_), yes, yes, True))
    return kept.sizes


@pytest.mark.parametrize("curve", [FLAT, LINEAR, STEEP], ids=["flat", "linear", "steep"])
def test_no_other_prefixes_have_a_larger_gain(curve):
    """Against all combinations of prefixes of three rows."""
    rng = np.random.default_rng(1)
    for _ in range(40):
        scores = np.sort(rng.random((3, 4)).round(1), 1)[:, ::-1]
        sizes = rng.integers(0, 5, 3).astype(np.int32)
        kept = AdaptiveBudget(curve, 4).select(drafts_of(scores, sizes), 0.0).sizes
        ms = curve.forward_ms(3, 12)
        rho = 3 / ms[0]  # before any step: autoregressive decoding

        def net(taken, scores=scores, ms=ms, rho=rho):
            return sum(scores[r, :n].sum() for r, n in enumerate(taken)) - rho * (ms[sum(taken)] - ms[0])

        best = max(net((a, b, c)) for a in range(sizes[0] + 1) for b in range(sizes[1] + 1)
                   for c in range(sizes[2] + 1))
        assert (kept <= sizes).all() and net(kept) == pytest.approx(best)


def test_the_budget_depends_on_latency():
    scores = np.tile(0.9 ** np.arange(1, 13), (8, 1))
    assert step(AdaptiveBudget(FLAT, 12), drafts_of(scores), 3).tolist() == [12] * 8
    assert step(AdaptiveBudget(STEEP, 12), drafts_of(scores), 3).tolist() == [0] * 8
    some = step(AdaptiveBudget(LINEAR, 12), drafts_of(scores), 3)
    assert 0 < some.sum() < 96


def test_more_probable_rows_get_the_nodes():
    scores = np.stack([0.95 ** np.arange(1, 9), 0.2 ** np.arange(1, 9)])
    sizes = step(AdaptiveBudget(LINEAR, 8), drafts_of(scores), 2)
    assert sizes[0] == 8 and sizes[1] < 2


def test_drafting_pauses_if_it_does_not_pay_and_is_tried_again():
    budget, drafted = AdaptiveBudget(STEEP, 8), []
    for number in range(200):
        if budget.min_score(8) is not None:
            drafted.append(number)
            step(budget, drafts_of(np.full((8, 8), 0.5)), 0)
    gaps = np.diff(drafted)
    assert gaps[0] == 2 and gaps.max() == 33 and (np.diff(gaps) >= 0).all()


def test_overconfident_scores_are_calibrated():
    budget, scores = AdaptiveBudget(LINEAR, 8), np.full((8, 8), 0.6)
    first = step(budget, drafts_of(scores), 0)
    later = [step(budget, drafts_of(scores), 0) for _ in range(30)][-1]
    assert first.sum() > 0 and later.sum() == 0
    modest = AdaptiveBudget(LINEAR, 8)
    low = np.full((8, 8), 0.08)
    assert step(modest, drafts_of(low), 8).sum() == 0
    modest = AdaptiveBudget(LINEAR, 8)
    for _ in range(30):  # a relaxed rule accepts more than the scores predict
        step(modest, drafts_of(np.tile([0.6, *[0.08] * 7], (8, 1))), 8)
    assert step(modest, drafts_of(np.tile([0.6, *[0.08] * 7], (8, 1))), 8).sum() >= 8


def test_a_minimum_score_leaves_out_nodes_that_cannot_pay():
    """At first, ``min_score`` excludes no node that ``select`` would keep. Later it may exclude nodes well
    below the lowest score that the last step kept.
    """
    rng = np.random.default_rng(3)
    for curve in (FLAT, LINEAR):
        budget = AdaptiveBudget(curve, 8)
        min_score = budget.min_score(8)
        scores = np.sort(0.01 + 0.99 * rng.random((8, 8)) ** 3, 1)[:, ::-1]
        kept = budget.select(drafts_of(scores), 0.0).sizes
        taken = [scores[r, n - 1] for r, n in enumerate(kept) if n]
        assert min(taken) >= min_score


def test_overhead_of_drafts_counts():
    """Steps with drafts that take longer than on the curve, relative to steps without."""
    scores, sizes = np.tile(0.5 ** np.arange(1, 5), (8, 1)), []
    for extra in (0.0, 6.0):
        budget = AdaptiveBudget(LINEAR, 4)
        ms = LINEAR.forward_ms(8, 32)
        for _ in range(20):
            budget.min_score(8)
            sizes.append(step(budget, drafts_of(scores), 1).sum())
            budget.record_step(8, int(sizes[-1]), ms[sizes[-1]] + (extra if sizes[-1] else 0.0) + 1.0)
            budget.record_step(8, 0, ms[0] + 1.0)
            budget.record_step(8, 0, 50 * ms[0])  # load of other processes
    assert sizes[0] == sizes[20] > 0 and sizes[19] > 0 and sizes[-1] == 0


@pytest.mark.parametrize(("name", "curve"), [
    ("llama", FLAT), ("llama", LINEAR), ("llama", STEEP), ("qwen2-window", FLAT), ("gpt2", LINEAR),
    pytest.param("gemma2", LINEAR, marks=pytest.mark.release)])
def test_strict_text_is_that_of_generate(name, curve):
    """Trees of different sizes: packed if supported, else padded (gemma2, whose attention has a softcap)."""
    model = tiny(name)
    if name == "gemma2":  # the choice of transformers from 5.21 on
        model.set_attn_implementation("eager")
    expected = [generate(model, text) for text in TEXTS]
    target = Target(model)
    assert target.packed == (name != "gemma2")
    rng = np.random.default_rng(0)
    old = [np.where(rng.random(len(text)) < 0.15, 7, text).astype(np.int32) for text in expected]
    pool = Index.build(old)
    for batch in (1, 5):
        budget = AdaptiveBudget(curve, 16)
        engine = Engine(target, EngineSettings(max_new_tokens=40, batch_size=batch),
                        RetrievalDrafter(DraftSettings()), draft_budget=budget)
        shapes = []
        forward = target.forward

        def watched(cache, tree, lengths, forward=forward, shapes=shapes):
            shapes.append(tree.uniform)
            return forward(cache, tree, lengths)

        target.forward = watched
        results = {r.id: r for r in engine.run(Request(i, text, (pool,)) for i, text in enumerate(TEXTS))}
        target.forward = forward
        for row, text in enumerate(expected):
            assert np.array_equal(results[row].token_ids, text), (row, batch)
        accepted = sum(result.accepted_tokens for result in results.values())
        assert (accepted > 0) == (curve is not STEEP)
        assert all(shapes) == (curve is STEEP or batch == 1)


def test_latency_of_steps():
    assert LINEAR.forward_ms(8, 16)[[0, 8, 16]] == pytest.approx([5 + 2.4, 5 + 4.8, 5 + 7.2])
    assert LINEAR.forward_ms(1, 128)[128] == pytest.approx(5 + 0.3 * 129)  # extrapolated
    assert LINEAR.forward_ms(4, 4)[[0, 4]] == pytest.approx([LINEAR.ms(4, 1), LINEAR.ms(4, 2)])
    one = LatencyCurve.of({"4": {"1": 2.0, "2": 3.0}}, "one")
    assert one.forward_ms(8, 8)[0] > one.forward_ms(4, 4)[0] > 0


def test_a_curve_is_measured_once(tmp_path, monkeypatch):
    target = Target(tiny("llama"), check=False)
    settings = EngineSettings(batch_size=3, nodes=4, depth=4)
    calls, measured = [], latency_probe._measure_batch
    monkeypatch.setattr(latency_probe, "_measure_batch", lambda *a: calls.append(a[2]) or measured(*a))
    first = latency_probe.load_or_measure(target, settings, tmp_path)
    assert calls == [1, 3] and first.batches == [1, 3]
    again = latency_probe.load_or_measure(target, settings, tmp_path)
    assert len(calls) == 2 and again.forward_ms(3, 4).tolist() == first.forward_ms(3, 4).tolist()
    (file,) = tmp_path.glob("*.json")
    assert "llama" in json.loads(file.read_text())["about"].lower()
    file.write_text('{"latency_ms": {"1": {}}}')
    latency_probe.load_or_measure(target, settings, tmp_path)
    assert len(calls) == 4
    latency_probe.load_or_measure(target, replace(settings, rule="relaxed"), tmp_path)
    assert len(list(tmp_path.glob("*.json"))) == 2
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    latency_probe.load_or_measure(target, settings, tmp_path)
    assert len(list(tmp_path.glob("*.json"))) == 3
    (tmp_path / "file").write_text("")
    one = EngineSettings(batch_size=1, nodes=1)
    nowhere = tmp_path / "file" / "below"  # under a file: the curve cannot be written
    assert latency_probe.load_or_measure(target, one, nowhere).batches == [1]


def test_two_workers_do_not_measure_at_the_same_time(tmp_path, monkeypatch):
    """The second one waits and reads the measurement of the first."""
    target, settings = Target(tiny("llama"), check=False), EngineSettings(batch_size=2, nodes=2)
    measured, measure, both = [], latency_probe.measure, threading.Barrier(2)

    def slow(*given):
        measured.append(given)
        time.sleep(0.5)
        return measure(*given)

    def work() -> list[int]:
        both.wait()
        return latency_probe.load_or_measure(target, settings, tmp_path).batches

    monkeypatch.setattr(latency_probe, "measure", slow)
    with ThreadPoolExecutor(2) as workers:
        found = [worker.result() for worker in [workers.submit(work) for _ in range(2)]]
    assert found == [[1, 2]] * 2 and len(measured) == 1


@pytest.mark.parametrize("rule", ["strict", "relaxed", "entropy"])
def test_steps_over_pages_are_measured_with_the_rule_in_the_pass(rule, monkeypatch):
    """No logits leave it, as in the engine."""
    target = Target(tiny("llama"), check=False, paged=True)
    monkeypatch.setattr(target, "forward", None)
    monkeypatch.setattr(latency_probe, "_ROUNDS", 1)
    found = latency_probe.measure(target, EngineSettings(batch_size=2, nodes=4, rule=rule))
    assert list(found) == ["1", "2"] and list(found["2"])[0] == "1" and len(found["2"]) > 2


def test_sizes_that_cannot_pay_are_not_measured_and_one_outlier_is_ignored(monkeypatch):
    """A step that is slower, twice, than generating all its tokens autoregressively."""
    target, seen = Target(tiny("llama"), check=False), []
    forward = target.forward

    def slow(cache, tree, lengths):
        nodes = len(tree.tokens) - len(lengths)
        seen.append(nodes)
        until = time.thread_time() + (0.12 if nodes > 4 or (nodes == 2 and seen.count(2) == 2) else 0.006)
        while time.thread_time() < until:
            pass
        return forward(cache, tree, lengths)

    monkeypatch.setattr(target, "forward", slow)
    table = latency_probe.measure(target, EngineSettings(batch_size=1, nodes=64, depth=3))
    assert list(table["1"]) == ["1", "2", "3", "5", "9"] and table["1"]["3"] < 60
    assert seen.count(64) <= 1 < seen.count(8)


@pytest.mark.parametrize("kind", ["gpt_neo", "gpt2", pytest.param("llama", marks=pytest.mark.release)])
@pytest.mark.parametrize(("positions", "batch", "depth"), [
    (32, 1, 12), (48, 8, 64), (128, 1, 64), (128, 2, 12)])
def test_a_model_with_few_positions_is_measured_within_them(kind, positions, batch, depth):
    target = Target(tiny(kind, max_position_embeddings=positions), check=False)
    settings = EngineSettings(batch_size=batch, nodes=max_row_nodes(batch), depth=depth)
    table = latency_probe.measure(target, settings)
    assert all("1" in times for times in table.values()) and str(batch) in table


def test_steps_with_very_many_drafts():
    budget = AdaptiveBudget(FLAT, 64)
    for nodes in (0, 2**15, 2**22):
        budget.record_step(512, nodes, 30.0)
    known = budget._overhead_by_nodes(512 .bit_length())
    assert np.flatnonzero(~np.isnan(known)).tolist() == [0, 16, 23]


def test_sizes_that_run_out_of_memory_are_not_in_the_curve(monkeypatch):
    target = Target(tiny("llama"), check=False)
    forward = target.forward

    def small(cache, tree, lengths):
        if len(tree.tokens) > 12:
            raise torch.OutOfMemoryError("none left")
        return forward(cache, tree, lengths)

    monkeypatch.setattr(target, "forward", small)
    table = latency_probe.measure(target, EngineSettings(batch_size=4, nodes=64))
    assert list(table["4"]) == ["1", "1.25", "1.5", "2", "3"]


def test_few_rows_draft_at_once_after_many_did_not():
    """The last rows of a shard: drafting may pay for one row if it did not for a full batch."""
    cheap_alone = LatencyCurve.of({"1": {"1": 10.0, "65": 10.5}, "32": {"1": 10.0, "2": 900.0}}, "x")
    budget = AdaptiveBudget(cheap_alone, 12)
    for _ in range(500):
        if budget.min_score(32) is not None:
            assert step(budget, drafts_of(np.full((32, 12), 0.5)), 6).sum() == 0
    drafted = 0
    for _ in range(20):
        if budget.min_score(1) is not None:
            drafted += step(budget, drafts_of(np.full((1, 12), 0.5)), 6).sum() > 0
    assert drafted == 20


def _texts(rng, count: int) -> list[np.ndarray]:
    phrases = [rng.integers(0, 50, rng.integers(4, 12)) for _ in range(30)]
    return [np.concatenate([phrases[i] for i in rng.integers(0, 30, 12)]).astype(np.int32)
            for _ in range(count)]


@pytest.mark.parametrize("batch", [4, *(pytest.param(size, marks=pytest.mark.release) for size in (1, 32))])
def test_a_replay_is_as_fast_as_the_best_fixed_budget(batch):
    rng = np.random.default_rng(0)
    texts, pool = _texts(rng, 40), Index.build(_texts(rng, 60))
    pools, settings = [(pool,)] * len(texts), DraftSettings(threads=1)
    runs = [budgets.fixed(texts, pools, batch, n, settings) for n in (0, 1, 4, 16)]
    for curve in (FLAT, LINEAR, STEEP):
        found = budgets.scheduled(texts, pools, batch, 16, settings, curve)
        assert found.tokens.sum() == sum(text.size - 1 for text in texts) == runs[0].tokens.sum()
        rates = [without_drafting(steps).tokens_per_s(curve) for steps in (found, *runs)]
        assert rates[0] >= 0.95 * max(rates[1:])


@pytest.mark.parametrize("name", [
    "h100-mistral-7b", *(pytest.param(name, marks=pytest.mark.release)
                         for name in ("cpu-embedded", "a100-mistral-7b"))])
@pytest.mark.parametrize(("batch", "fixed"), [
    (1, (0, 8, 64, 256)), (4, (0, 4, 16, 64)), (32, (0, 2, 8)), (128, (0, 1, 4)),
    pytest.param(256, (0, 1, 2), marks=pytest.mark.release)])
def test_on_a_published_curve_it_is_as_fast_as_the_best_fixed_budget(name, batch, fixed):
    curve = budgets.read_curve(Path(__file__).parents[2] / "conf" / "latency" / f"{name}.json")
    alike = _texts(np.random.default_rng(0), 60 + max(40, 4 * batch))  # with common phrases
    texts, pool = alike[60:], Index.build(alike[:60])
    pools, settings = [(pool,)] * len(texts), DraftSettings(threads=1)
    found = budgets.scheduled(texts, pools, batch, max_row_nodes(batch), settings, curve)
    for nodes in fixed:
        other = budgets.fixed(texts, pools, batch, nodes, settings)
        assert (without_drafting(found).tokens_per_s(curve)
                >= 0.95 * without_drafting(other).tokens_per_s(curve)), nodes


def test_few_rows_may_have_many_nodes_but_draft_only_what_they_use():
    assert [max_row_nodes(rows) for rows in (1, 2, 4, 8, 300)] == [512, 256, 128, 64, 64]
    budget, widths = AdaptiveBudget(FLAT, 512), []
    for size in (64, 128, 256, *[3] * 40):
        widths.append(budget.row_nodes)
        step(budget, drafts_of(np.full((1, size), 0.9)), 1)
    assert widths[:4] == [64, 128, 256, 512] and widths[-1] == 16
    assert AdaptiveBudget(FLAT, 4).row_nodes == 4


def test_drafting_time_per_node_counts():
    leasts = []
    for ms in (0.002, 0.3):
        budget = AdaptiveBudget(FLAT, 64)
        for size in (4, 8, 12, 16) * 5:
            budget.min_score(1)
            budget.select(drafts_of(np.full((1, size), 0.02)), 0.05 + ms * size)
        assert budget._drafting.slope == pytest.approx(ms)
        leasts.append(budget.min_score(1))
    assert leasts[1] > 1.5 * leasts[0]


def without_drafting(steps: budgets.Steps) -> budgets.Steps:
    """Set drafting times to 0, so that the outcome does not depend on load."""
    return budgets.Steps(steps.rows, steps.nodes, np.zeros(len(steps.rows)), steps.tokens, steps.texts)


def test_the_drafter_gets_the_minimum_score():
    rng = np.random.default_rng(0)
    texts, pool = _texts(rng, 3), Index.build(_texts(rng, 60))
    request = types.SimpleNamespace(pools=(pool,), prompt_ids=texts[0][:5])
    context, length = texts[0][None, :], np.array([20], np.int32)
    drafter, most = RetrievalDrafter(DraftSettings()), (np.array([32], np.int32), np.array([12], np.int32))
    all_of = DraftBatch(*map(np.copy, drafter.draft([request], context, length, *most)))
    some = drafter.draft([request], context, length, *most, 0.2)
    scores = all_of.scores[0, : all_of.sizes[0]]
    assert (np.diff(scores) <= 0).all()
    wanted = int((scores >= 0.2).sum())
    assert 0 < wanted < len(scores) and some.sizes[0] == wanted
    assert np.array_equal(some.tokens[0, :wanted], all_of.tokens[0, :wanted])
