"""Sampled texts have the target's own distribution, whatever drafts them, and rows are independent."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from decode_models import tiny
from scipy.stats import chi2
from transformers import RepetitionPenaltyLogitsProcessor

from dare_job.decode.draft.model import ModelDrafter
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.sampling.engine import Sampling, SamplingEngine
from dare_job.decode.settings import EngineSettings, Warp
from dare_job.generate.baseline import generate_texts
from pools.draft import DraftSettings
from pools.index import Index

V, NEW, ROWS = 6, 3, 3000
ODDS = 1e-6  # probability that a correct engine fails one of these tests, over random seeds
PROMPT = np.array([1, 4, 2], np.int32)
WARP = Warp(temperature=0.8, top_k=5)


def model(seed: int):
    small = tiny("llama", seed, vocab_size=V)
    with torch.no_grad():
        for weight in small.parameters():
            if weight.dim() > 1:
                weight.mul_(0.6)  # near enough to each other that drafts of one pass in the other
    return small


@pytest.fixture(scope="module")
def target():
    return Target(model(0))


@pytest.fixture(scope="module")
def distribution(target):
    """Return the exact probabilities float64 (V, V, V) of the tokens after the prompt."""
    return exact(target, NEW)


def exact(target, new):
    grid = np.indices((V,) * (new - 1)).reshape(new - 1, -1).T
    ids = torch.from_numpy(np.concatenate((np.tile(PROMPT, (len(grid), 1)), grid), 1).astype(np.int64))
    with torch.inference_mode(), target.as_transformers() as plain:
        logits = plain(ids).logits[:, len(PROMPT) - 1 :].double() / WARP.temperature
    least = logits.topk(WARP.top_k).values[..., -1:]
    shares = logits.masked_fill(logits < least, -torch.inf).softmax(-1).numpy()
    shares = shares.reshape(*(V,) * (new - 1), new, V)
    found = np.ones(())
    for place in range(new):
        prefix = (slice(None),) * place + (0,) * (new - 1 - place)
        found = found[..., None] * shares[(*prefix, place)]
    return found


def drafter(kind: str):
    if kind in ("none", "old"):
        return None
    if kind == "retrieval":
        return RetrievalDrafter(DraftSettings(threads=1))
    return ModelDrafter(Target(model(1)), kind)


def engine(
    target,
    kind: str,
    rule: str = "rrs",
    draft_distribution: str = "without_replacement",
    seed: int = 5,
    batch: int = 500,
    warp: Warp = WARP,
    new: int = NEW,
):
    settings = EngineSettings(max_new_tokens=new, batch_size=batch, nodes=12, depth=3, score="always")
    return SamplingEngine(target, settings, Sampling(warp, seed, draft_distribution, rule), drafter(kind))


def requests(kind: str, rows: int):
    pool = Index.build([np.random.default_rng(3).integers(0, V, 400).astype(np.int32)])
    old = np.array([3, 1, 5, 2], np.int32) if kind == "old" else None
    pools = (pool,) if kind == "retrieval" else ()
    return [Request(n, PROMPT, pools, previous_ids=old) for n in range(rows)]


CASES = [("retrieval", "rrs", "without_replacement"), ("3x2", "rrs", "iid"), ("3x2", "mcss", "iid"),
         ("2x2", "k_seq", "iid"), ("1x1", "speculative", "iid"), ("3x2", "greedy", "greedy"),
         ("2x2", "spechub", "spechub"), ("3x2", "traversal", "without_replacement")]
MORE = [("none", "rrs", "without_replacement"), ("old", "rrs", "without_replacement"),
        ("3x2", "rrs", "without_replacement"), ("3x2", "naive", "top_k"), ("3x2", "priority", "iid"),
        ("3x2", "greedy", "without_replacement"), ("3x1", "rrs", "distinct")]


def ends(table: np.ndarray, bad: int) -> np.ndarray:
    """Sum a table of texts by the position of the first bad token, with texts without one last."""
    left, found = table, []
    for place in range(table.ndim):
        here = (*[slice(None)] * place, bad)
        left, taken = left.copy(), left[here].sum()
        left[here] = 0
        found.append(taken)
    return np.array([*found, left.sum()])


def distance(results, distribution: np.ndarray) -> tuple[float, int]:
    """Return the G statistic of the texts' counts, with rare texts merged, and its degrees of freedom."""
    counts = np.zeros(distribution.shape)
    for result in results:
        counts[tuple(result.token_ids)] += 1
    assert not counts[distribution == 0].any()
    expected = counts.sum() * distribution
    rare = expected < 5
    observed, expected_counts = (np.append(part[~rare], part[rare].sum()) for part in (counts, expected))
    there = observed > 0
    return 2 * (observed[there] * np.log(observed[there] / expected_counts[there])).sum(), len(observed) - 1


@pytest.mark.parametrize(
    ("kind", "rule", "draft_distribution"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)])
