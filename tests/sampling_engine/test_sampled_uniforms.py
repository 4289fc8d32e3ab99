"""Every uniform decides one thing: the candidates or the verification of one node, of one row and position.

The effect of shared uniforms is too small to be seen in three thousand texts of the tiny models. So these
tests check which uniforms the engine requests, and the distribution of 60,000 rows sampled and verified at
once.
"""

from functools import partial

import numpy as np
import pytest
import torch
from decode_models import prompts, tiny
from draft_trees import flatten_trees, paths, shares
from sampling_pairs import worlds
from scipy.stats import chi2

from dare_job.decode.draft.model import ModelDrafter
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.sampling import engine as sampling_engine
from dare_job.decode.sampling import random_streams, tree_verification
from dare_job.decode.sampling.distributions import DISTRIBUTIONS, NONE, sample_candidates
from dare_job.decode.sampling.engine import Sampling, SamplingEngine
from dare_job.decode.sampling.random_streams import DRAFT, VERIFY, RowKeys, RowUniforms, uniforms
from dare_job.decode.sampling.traversal import traverse
from dare_job.decode.sampling.verify import verify_trees
from dare_job.decode.settings import EngineSettings, Warp

ROWS, ODDS = 60_000, 1e-6  # false-alarm probability of one test, over random seeds
RULES = [("rrs", "without_replacement"), ("greedy", "greedy"), ("priority", "iid"),
         ("traversal", "without_replacement")]


@pytest.fixture(scope="module")
def pair():
    return Target(tiny("llama", 0)), Target(tiny("llama", 1))


def requested_uniforms(pair, rule, distribution, monkeypatch) -> list[tuple]:
    """Return key, position, purpose and counter of all uniforms that an engine requests."""
    requests_made = []

    def recorded(keys, places, purpose, numbers, count):
        requests_made.extend((bytes(key), place, purpose, number) for key, place, number in zip(
            keys, places.tolist(), numbers.tolist(), strict=True))
        return uniforms(keys, places, purpose, numbers, count)

    monkeypatch.setattr(random_streams, "uniforms", recorded)
    target, draft = pair
    engine = SamplingEngine(target, EngineSettings(batch_size=3, nodes=12, depth=3),
                            Sampling(Warp(), 1, distribution, rule), ModelDrafter(draft, "2x2"))
    rows = [Request(n, text, max_new_tokens=12) for n, text in enumerate(prompts())]
    assert not any(result.error for result in engine.run(rows))
    return requests_made


@pytest.mark.parametrize(("rule", "distribution"), RULES)
def test_no_uniform_is_used_twice(pair, rule, distribution, monkeypatch):
    requests_made = requested_uniforms(pair, rule, distribution, monkeypatch)
    assert len(requests_made) > 300 and len(set(requests_made)) == len(requests_made)
    assert {purpose for _, _, purpose, _ in requests_made} == {DRAFT, VERIFY}


@pytest.mark.parametrize("wrong", ["one uniform for all nodes of a row", "the uniforms of the drafts"])
@pytest.mark.parametrize(("rule", "distribution"), RULES)
def test_reused_uniforms_are_detected(pair, rule, distribution, wrong, monkeypatch):
    if wrong == "the uniforms of the drafts":
        monkeypatch.setattr(sampling_engine, "VERIFY", DRAFT)
    else:
        original = tree_verification._query_uniforms
        monkeypatch.setattr(tree_verification, "_query_uniforms", lambda tree, numbers, count: original(
            tree, lambda rows, nodes, n: numbers(rows, 0 * nodes, n), count))
    requests_made = requested_uniforms(pair, rule, distribution, monkeypatch)
    assert len(set(requests_made)) < len(requests_made)


@pytest.mark.parametrize(("rule", "distribution"), [
    *RULES[:2], pytest.param(*RULES[3], marks=pytest.mark.slow)])
def test_distribution_of_many_rows(rule, distribution):
    """G-tests of three tokens against the target distribution, which reused uniforms change.

    An exception are two greedy candidates, of which one is sampled, with a uniform that verification does not
    use.
    """
    wrong = "one for all", "those of the drafts"
    right, shared, drew = (_g_statistic(_texts(rule, distribution, how)) for how in ("", *wrong))
    assert right < chi2.isf(ODDS, 26) < shared
    assert drew > chi2.isf(ODDS, 26) or distribution == "greedy"


def _texts(rule: str, distribution: str, wrong: str) -> torch.Tensor:
    """Return counts (V, V, V) of three tokens, with the tokens after the tree sampled from p by torch."""
    world, keys = worlds(3)[0], RowKeys(0).keys_of(range(ROWS))
    places, rows = np.full(ROWS, 7), np.arange(ROWS)
    drawn = partial(_node_uniforms, RowUniforms(keys, places, DRAFT), rows)
    first = sample_candidates(
        DISTRIBUTIONS[distribution], world.q[0].expand(ROWS, -1), 2, drawn([0], 2)[:, 0]
    )
    q = world.q[1][first.flatten().clamp_min(0)]
    second = sample_candidates(DISTRIBUTIONS[distribution], q, 2, drawn([1, 2], 2).flatten(0, 1)).view(
        ROWS, 2, 2
    )
    tree, p, q = flatten_trees(world, first, torch.where(first[:, :, None] == NONE, NONE, second))
    purpose = DRAFT if wrong == "those of the drafts" else VERIFY
    nodes = np.zeros(7, np.int64) if wrong == "one for all" else np.arange(7)
    original = _node_uniforms(RowUniforms(keys, places, purpose), rows, nodes, 3).flatten(0, 1).roll(-1, 1)
    if rule == "traversal":
        return _token_counts(world, tree, traverse(distribution, tree, p, q, original[:, [0, -1]]))
    return _token_counts(world, tree, verify_trees(rule, distribution, tree, p, q, original))


def _node_uniforms(draws: RowUniforms, rows: np.ndarray, nodes, count: int) -> torch.Tensor:
    """Return uniforms float64 (R, N, count) of the rows' nodes."""
    found = draws(np.repeat(rows, len(nodes)), np.tile(np.asarray(nodes), len(rows)), count)
    return torch.from_numpy(found).view(len(rows), len(nodes), count)


def _token_counts(world, tree, done) -> torch.Tensor:
    depth, first, second = (part[done.nodes] for part in paths(tree, ROWS, 2, 2))
    one = torch.where(depth == 0, done.token, first)
    rng = torch.Generator().manual_seed(5)
    two = torch.where(depth == 1, done.token, torch.where(depth == 2, second, _sample(world.p[1][one], rng)))
    three = torch.where(depth == 2, done.token, _sample(world.p[2][one, two], rng))
    return torch.bincount(one * 9 + two * 3 + three, minlength=27).view(3, 3, 3).double()


def _sample(p: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    return torch.multinomial(shares(p), 1, generator=rng)[:, 0]


def _g_statistic(counts: torch.Tensor) -> float:
    """Return the G statistic of the counts."""
    expected, there = ROWS * worlds(3)[0].joint(), counts > 0
    return float(2 * (counts[there] * (counts[there] / expected[there]).log()).sum())
