"""Sampled trees: the candidates of each node are samples of the draft model's distribution after its path."""

import numpy as np
import pytest
import torch
from decode_models import prompts, tiny

from dare_job.decode.draft.model import ModelDrafter
from dare_job.decode.model.target import Target
from dare_job.decode.model.tree import build
from dare_job.decode.request import Request
from dare_job.decode.sampling.distributions import DISTRIBUTIONS, sample_candidates
from dare_job.decode.sampling.random_streams import DRAFT, VERIFY, RowKeys, RowUniforms, uniforms
from dare_job.decode.sampling.verify import verify_trees
from dare_job.decode.sampling.warp import warp
from dare_job.decode.settings import Warp
from dare_job.errors import ConfigError

TEXTS = prompts((5, 17, 1, 30))
REQUESTS = tuple(Request(f"row {i}", text) for i, text in enumerate(TEXTS))
KEYS = RowKeys(11).keys(REQUESTS)
SETTINGS = Warp(temperature=0.7, min_p=1e-3)
LENGTHS = np.array([len(text) for text in TEXTS], np.int32)


@pytest.fixture(scope="module")
def target():
    return Target(tiny("llama"))


def _sample(target, shape, distribution, rows=(0, 1, 2, 3), budget=99, depth=9, settings=SETTINGS,
            constrain=None):
    rows = list(rows)
    context = np.zeros((len(rows), 30), np.int32)
    for place, row in enumerate(rows):
        context[place, : LENGTHS[row]] = TEXTS[row]
    ones = np.ones(len(rows), np.int32)
    requests, draws = tuple(REQUESTS[row] for row in rows), RowUniforms(KEYS[rows], LENGTHS[rows], DRAFT)
    return ModelDrafter(target, shape).sampled(requests, context, LENGTHS[rows], budget * ones, depth * ones,
                                               distribution, settings, draws, constrain)


def candidates_of(sampled, row, nodes):
    """Return the candidates (M, K) of nodes (M,) of a row, the root being node 0; -1 after the last."""
    columns = sampled.columns[row, nodes]
    return np.where(columns >= 0, sampled.drafts.tokens[row, np.maximum(columns, 0)], -1)


def _path(drafts, row, node):
    tokens = []
    while node > 0:
        tokens.insert(0, int(drafts.tokens[row, node - 1]))
        node = drafts.parents[row, node - 1] + 1
    return np.array(tokens, np.int64)


@pytest.mark.parametrize("distribution,shape", [
    ("iid", "3x2x1"), ("iid", "4x3"), ("without_replacement", "3x2x2"), ("distinct", "2x3"),
    ("greedy", "3x2"), ("top_k", "2x2"), ("spechub", "2x2")])
def test_candidates_are_samples_of_their_distribution(target, distribution, shape):
    found, repeated = _sample(target, shape, distribution), 0
    widths = [int(width) for width in shape.split("x")]
    for row, text in enumerate(TEXTS):
        depths = {0: 0}
        for i in range(found.drafts.sizes[row]):
            depths[i + 1] = depths[found.drafts.parents[row, i] + 1] + 1
        for node, depth in depths.items():
            if depth == len(widths):
                assert found.requested[row, node] == 0 and found.q_rows[row, node] == -1
                continue
            path, q = _path(found.drafts, row, node), found.q[found.q_rows[row, node]]
            assert torch.allclose(q, _probabilities(target, np.concatenate((text, path))), atol=1e-5)
            assert found.requested[row, node] == widths[depth]
            numbers = uniforms(KEYS[[row]], LENGTHS[[row]], DRAFT, np.array([node]), widths[depth])
            expected = sample_candidates(
                DISTRIBUTIONS[distribution], q[None], widths[depth], torch.from_numpy(numbers)
            )[0].tolist()
            tokens = candidates_of(found, row, [node])[0, : widths[depth]].tolist()
            assert tokens == expected
            repeated += len(set(tokens)) < len(tokens)
            columns = found.columns[row, node, : widths[depth]]
            assert all(found.drafts.parents[row, c] == node - 1 for c in columns)
            assert len(set(columns)) == len(set(tokens)) == (found.drafts.parents[row] == node - 1)[
                : found.drafts.sizes[row]].sum()
        columns = found.columns[row][found.columns[row] >= 0]
        assert set(columns) == set(range(found.drafts.sizes[row]))
    assert (repeated > 0) == (distribution == "iid")


def _probabilities(target, text, settings=SETTINGS, history=None):
    with target.as_transformers() as model, torch.inference_mode():
        logits = model(input_ids=torch.from_numpy(text.astype(np.int64))[None]).logits[:, -1]
    return warp(logits, settings, history)[0][0]


