"""Texts of drafted beams have the distribution of beam sampling, which is enumerated."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from beam_models import near, write
from scipy.stats import chi2

from dare_job.decode.beam import verification
from dare_job.decode.model.target import Target
from dare_job.decode.sampling.distributions import distribution_for, enumerate_candidates
from dare_job.decode.sampling.warp import warp
from dare_job.decode.settings import Beams, Warp

V, NEW, ROWS, EOS = 4, 3, 2000, 3
ODDS = 1e-6  # probability that a correct engine fails one of these tests, over random seeds
PROMPT = np.array([1, 2, 0], np.int32)
WARP = Warp(temperature=0.8, top_k=6)


@pytest.fixture(scope="module")
def target():
    return near("llama", 0.0, 0.6, EOS, vocab_size=V)


@pytest.fixture(scope="module")
def draft():
    return near("llama", 0.1, 0.6, EOS, vocab_size=V)


class Reference:
    """The distribution of a row's text, by following every sequence of beams."""

    def __init__(self, target: Target, beams: Beams):
        self.beams, self.texts = beams, Counter()
        paths = [path for size in range(NEW) for path in product(range(V), repeat=size)]
        self.logs = {}
        with torch.inference_mode(), target.as_transformers() as plain:
            for path in paths:
                ids = torch.tensor([[*PROMPT.tolist(), *path]])
                self.logs[path] = torch.log_softmax(plain(ids).logits[0, -1].double(), -1)
        self.follow([((), 0.0)], [], 1.0)

    def follow(self, live, finished, probability):
        """live: (tokens, log P) of beams; finished: (score, tokens), best first."""
        scores = torch.stack([self.logs[tokens] + value for tokens, value in live]).flatten()
        p = warp(scores[None], self.beams.warp)[0][0]
        distribution = distribution_for(self.beams.distribution)
        tuples, probabilities = enumerate_candidates(distribution, p, self.beams.width)
        for pairs, share in zip(tuples.tolist(), (probability * probabilities).tolist(), strict=True):
            outs = [((*live[pair // V][0], pair % V), float(scores[pair])) for pair in pairs if pair >= 0]
            self.one(outs, list(finished), share)

    def one(self, outs, finished, probability):
        tokens = len(outs[0][0])
        over = [out for out in outs if out[0][-1] == EOS or tokens == NEW]
        finished += [(value / tokens**self.beams.length_penalty, text) for text, value in over]
        finished = sorted(finished, key=lambda one: -one[0])[: self.beams.width]
        live = [out for out in outs if out not in over]
        best = max((value / tokens**self.beams.length_penalty for _, value in live), default=-np.inf)
        if not live or len(finished) == self.beams.width and best <= finished[-1][0]:
            self.texts[finished[0][1]] += probability
        else:
            self.follow(live, finished, probability)


def g_of(results, texts) -> tuple[float, int]:
    """Return the G statistic of the texts' counts, with rare texts merged, and its degrees of freedom."""
    observed = Counter(tuple(result.token_ids.tolist()) for result in results.values())
    assert not observed.keys() - texts.keys()
    names = sorted(texts)
    counts, expected = (np.array([of[name] for name in names], float) for of in (observed, texts))
    expected *= counts.sum() / expected.sum()
    rare = expected < 5
    counts, expected = (np.append(part[~rare], part[rare].sum()) for part in (counts, expected))
    there = counts > 0
    return 2 * (counts[there] * np.log(counts[there] / expected[there])).sum(), len(counts) - 1


CASES = [("plain", "iid", "iid"), ("plain", "without_replacement", "iid"), ("drafted", "iid", "iid"),
         ("drafted", "without_replacement", "without_replacement"),
         *(pytest.param(*case, marks=pytest.mark.release) for case in (
             ("drafted", "iid", "without_replacement"), ("drafted", "without_replacement", "iid")))]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(("how", "outputs", "draft_distribution"), CASES)
def test_texts_have_the_distribution_of_beam_sampling(target, draft, how, outputs, draft_distribution):
    """With a constant width of two beams, and three drafts per layer."""
    beams = Beams(2, 3, 2, layers=2, warp=WARP, distribution=outputs,
                  draft_distribution=draft_distribution, seed=5)
    texts = Reference(target, beams).texts
    assert sum(texts.values()) == pytest.approx(1)
    results = write(target, [PROMPT] * ROWS, beams, draft if how == "drafted" else None, max_new_tokens=NEW,
                    batch_size=500)
    found, degrees = g_of(results, texts)
    assert degrees > 5 and found < chi2.isf(ODDS, degrees)
    if how == "drafted":
        assert np.mean([result.target_steps for result in results.values()]) < 1.8


_WEIGHTS = verification.next_output_weights
WRONG = {
    "acceptance_ratio": lambda p, q: (p > 0).double(),
    "next_output_weights": lambda p, residual, earlier, first, outputs: _WEIGHTS(
        p, p, earlier, first, outputs
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_verification_is_detected(target, draft, monkeypatch, name):
    """Every possible draft is accepted, or remaining outputs are sampled from p rather than the residual."""
    monkeypatch.setattr(verification, name, WRONG[name])
    beams = Beams(2, 4, 2, layers=2, warp=WARP, seed=5)
    results = write(target, [PROMPT] * 2 * ROWS, beams, draft, max_new_tokens=NEW, batch_size=500)
    found, degrees = g_of(results, Reference(target, beams).texts)
    assert found > chi2.isf(ODDS, degrees)
