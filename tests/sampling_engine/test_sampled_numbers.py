"""Each random number decides one thing: one node's candidates, or one node's verdict, of one row and place.

Three thousand texts of the tiny models do not show it where numbers are shared, so it is seen here in what
the engine asks for, and in laws of 60,000 rows that the same functions draw and verify at once.
"""

from functools import partial

import numpy as np
import pytest
import torch
from decode_models import prompts, tiny
from draft_trees import laid_out, paths, shares
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
from dare_job.decode.settings import EngineSettings

ROWS, ODDS = 60_000, 1e-6  # odds of a false alarm of one test, had its seed not been fixed
RULES = [("rrs", "without_replacement"), ("greedy", "greedy"), ("priority", "iid"),
         ("traversal", "without_replacement")]


@pytest.fixture(scope="module")
def pair():
    return Target(tiny("llama", 0)), Target(tiny("llama", 1))


def asked_for(pair, rule, law, monkeypatch) -> list[tuple]:
    """Key, place, purpose and number of all random numbers that an engine's rows were drawn or judged by."""
    found = []

    def noted(keys, places, purpose, numbers, count):
        found.extend((bytes(key), place, purpose, number) for key, place, number in zip(
            keys, places.tolist(), numbers.tolist(), strict=True))
        return uniforms(keys, places, purpose, numbers, count)

    monkeypatch.setattr(random_streams, "uniforms", noted)
    target, draft = pair
    engine = SamplingEngine(target, EngineSettings(batch_size=3, nodes=12, depth=3),
                            Sampling(seed=1, law=law, rule=rule), ModelDrafter(draft, "2x2"))
    rows = [Request(n, text, max_new_tokens=12) for n, text in enumerate(prompts())]
    assert not any(result.error for result in engine.run(rows))
    return found


@pytest.mark.parametrize(("rule", "law"), RULES)
def test_no_number_is_used_twice(pair, rule, law, monkeypatch):
    found = asked_for(pair, rule, law, monkeypatch)
    assert len(found) > 300 and len(set(found)) == len(found)
    assert {purpose for _, _, purpose, _ in found} == {DRAFT, VERIFY}


@pytest.mark.parametrize("wrong", ["one number for all nodes of a row", "the numbers that drew"])
@pytest.mark.parametrize(("rule", "law"), RULES)
def test_numbers_that_are_used_twice_are_seen(pair, rule, law, wrong, monkeypatch):
    if wrong == "the numbers that drew":
        monkeypatch.setattr(sampling_engine, "VERIFY", DRAFT)
    else:
        own = tree_verification._query_uniforms
        monkeypatch.setattr(tree_verification, "_query_uniforms", lambda tree, numbers, count: own(
            tree, lambda rows, nodes, n: numbers(rows, 0 * nodes, n), count))
    found = asked_for(pair, rule, law, monkeypatch)
    assert len(set(found)) < len(found)


@pytest.mark.parametrize(("rule", "law"), [pair for pair in RULES if pair[0] != "priority"])
def test_the_law_of_many_rows_at_once(rule, law):
    """Three tokens, by G-tests against the law; and with numbers that are used twice it is another.

    But for two greedy candidates, of which one is drawn, by a number that no verdict on two asks for.
    """
    wrong = "one for all", "those that drew"
    right, shared, drew = (_distance(_texts(rule, law, how)) for how in ("", *wrong))
    assert right < chi2.isf(ODDS, 26) < shared
    assert drew > chi2.isf(ODDS, 26) or law == "greedy"


def _texts(rule: str, law: str, wrong: str) -> torch.Tensor:
    """Counts (V, V, V) of three tokens, the rest drawn from p by torch's numbers."""
    world, keys = worlds(3)[0], RowKeys(0).keys_of(range(ROWS))
    places, rows = np.full(ROWS, 7), np.arange(ROWS)
    drawn = partial(_numbers, RowUniforms(keys, places, DRAFT), rows)
    first = sample_candidates(DISTRIBUTIONS[law], world.q[0].expand(ROWS, -1), 2, drawn([0], 2)[:, 0])
    q = world.q[1][first.flatten().clamp_min(0)]
    second = sample_candidates(DISTRIBUTIONS[law], q, 2, drawn([1, 2], 2).flatten(0, 1)).view(ROWS, 2, 2)
    tree, p, q = laid_out(world, first, torch.where(first[:, :, None] == NONE, NONE, second))
    purpose = DRAFT if wrong == "those that drew" else VERIFY
    nodes = np.zeros(7, np.int64) if wrong == "one for all" else np.arange(7)
    own = _numbers(RowUniforms(keys, places, purpose), rows, nodes, 3).flatten(0, 1).roll(-1, 1)
    if rule == "traversal":
        return _counted(world, tree, traverse(law, tree, p, q, own[:, [0, -1]]))
    return _counted(world, tree, verify_trees(rule, law, tree, p, q, own))


def _numbers(draws: RowUniforms, rows: np.ndarray, nodes, count: int) -> torch.Tensor:
    """float64 (R, N, count) of the rows' nodes."""
    found = draws(np.repeat(rows, len(nodes)), np.tile(np.asarray(nodes), len(rows)), count)
    return torch.from_numpy(found).view(len(rows), len(nodes), count)


def _counted(world, tree, done) -> torch.Tensor:
    depth, first, second = (part[done.nodes] for part in paths(tree, ROWS, 2, 2))
    one = torch.where(depth == 0, done.token, first)
    rng = torch.Generator().manual_seed(5)
    two = torch.where(depth == 1, done.token, torch.where(depth == 2, second, _more(world.p[1][one], rng)))
    three = torch.where(depth == 2, done.token, _more(world.p[2][one, two], rng))
    return torch.bincount(one * 9 + two * 3 + three, minlength=27).view(3, 3, 3).double()


def _more(p: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    return torch.multinomial(shares(p), 1, generator=rng)[:, 0]


def _distance(counts: torch.Tensor) -> float:
    """G of the counts against the law."""
    expected, there = ROWS * worlds(3)[0].law(), counts > 0
    return float(2 * (counts[there] * (counts[there] / expected[there]).log()).sum())