def test_a_rows_tree_does_not_depend_on_the_batch(target):
    together = _sample(target, "3x2x2", "without_replacement")
    for row in range(4):
        alone = _sample(target, "3x2x2", "without_replacement", rows=[row])
        size = alone.drafts.sizes[0]
        assert size == together.drafts.sizes[row] == 21
        for one, all_ in ((alone.drafts.tokens, together.drafts.tokens), (alone.columns, together.columns),
                          (alone.drafts.parents, together.drafts.parents)):
            assert np.array_equal(one[0, :size], all_[row, :size])


def test_a_smaller_budget_leaves_nodes_without_any_candidates(target):
    whole = _sample(target, "3x2x2", "without_replacement")
    for budget, sizes in ((2, 0), (3, 3), (4, 3), (8, 7), (14, 13), (21, 21)):
        part = _sample(target, "3x2x2", "without_replacement", budget=budget)
        assert (part.drafts.sizes == sizes).all()
        if sizes == 7:  # the two most probable of three
            for row in range(4):
                wanted = np.sort(np.argsort(-whole.drafts.scores[row, :3], kind="stable")[:2])
                assert np.flatnonzero(part.requested[row]).tolist() == [0, *(wanted + 1)]
                tokens = [candidates_of(part, row, [node]) for node in (0, *(wanted + 1))]
                same = [candidates_of(whole, row, [node]) for node in (0, *(wanted + 1))]
                assert np.array_equal(tokens, same)
    assert (_sample(target, "3x2x2", "iid", depth=1).drafts.sizes <= 3).all()
    assert _sample(target, "3x2x2", "iid", depth=0).drafts.nodes == 0


def test_tokens_removed_by_warping_are_not_sampled(target):
    """A repetition penalty on text and path, and top-k 1."""
    narrow = Warp(top_k=1, repetition_penalty=1.7)
    found = _sample(target, "3x2", "without_replacement", settings=narrow)
    assert found.drafts.sizes.tolist() == [2] * 4
    assert found.columns[0].tolist() == [[0, -1, -1], [1, -1, -1], [-1, -1, -1]]
    assert found.requested[0].tolist() == [3, 2, 0]
    for row, text in enumerate(TEXTS):
        for node in (0, 1):
            path = np.concatenate((text, _path(found.drafts, row, node)))
            q = _probabilities(target, path, narrow, torch.from_numpy(path.astype(np.int64))[None])
            assert torch.equal(found.q[found.q_rows[row, node]], q) and q.max() == 1


def test_a_constraint_masks_tokens_by_row_and_position(target):
    """Masks tokens below 100 in rows 1 and 3 for the first drafted token."""
    def constrain(logits, rows, lengths):
        early = torch.from_numpy((rows % 2 == 1) & (lengths <= LENGTHS[rows]))
        return torch.where(early[:, None] & (torch.arange(logits.shape[1]) < 100), -torch.inf, logits)

    found = _sample(target, "3x3", "without_replacement", constrain=constrain)
    for row in range(4):
        first = candidates_of(found, row, [0])
        second = candidates_of(found, row, [1, 2, 3])
        assert (first >= 100).all() == (row % 2 == 1) and (second[second >= 0] < 100).any()
        assert (found.q[found.q_rows[row, 0], :100] == 0).all() == (row % 2 == 1)


def test_nonfinite_logits_draft_nothing(target):
    copy = tiny("llama")
    with torch.no_grad():
        copy.model.embed_tokens.weight[int(TEXTS[1][2])] = torch.nan
    found, whole = (_sample(model, "2x2", "iid") for model in (Target(copy, check=False), target))
    assert found.drafts.sizes[1] == 0 and not found.requested[1].any()
    for row in (0, 2, 3):
        assert np.array_equal(found.columns[row], whole.columns[row]) or TEXTS[1][2] in TEXTS[row]


def test_the_accepted_path_is_in_the_tree(target):
    """With the target as draft model every first candidate is accepted: the path ends at a leaf."""
    found = _sample(target, "2x2", "iid")
    tree = build(np.array([text[-1] for text in TEXTS]), found.drafts, np.full(4, 9))
    candidates, q = found.on_tree(tree)
    row = np.repeat(np.arange(4), np.diff(tree.starts))
    node = np.arange(len(row)) - tree.starts[row]
    coins = torch.from_numpy(RowUniforms(KEYS, LENGTHS, VERIFY)(row, node, 3))
    ends = verify_trees("rrs", "iid", candidates, q, q, coins)
    for r in range(4):
        first = found.columns[r, 0, 0] + 1
        second = found.columns[r, first, 0] + 1
        assert ends.nodes[r] == tree.starts[r] + second
    with pytest.raises(ValueError, match="lacks sampled nodes"):
        found.on_tree(build(np.zeros(4, np.int64), found.drafts, np.full(4, 1)))


def test_a_distribution_that_does_not_fit_the_shape_is_refused(target):
    with pytest.raises(ConfigError, match="spechub"):
        _sample(target, "2x3", "spechub")
    with pytest.raises(ConfigError, match="unknown draft distribution 'idd'"):
        _sample(target, "2x3", "idd")