def test_texts_have_the_target_distribution(target, distribution, kind, rule, draft_distribution):
    results = list(engine(target, kind, rule, draft_distribution).run(requests(kind, ROWS)))
    found, degrees = distance(results, distribution)
    assert len(results) == ROWS and found < chi2.isf(ODDS, degrees)
    if kind != "none":
        assert sum(result.accepted_tokens + result.reused_tokens for result in results) > 0.1 * ROWS


@pytest.mark.parametrize(("kind", "rule", "draft_distribution"), [
    ("1x1", "speculative", "iid"),
    pytest.param("3x2", "traversal", "without_replacement", marks=pytest.mark.release),
    pytest.param("3x2", "rrs", "without_replacement", marks=pytest.mark.slow),
    pytest.param("2x2", "traversal", "without_replacement", marks=pytest.mark.slow)])
def test_nonfinite_logits_after_a_token_keep_the_distribution(target, kind, rule, draft_distribution):
    """A drafted node with that token makes its row's forward pass non-finite.

    The text must end there with its exact probability. The first token is never bad, so two levels are
    drafted after it.
    """
    small, bad, new = model(0), 3, 4
    with torch.no_grad():
        small.get_input_embeddings().weight[bad] = torch.nan
    expected = exact(target, new)
    for place in range(new - 1):  # of texts that end early the rest counts as 0
        here, rest = (*[slice(None)] * place, bad), new - 1 - place
        ended = expected[here].sum(tuple(range(place, place + rest)))
        expected[here] = 0
        expected[(*here, *[0] * rest)] = ended
    broken, rows = Target(small, check=False), ROWS // 2
    results = list(engine(broken, kind, rule, draft_distribution, new=new).run(requests(kind, rows)))
    for result in results:
        assert bool(result.error) == (bad in result.token_ids[: new - 1])
        assert len(result.token_ids) == new or result.token_ids[-1] == bad and result.error
    texts = [SimpleNamespace(token_ids=np.pad(result.token_ids, (0, new - len(result.token_ids))))
             for result in results]
    found, degrees = distance(texts, expected)
    assert len(results) == rows and found < chi2.isf(ODDS, degrees)
    counts = np.zeros(expected.shape)
    np.add.at(counts, tuple(np.array([text.token_ids for text in texts]).T), 1)
    observed, expected_counts = ends(counts, bad), rows * ends(expected, bad)
    assert 2 * (observed * np.log(observed / expected_counts)).sum() < chi2.isf(ODDS, new)
    assert sum(result.accepted_tokens for result in results) > 0.1 * rows


def test_wrong_draft_distribution_is_detected(target, distribution):
    """Candidates sampled without replacement but verified as independent samples: a small error, which is
    detected.
    """
    wrong = engine(target, "3x2")
    sampled = wrong.drafter.sampled
    wrong.drafter.sampled = lambda *args: sampled(*args)._replace(distribution="iid")
    found, degrees = distance(wrong.run(requests("3x2", 3 * ROWS)), distribution)
    assert found > chi2.isf(ODDS, degrees)


def test_generate_samples_the_same_distribution(target, distribution):
    """``generate`` is the baseline of mode sample."""
    torch.manual_seed(0)
    found = generate_texts(target, requests("none", ROWS), 500, NEW, **WARP.generate_arguments())
    how_far, degrees = distance([SimpleNamespace(token_ids=text) for text in found], distribution)
    assert how_far < chi2.isf(ODDS, degrees)


def test_generation_config_is_honoured(distribution):
    """Its penalty and minimum length apply: the end of text is not sampled before."""
    small = model(0)
    small.generation_config.repetition_penalty, small.generation_config.eos_token_id = 1.7, 3
    target = Target(small)
    settings = EngineSettings(max_new_tokens=2, min_new_tokens=2, batch_size=500, nodes=12, depth=3)
    sampler = SamplingEngine(target, settings, Sampling(Warp(temperature=1.3), 1), drafter("3x2"))
    counts = np.zeros((V, V))
    for result in sampler.run(requests("3x2", ROWS)):
        counts[tuple(result.token_ids)] += 1
    texts = np.concatenate((np.tile(PROMPT, (V, 1)), np.arange(V)[:, None]), 1)
    ids = torch.from_numpy(texts.astype(np.int64))
    with torch.inference_mode(), target.as_transformers() as plain:
        logits = plain(ids).logits[:, -2:].double()
    shares = []
    for place in range(2):
        observed = ids[:, : len(PROMPT) + place]
        scores = RepetitionPenaltyLogitsProcessor(1.7)(observed, logits[:, place].clone())
        scores[:, 3] = -torch.inf
        shares.append((scores / 1.3).softmax(-1).numpy())
    expected = ROWS * shares[0][0][:, None] * shares[1]
    assert not counts[expected == 0].any()
    there = counts > 0
    assert 2 * (counts[there] * np.log(counts[there] / expected[there])).sum() < chi2.isf(ODDS, V * V - 1)
