"""What a verifier must do."""

import numpy as np
import pytest
import torch

from dare_job.contract import cases
from dare_job.contract.cases import END, NEW_TOKENS, VOCABULARY, Trees
from dare_job.decode.model.tree import Tree, build
from dare_job.decode.verify import plugin as engine_side
from dare_job.decode.verify.result import NodeVerification
from pools.tree import DraftBatch

SEEDS = range(6)
EOS = torch.tensor([END])


def verify(verifier, trees: Trees) -> NodeVerification:
    """The verifier's result, which must have the right shapes and types."""
    before, argmax = trees.scores.clone(), trees.scores.argmax(-1)
    context = engine_side.VerifyContext(*trees[2:], argmax)
    nodes = verifier(trees.scores, trees.tree, context)
    engine_side.check(verifier, nodes, argmax)
    assert torch.equal(before, trees.scores), "the verifier wrote to the scores"
    return nodes


def accepted(verifier, trees: Trees) -> torch.Tensor:
    """Which draft nodes passed, bool (T,); False for roots, where it means nothing."""
    return verify(verifier, trees).passed & (trees.tree.parents != torch.arange(len(trees.tree)))


def row(trees: Trees, r: int) -> Trees:
    """One row alone."""
    start, end = trees.tree.starts[r : r + 2]
    tokens, parents, depths, _ = (part[start:end].copy() for part in trees.tree.host)
    drafts = DraftBatch.of([tokens[1:]], [parents[1:] - start - 1])
    tree = build(tokens[:1], drafts, np.array([99]))
    length = trees.lengths[r]
    return Trees(trees.scores[start:end].clone(), tree, trees.tokens[r : r + 1, :length].copy(),
                 trees.lengths[r : r + 1], trees.prompts[r : r + 1])


@pytest.mark.parametrize("seed", SEEDS)
def test_results_have_their_shapes_whatever_the_trees(plugin, seed):
    """Trees, rows without drafts, and the long chains that previous texts are; tokens with score -Inf."""
    for drafts in ((9, 0, 14, 3), (0, 0), (1,), (40,)):
        trees = cases.trees(seed, drafts)
        nodes = verify(plugin.make(EOS), trees)
        assert nodes.logp is None or not nodes.logp[nodes.passed].isnan().any()
    chain = DraftBatch.of([np.random.default_rng(seed).integers(4, VOCABULARY, 50)])
    tree: Tree = build(np.array([5]), chain, np.array([99]))
    scores = torch.randn((51, VOCABULARY), generator=torch.Generator().manual_seed(seed))
    verify(plugin.make(EOS), Trees(scores, tree, np.full((1, 3), 5, np.int32), np.array([3]), np.array([3])))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_calls_give_the_same_results(plugin, seed):
    """Nothing but the arguments and earlier calls decides."""
    first, second = plugin.make(EOS), plugin.make(EOS)
    for each in (seed, seed + 10):
        trees = cases.trees(each)
        assert torch.equal(accepted(first, trees), accepted(second, trees))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_row_does_not_depend_on_its_batch(plugin, seed):
    """The nodes of a row pass alone as they do among others, whatever the padding of its text."""
    trees = cases.trees(seed)
    together = accepted(plugin.make(EOS), trees)
    for r in range(len(trees.lengths)):
        start, end = trees.tree.starts[r : r + 2]
        assert torch.equal(accepted(plugin.make(EOS), row(trees, r)), together[start:end]), f"row {r}"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lossless_verifier_accepts_only_the_argmax(plugin, seed):
    """Any other token would change the text."""
    if not plugin.load().lossless:
        pytest.skip("it is not lossless")
    trees = cases.trees(seed)
    is_top = trees.tree.tokens == trees.scores.argmax(-1)[trees.tree.parents]
    assert (is_top | ~accepted(plugin.make(EOS), trees)).all()


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_lossless_verifier_writes_greedy_texts(plugin, batch_size):
    """In the engine, with a small model."""
    if not plugin.load().lossless:
        pytest.skip("it is not lossless")
    cases.assert_greedy(cases.write(batch_size=batch_size, verify_plugin=plugin.make(EOS)))


def test_texts_are_whole_and_strict_rows_greedy(plugin):
    """Every row gets a text that ends, and a strict row that of greedy decoding."""
    results = cases.write(strict=(1, 2), verify_plugin=plugin.make(EOS))
    for number, result in results.items():
        assert result.error is None, f"row {number} failed: {result.error}"
        assert result.finish_reason == "eos" or len(result.token_ids) == NEW_TOKENS
        assert (result.token_ids < VOCABULARY).all() and END not in result.token_ids[:-1]
    for number in (1, 2):
        assert np.array_equal(results[number].token_ids, cases.greedy_texts()[number]), f"row {number}"


def test_texts_do_not_depend_on_the_batch(plugin):
    """With a fixed number of draft tokens, a text is the same alone and among others."""
    alone, together = (cases.write(batch_size=size, verify_plugin=plugin.make(EOS)) for size in (1, 7))
    for number, result in alone.items():
        assert np.array_equal(result.token_ids, together[number].token_ids), f"row {number}"
