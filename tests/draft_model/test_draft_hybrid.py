"""Retrieval for the rows where it is sure, the model for the others."""

import numpy as np
import pytest
import torch
from decode_models import generate, prompts, tiny, write

from dare_job.decode.draft.hybrid import HybridDrafter
from dare_job.decode.draft.model import ModelDrafter
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.request import EngineSettings, Request
from dare_job.decode.sampling.random_streams import DRAFT, RowKeys, RowUniforms
from dare_job.decode.sampling.warp import Warp
from dare_job.errors import ConfigError
from pools.draft import DraftSettings
from pools.index import Index

TEXTS = prompts((5, 17, 9))


@pytest.fixture(scope="module")
def case():
    """A target, a copy of it that drafts, its texts, and requests of which the first has its own text."""
    model = tiny("llama")
    expected = [generate(model, prompt) for prompt in TEXTS]
    own = Index.build([expected[0].astype(np.int32)], kind="own")
    requests = tuple(Request(f"row {i}", text, (own,) if i == 0 else ()) for i, text in enumerate(TEXTS))
    return Target(model), Target(tiny("llama")), expected, requests


def _hybrid(draft, confidence=0.6):
    return HybridDrafter(RetrievalDrafter(DraftSettings(threads=1)), ModelDrafter(draft, "2x2"), confidence)


def _step(expected):
    """A step in which each row has written five tokens."""
    context = np.zeros((3, 30), np.int32)
    for row, (text, said) in enumerate(zip(TEXTS, expected, strict=True)):
        context[row, : len(text) + 5] = [*text, *said[:5]]
    lengths = np.array([len(text) + 5 for text in TEXTS], np.int32)
    return context, lengths, np.full(3, 8, np.int32), np.full(3, 6, np.int32)


@pytest.mark.parametrize("confidence", [0.0, 0.6, 1.0])
def test_strict_text_is_the_targets_own(case, confidence):
    target, draft, expected, requests = case
    settings = EngineSettings(batch_size=2, nodes=8, max_new_tokens=40)
    engine = Engine(target, settings, _hybrid(draft, confidence))
    results = {r.id: r for r in engine.run(requests)}
    assert all(np.array_equal(results[f"row {i}"].token_ids, text) for i, text in enumerate(expected))
    assert confidence != 0.6 or all(result.accepted_tokens > 20 for result in results.values())


def test_each_row_has_one_of_both_trees(case):
    _, draft, expected, requests = case
    step = _step(expected)
    retrieved = RetrievalDrafter(DraftSettings(threads=1)).draft(requests, *step)
    drawn = ModelDrafter(draft, "2x2").draft(requests, *step)
    assert retrieved.scores[0, 0] > 0.6 and not np.array_equal(retrieved.parents[0], drawn.parents[0])
    found = _hybrid(draft).draft(requests, *step)
    for row, one in enumerate((retrieved, drawn, drawn)):
        size = one.sizes[row]
        assert found.sizes[row] == size
        for ours, theirs in zip(found, one, strict=True):
            assert ours.ndim == 1 or np.array_equal(ours[row, :size], theirs[row, :size])
    assert not write(case[0], TEXTS, _hybrid(draft), nodes=0)[0].accepted_tokens


def test_a_sampled_row_has_the_law_of_its_tree(case):
    _, draft, expected, requests = case
    step = _step(expected)
    draws = RowUniforms(RowKeys(0).keys(requests), step[1], DRAFT)
    found = _hybrid(draft).sampled(requests, *step, "without_replacement", Warp(), draws)
    alone = ModelDrafter(draft, "2x2").sampled(requests, *step, "without_replacement", Warp(), draws)
    retrieved = RetrievalDrafter(DraftSettings(threads=1)).draft(requests, *step)
    assert found.laws == ("top_k", "without_replacement", "without_replacement")
    assert {law: rows.tolist() for law, rows in found.by_law().items()} == {
        "top_k": [0], "without_replacement": [1, 2]}
    size = retrieved.sizes[0]
    assert np.array_equal(found.drafts.tokens[0, :size], retrieved.tokens[0, :size])
    for node in np.flatnonzero(found.asked[0]):
        children = np.flatnonzero(retrieved.parents[0, :size] == node - 1)
        assert found.columns[0, node][found.columns[0, node] >= 0].tolist() == children.tolist()
        best = found.q[found.places[0, node]].topk(len(children)).indices
        assert best.tolist() == retrieved.tokens[0, children].tolist()
    for row in (1, 2):
        size = alone.drafts.sizes[row]
        assert found.drafts.sizes[row] == size == 6
        assert np.array_equal(found.drafts.tokens[row, :size], alone.drafts.tokens[row, :size])
        assert np.array_equal(found.columns[row, :7, :2], alone.columns[row, :7])
        for node in np.flatnonzero(found.asked[row]):
            q, expected_q = found.q[found.places[row, node]], alone.q[alone.places[row, node]]
            assert torch.allclose(q, expected_q, atol=1e-6)
        assert not found.asked[row, 7:].any() and (found.places[row, 7:] == -1).all()


def test_a_confidence_that_cannot_be(case):
    with pytest.raises(ConfigError, match="confidence of retrieval is 1.5"):
        _hybrid(case[1], 1.5)
