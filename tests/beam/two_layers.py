"""Two layers of speculative beams by enumeration: every draft, verification outcome and output, using the
code itself.

Two input beams, few tokens. A verification outcome is forced by its uniforms (0 accepts, 1 rejects) and has
the probability that the verification reports.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import get_args

import torch

from dare_job.decode.beam import layer, verification
from dare_job.decode.beam.verification import beam_distribution, log_likelihoods
from dare_job.decode.sampling.distributions import NONE, distribution_for, enumerate_candidates
from dare_job.decode.sampling.rules import normalised
from dare_job.decode.settings import BeamDistribution, Warp

DISTRIBUTION_NAMES = get_args(BeamDistribution)

BEAMS = 2


def dropped(q, drafts, alive):
    return verification.surviving_drafts(q, drafts, alive)


def counted(q, drafts, alive):
    """Drafts of rejected parents count as rejected, with q unchanged."""
    return q, drafts, q.new_ones(len(q))


def renormalised_and_counted(q, drafts, alive):
    return verification.surviving_drafts(q, drafts, alive)[0], drafts, q.new_ones(len(q))


def dropped_as_it_is(q, drafts, alive):
    return q * alive, verification.surviving_drafts(q, drafts, alive)[1], q.new_ones(len(q))


class World:
    """Logits of two models: after each beam (B, V), and after each of their tokens (B * V, V)."""

    def __init__(self, tokens: int, seed: int, apart: float = 1.0, settings: Warp | None = None):
        generator = torch.Generator().manual_seed(seed)
        self.tokens, self.settings = tokens, settings or Warp()
        shapes = (BEAMS, tokens), (BEAMS * tokens, tokens)
        self.p = [torch.randn(shape, generator=generator) for shape in shapes]
        self.q = [p + apart * torch.randn(p.shape, generator=generator) for p in self.p]
        self.beams = torch.log_softmax(torch.randn(1, BEAMS, generator=generator).double(), -1)

    def first(self, logits):
        """Return log-likelihoods (S,) of pairs, and their distribution (S,)."""
        scores = log_likelihoods(self.beams, logits[0][None])
        return scores.flatten(), beam_distribution(scores, self.settings)[0][0]

    def second(self, likelihoods, logits, pairs):
        """Return the distribution (B' * V,) after pairs int64 (B',); an absent pair has likelihood -inf."""
        scores = log_likelihoods(likelihoods[None], logits[1][pairs][None])
        return beam_distribution(scores, self.settings)[0][0]


def outcomes(p, q, drafts, probabilities, widths, outputs, draft_distribution):
    """Return all outcomes of drafts (M, n): rows, accepted (N, n), outputs (N, W), and their probabilities.
    """
    n = drafts.shape[1]
    bits = torch.tensor(list(product((True, False), repeat=n)))
    rows, which = (x.flatten() for x in torch.meshgrid(torch.arange(len(drafts)), torch.arange(len(bits)),
                                                       indexing="ij"))
    forced = bits[which]
    verified = verification.verify(
        p[rows], q[rows], drafts[rows], (~forced).double(), widths[rows], outputs, draft_distribution
    )
    probabilities = probabilities[rows] * torch.where(
        forced, verified.probabilities, 1 - verified.probabilities
    ).prod(-1)
    return complete_outputs(p, rows, drafts, verified, probabilities, widths, outputs)


def complete_outputs(p, rows, drafts, verified, probabilities, widths, outputs):
    """Follow every way to sample the outputs that no draft provided."""
    kept = probabilities > 0
    rows, probabilities, accepted, residual = (
        rows[kept],
        probabilities[kept],
        verified.accepted[kept],
        verified.residual[kept],
    )
    counts, max_width = accepted.sum(-1), int(widths.max())
    found = verification.compact(torch.where(accepted, drafts[rows], NONE), max_width)
    for place in range(max_width):
        wanted = (counts <= place) & (place < widths[rows])
        weights = verification.next_output_weights(p[rows], residual, found[:, :place], counts == place,
                                                   outputs)
        shares = torch.cat((normalised(weights) * wanted[:, None], (~wanted).double()[:, None]), 1)
        at, value = shares.nonzero(as_tuple=True)
        probabilities = probabilities[at] * shares[at, value]
        rows, accepted, residual, counts = rows[at], accepted[at], residual[at], counts[at]
        column = torch.where(value < p.shape[1], value, found[at, place])
        found = torch.cat((found[at, :place], column[:, None], found[at, place + 1 :]), 1)
    return rows, accepted, found, probabilities


def table_of(
    world: World,
    n: int,
    outputs: str,
    draft_distribution: str,
    treat=dropped,
    min_width=2,
    threshold=None,
    assumed=None,
):
    """Return the distribution of outputs of two layers, and what it should be.

    The tables are [W_2, outputs of layer 1, outputs of layer 2], the second one given W_2 and layer 1; then
    follow the actual and expected distribution of layer 1. threshold None makes the width ``min_width``;
    ``assumed`` is the draft distribution that the verification assumes, if it differs.
    """
    case = _Case(
        world, n, outputs, draft_distribution, assumed or draft_distribution, treat, min_width, threshold
    )
    scores, p = world.first(world.p)
    own, q = world.first(world.q)
    pairs, drafts, probabilities = len(p), *enumerate_candidates(distribution_for(draft_distribution), q, n)
    w1 = int(case.widths(p[None], q[None], torch.ones(1)))
    rows, accepted, found, probabilities = case.outcomes(
        p.repeat(len(drafts), 1),
        q.repeat(len(drafts), 1),
        drafts,
        probabilities,
        torch.full((len(drafts),), w1),
    )
    base, max_width = w1 * world.tokens, case.max_width
    table = torch.zeros(max_width + 1, pairs**w1, base**max_width, dtype=torch.float64)
    reached, expected = torch.zeros(pairs**w1, dtype=torch.float64), {}
    for row, accepted_mask, outs, probability in zip(rows, accepted, found, probabilities, strict=True):
        key = int(_output_keys(outs[None], pairs, w1))
        reached[key] += probability
        if key not in expected:
            second = world.second(scores[outs], world.p, outs)
            expected[key] = [
                sample_distribution(second, size, outputs, max_width) for size in range(max_width + 1)
            ]
        if accepted_mask.sum() < w1:  # the step ends here; what follows is draft_distribution as it should be
            table[min_width, key] += probability * expected[key][min_width]
        else:
            case.second_layer(table[:, key], drafts[row], accepted_mask, scores, own, probability)
    should = torch.zeros_like(table)
    for key, distributions in expected.items():
        for size in range(max_width + 1):
            should[size, key] = table[size, key].sum() * distributions[size]
    return table, should, reached, sample_distribution(p, w1, outputs, w1)


@dataclass
class _Case:
    world: World
    n: int
    outputs: str
    draft_distribution: str
    assumed: str
    treat: Callable
    min_width: int
    threshold: float | None

    @property
    def max_width(self) -> int:
        return self.min_width if self.threshold is None else self.n

    def widths(self, p, q, mass):
        if self.threshold is None:
            return torch.full((len(p),), self.min_width)
        return layer.layer_widths(
            layer.accepted_tail(p, q, self.n, mass), self.threshold, self.min_width, self.max_width
        )

    def outcomes(self, p, q, drafts, probabilities, widths):
        return outcomes(p, q, drafts, probabilities, widths, self.outputs, self.assumed)

    def second_layer(self, table, drafts, accepted_mask, scores, own, probability):
        """Add the outcomes after accepted drafts (n,) to table [W_2, outputs]."""
        world = self.world
        q_all = world.second(own[drafts], world.q, drafts)
        p = world.second(torch.where(accepted_mask, scores[drafts], -torch.inf), world.p, drafts)
        second, probabilities = enumerate_candidates(distribution_for(self.draft_distribution), q_all, self.n)
        m = len(second)
        alive = accepted_mask.repeat_interleave(world.tokens).repeat(m, 1)
        q, second, mass = self.treat(q_all.repeat(m, 1), second, alive)
        p = p.repeat(m, 1)
        w2 = self.widths(p, q, mass)
        rows, _, found, probabilities = self.outcomes(p, q, second, probabilities, w2)
        order = torch.where(accepted_mask, accepted_mask.cumsum(-1) - 1, 0)
        beams, tokens = found // world.tokens, found % world.tokens
        outs = torch.where(found >= 0, order[beams] * world.tokens + tokens, NONE)
        keys = _output_keys(outs, int(accepted_mask.sum()) * world.tokens, self.max_width)
        table.index_put_((w2[rows], keys), probability * probabilities, accumulate=True)


def _output_keys(outs, base: int, max_width: int):
    """Encode outputs (N, W), each below ``base``, as integers below base ** max_width; absent outputs count
    as 0.
    """
    outs = torch.nn.functional.pad(outs, (0, max_width - outs.shape[1])).clamp_min(0)
    return (outs * base ** torch.arange(max_width - 1, -1, -1)).sum(-1)


def sample_distribution(p, size: int, outputs: str, max_width: int):
    """Return the distribution (B ** max_width,) of ``size`` samples from p (B,)."""
    found = torch.zeros(len(p) ** max_width, dtype=torch.float64)
    if size:
        tuples, probabilities = enumerate_candidates(distribution_for(outputs), p, size)
        found.index_put_((_output_keys(tuples, len(p), max_width),), probabilities, accumulate=True)
    else:
        found[0] = 1
    return found


def distance(table, should) -> float:
    return float((table - should).abs().sum() / 2)
