"""Two layers of speculative beams by enumeration: every draft, verdict and output, by the code itself.

Two input beams, few tokens. A verdict is forced by its uniforms (0 accepts, 1 rejects) and has the
probability that the kernel reports.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import torch

from dare_job.decode.beam import kernel, layer
from dare_job.decode.beam.kernel import beam_distribution, log_likelihoods
from dare_job.decode.sampling.distributions import NONE, distribution_for, enumerate_candidates
from dare_job.decode.sampling.rules import normalised
from dare_job.decode.settings import Warp

BEAMS = 2


def dropped(q, drafts, alive):
    return kernel.surviving_drafts(q, drafts, alive)


def counted(q, drafts, alive):
    """Drafts of rejected parents count as rejected, q stays as it is."""
    return q, drafts, q.new_ones(len(q))


def renormalised_and_counted(q, drafts, alive):
    return kernel.surviving_drafts(q, drafts, alive)[0], drafts, q.new_ones(len(q))


def dropped_as_it_is(q, drafts, alive):
    return q * alive, kernel.surviving_drafts(q, drafts, alive)[1], q.new_ones(len(q))


class World:
    """Logits of two models: behind each beam (B, V), and behind each of their tokens (B * V, V)."""

    def __init__(self, tokens: int, seed: int, apart: float = 1.0, settings: Warp | None = None):
        generator = torch.Generator().manual_seed(seed)
        self.tokens, self.settings = tokens, settings or Warp()
        shapes = (BEAMS, tokens), (BEAMS * tokens, tokens)
        self.p = [torch.randn(shape, generator=generator) for shape in shapes]
        self.q = [p + apart * torch.randn(p.shape, generator=generator) for p in self.p]
        self.beams = torch.log_softmax(torch.randn(1, BEAMS, generator=generator).double(), -1)

    def first(self, logits):
        """Likelihoods (S,) of pairs, and their law (S,)."""
        scores = log_likelihoods(self.beams, logits[0][None])
        return scores.flatten(), beam_distribution(scores, self.settings)[0][0]

    def second(self, likelihoods, logits, pairs):
        """Law (B' * V,) behind pairs int64 (B',); one that is not there has likelihood -inf."""
        scores = log_likelihoods(likelihoods[None], logits[1][pairs][None])
        return beam_distribution(scores, self.settings)[0][0]


def verdicts(p, q, drafts, chances, widths, outputs, drawn):
    """All that may become of drafts (M, n): drafts, accepted (N, n) and outputs (N, W), and how probable."""
    n = drafts.shape[1]
    bits = torch.tensor(list(product((True, False), repeat=n)))
    rows, which = (x.flatten() for x in torch.meshgrid(torch.arange(len(drafts)), torch.arange(len(bits)),
                                                      indexing="ij"))
    forced = bits[which]
    judged = kernel.verify(p[rows], q[rows], drafts[rows], (~forced).double(), widths[rows], outputs, drawn)
    chances = chances[rows] * torch.where(forced, judged.probabilities, 1 - judged.probabilities).prod(-1)
    return completed(p, rows, drafts, judged, chances, widths, outputs)


def completed(p, rows, drafts, judged, chances, widths, outputs):
    """Every way in which outputs that no draft gave are drawn."""
    kept = chances > 0
    rows, chances, accepted, owed = rows[kept], chances[kept], judged.accepted[kept], judged.residual[kept]
    counts, most = accepted.sum(-1), int(widths.max())
    found = kernel.compact(torch.where(accepted, drafts[rows], NONE), most)
    for place in range(most):
        wanted = (counts <= place) & (place < widths[rows])
        weights = kernel.next_output_weights(p[rows], owed, found[:, :place], counts == place, outputs)
        shares = torch.cat((normalised(weights) * wanted[:, None], (~wanted).double()[:, None]), 1)
        at, value = shares.nonzero(as_tuple=True)
        chances = chances[at] * shares[at, value]
        rows, accepted, owed, counts = rows[at], accepted[at], owed[at], counts[at]
        column = torch.where(value < p.shape[1], value, found[at, place])
        found = torch.cat((found[at, :place], column[:, None], found[at, place + 1 :]), 1)
    return rows, accepted, found, chances


def table_of(world: World, n: int, outputs: str, drawn: str, treat=dropped, least=2, threshold=None,
             told=None):
    """Law of outputs of two layers: [W_2, outputs of layer 1, of layer 2], and what it should be given W_2
    and layer 1; then the law of layer 1, and what that should be.

    threshold  None: the width is ``least``; told: the law of drafts that the kernel is told, if another one
    """
    case = _Case(world, n, outputs, drawn, told or drawn, treat, least, threshold)
    scores, p = world.first(world.p)
    own, q = world.first(world.q)
    pairs, drafts, chances = len(p), *enumerate_candidates(distribution_for(drawn), q, n)
    w1 = int(case.widths(p[None], q[None], torch.ones(1)))
    rows, accepted, found, chances = case.verdicts(p.repeat(len(drafts), 1), q.repeat(len(drafts), 1), drafts,
                                                   chances, torch.full((len(drafts),), w1))
    base, most = w1 * world.tokens, case.most
    table = torch.zeros(most + 1, pairs**w1, base**most, dtype=torch.float64)
    reached, owed = torch.zeros(pairs**w1, dtype=torch.float64), {}
    for row, yes, outs, chance in zip(rows, accepted, found, chances, strict=True):
        key = int(_numbers(outs[None], pairs, w1))
        reached[key] += chance
        if key not in owed:
            second = world.second(scores[outs], world.p, outs)
            owed[key] = [drawn_law(second, size, outputs, most) for size in range(most + 1)]
        if yes.sum() < w1:  # the step ends here; what follows is drawn as it should be
            table[least, key] += chance * owed[key][least]
        else:
            case.second_layer(table[:, key], drafts[row], yes, scores, own, chance)
    should = torch.zeros_like(table)
    for key, laws in owed.items():
        for size in range(most + 1):
            should[size, key] = table[size, key].sum() * laws[size]
    return table, should, reached, drawn_law(p, w1, outputs, w1)


@dataclass
class _Case:
    world: World
    n: int
    outputs: str
    drawn: str
    told: str
    treat: Callable
    least: int
    threshold: float | None

    @property
    def most(self) -> int:
        return self.least if self.threshold is None else self.n

    def widths(self, p, q, mass):
        if self.threshold is None:
            return torch.full((len(p),), self.least)
        return layer.layer_widths(
            layer.accepted_tail(p, q, self.n, mass), self.threshold, self.least, self.most
        )

    def verdicts(self, p, q, drafts, chances, widths):
        return verdicts(p, q, drafts, chances, widths, self.outputs, self.told)

    def second_layer(self, table, drafts, yes, scores, own, chance):
        """Add what follows on accepted drafts (n,) to table [W_2, outputs]."""
        world = self.world
        q_all = world.second(own[drafts], world.q, drafts)
        p = world.second(torch.where(yes, scores[drafts], -torch.inf), world.p, drafts)
        second, chances = enumerate_candidates(distribution_for(self.drawn), q_all, self.n)
        m = len(second)
        alive = yes.repeat_interleave(world.tokens).repeat(m, 1)
        q, second, mass = self.treat(q_all.repeat(m, 1), second, alive)
        p = p.repeat(m, 1)
        w2 = self.widths(p, q, mass)
        rows, _, found, chances = self.verdicts(p, q, second, chances, w2)
        order = torch.where(yes, yes.cumsum(-1) - 1, 0)
        beams, tokens = found // world.tokens, found % world.tokens
        outs = torch.where(found >= 0, order[beams] * world.tokens + tokens, NONE)
        keys = _numbers(outs, int(yes.sum()) * world.tokens, self.most)
        table.index_put_((w2[rows], keys), chance * chances, accumulate=True)


def _numbers(outs, base: int, most: int):
    """Outputs (N, W), each below ``base``, as numbers below base ** most; places that are not there are 0."""
    outs = torch.nn.functional.pad(outs, (0, most - outs.shape[1])).clamp_min(0)
    return (outs * base ** torch.arange(most - 1, -1, -1)).sum(-1)


def drawn_law(p, size: int, outputs: str, most: int):
    """Law (B ** most,) of ``size`` draws from p (B,)."""
    found = torch.zeros(len(p) ** most, dtype=torch.float64)
    if size:
        tuples, chances = enumerate_candidates(distribution_for(outputs), p, size)
        found.index_put_((_numbers(tuples, len(p), most),), chances, accumulate=True)
    else:
        found[0] = 1
    return found


def distance(table, should) -> float:
    return float((table - should).abs().sum() / 2)
