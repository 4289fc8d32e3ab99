"""Strict verification gives greedy text with any draft model: one that is always right, one that never is."""

from functools import cache

import numpy as np
import pytest
from decode_models import assert_written, generate, prompts, tiny, write

from dare_job.decode.draft.model import ModelDrafter
from dare_job.decode.draft.sampled_tree import TreeShape
from dare_job.decode.engine.draft_budget import AdaptiveBudget
from dare_job.decode.engine.engine import Engine
from dare_job.decode.engine.latency import LatencyCurve
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.errors import ConfigError

TEXTS = prompts()


@cache
def case(name: str):
    """Target, a draft model with the same weights, and the texts of ``generate``."""
    model = tiny(name)
    return Target(model), Target(tiny(name)), [generate(model, prompt) for prompt in TEXTS]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(("name", "batch_size"), [("llama", 1), ("llama", 3), ("llama", 8), ("gpt2", 3)])
def test_strict_equals_generate(name, batch_size):
    """Rows end at different lengths, and other rows take their slots."""
    target, same, expected = case(name)
    ends = [40, 7, 23, 40, 1, 12, 31]
    for draft in (same, Target(tiny("mistral-window", seed=5))):
        drafter = ModelDrafter(draft, "3x2x1")
        engine = Engine(target, EngineSettings(batch_size=batch_size, nodes=15), drafter)
        requests = [Request(i, p, max_new_tokens=n) for i, (p, n) in enumerate(zip(TEXTS, ends, strict=True))]
        results = {r.id: r for r in engine.run(requests)}
        assert_written(results, [text[:end] for text, end in zip(expected, ends, strict=True)])
        if draft is same:  # three drafts and one token of the target per step
            assert [results[i].target_steps for i in range(7)] == [-(-(end - 1) // 4) for end in ends]
        else:
            assert 0 < sum(r.accepted_tokens for r in results.values()) < sum(ends) / 4


@pytest.mark.parametrize("name", ["gemma2", "mistral-window", "gpt_neo", "qwen3"])
def test_reading_level_by_level_equals_reading_whole_texts(name):
    """With windows, soft caps and masks of the model: a copy of the target drafts whole trees right."""
    target = Target(tiny(name))
    results = write(target, TEXTS, ModelDrafter(Target(tiny(name)), "2x2x2x1"), nodes=22, max_new_tokens=21)
    assert [results[i].target_steps for i in range(7)] == [4] * 7


def test_a_budget_below_the_shape_gets_the_most_probable_nodes():
    draft, texts = Target(tiny("llama")), TEXTS[:3]
    context = np.zeros((3, 30), np.int32)
    for row, text in enumerate(texts):
        context[row, : len(text)] = text
    lengths, depths = np.array([len(text) for text in texts], np.int32), np.full(3, 9, np.int32)
    requests = [Request(i, text) for i, text in enumerate(texts)]

    def drafted(*budgets, min_score=0.0, depths=depths):
        found = ModelDrafter(draft, "4x3x3x2").draft(requests, context, lengths, np.array(budgets, np.int32),
                                                     depths, min_score)
        return [sorted(_paths(found, row)) for row in range(3)], found

    def best(paths, count):
        return sorted(sorted(paths, key=lambda path: (-path[0], len(path[1])))[:count])

    whole, found = drafted(160, 160, 160)
    assert found.sizes.tolist() == [4 + 12 + 36 + 72] * 3
    for row, count in enumerate((5, 0, 17)):
        assert drafted(5, 0, 17)[0][row] == best(whole[row], count)
    above = [[path for path in paths if path[0] >= 0.05] for paths in whole]
    assert drafted(160, 160, 160, min_score=0.05)[0] == above
    shallow = drafted(160, 160, 160, depths=np.array([1, 9, 2], np.int32))[0]
    assert [len(paths) for paths in shallow] == [4, 124, 16]


def _paths(drafts, row):
    """(score, tokens) of each node's path; scores descend, so that any prefix of the nodes is a tree."""
    size = drafts.sizes[row]
    assert (np.diff(drafts.scores[row, :size]) <= 0).all()
    found = []
    for column in range(size):
        tokens, at = [], column
        while at >= 0:
            assert drafts.parents[row, at] < at
            tokens, at = [int(drafts.tokens[row, at]), *tokens], drafts.parents[row, at]
        found.append((round(float(drafts.scores[row, column]), 5), tuple(tokens)))
    assert len({tokens for _, tokens in found}) == size
    return found


def test_a_draft_budget_may_truncate_trees_and_skip_steps():
    """Budgets depend on measured times: rows are read after any number of steps; texts are the same."""
    target, draft = Target(tiny("gpt_neo")), Target(tiny("gpt_neo", seed=2))
    expected = [generate(target.model, prompt) for prompt in TEXTS]
    for per_query in (0.0, 0.4):
        times = {str(b): {str(q): 20 + per_query * b * q for q in (1, 5, 17)} for b in (1, 8)}
        curve = LatencyCurve.of(times, "x")
        engine = Engine(target, EngineSettings(batch_size=3, nodes=16), ModelDrafter(draft, "4x2x1"),
                        draft_budget=AdaptiveBudget(curve, 16))
        requests = [Request(i, prompt, max_new_tokens=40) for i, prompt in enumerate(TEXTS)]
        assert_written({r.id: r for r in engine.run(requests)}, expected)


@pytest.mark.parametrize("text", ["", "0x2", "4x", "x4", "4*2", "-1", "2 x 2", "1.5", "40x40"])
def test_invalid_shapes_are_refused(text):
    with pytest.raises(ConfigError, match="draft tree"):
        TreeShape.parse(text)


def test_a_shape_counts_its_nodes():
    shape = TreeShape.parse("4x2x1")
    assert (shape.depth, shape.nodes, str(shape)) == (3, 4 + 8 + 8, "4x2x1")
    shape.require(20)
    with pytest.raises(ConfigError, match="4x2x1 has 20 nodes per row, more than decode.nodes = 19"):
        shape.require(19)
