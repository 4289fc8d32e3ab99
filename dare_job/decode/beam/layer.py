"""One layer of A rows: which beams go on, which end, and whether the drafts were enough.

Two ways: ``sampled`` by the kernel, and ``searched`` as in ``generate(num_beams=W)``.

How many beams a layer keeps: as many as the drafts give with some probability, by p and q alone.

With p_1 = p, p_{j+1} = norm(p_j - q)+ and a_j = sum min(p_j, q), draft i is the first that is accepted with
probability f_i = a_i prod_{j<i} (1 - a_j), and k of m drafts are with

    P(m, 0) = prod_{j<=m} (1 - a_j),    P(m, k) = sum_i f_i P(m - i, k - 1)

so that W_L = max(W_min, max{K: sum_{k>=K} P(W_S, k) >= t}): Qin et al., section 3.2, equations 2 to 7. It is
exact for independent drafts and outputs; for others it is a rule like any other that reads p and q alone.
"""

from typing import NamedTuple

import torch

from dare_job.decode.beam import kernel
from dare_job.decode.beam.kernel import beam_distribution, log_likelihoods
from dare_job.decode.sampling.distributions import NONE
from dare_job.decode.sampling.rules import normalised
from dare_job.decode.settings import Beams


def acceptance_rates(p: torch.Tensor, q: torch.Tensor, n: int) -> torch.Tensor:
    """a_1 .. a_n float64 (R, n): a draft's acceptance where all since the last accepted one were rejected."""
    found = []
    for _ in range(n):
        found.append(torch.minimum(p, q).sum(-1).clamp_max(1.0))
        p = normalised((p - q).clamp_min(0), p)
    return torch.stack(found, -1)


def accepted_count_table(a: torch.Tensor) -> torch.Tensor:
    """P float64 (R, n + 1, n + 1) of rates (R, n): [m, k], that k of m drafts are accepted."""
    rows, n = a.shape
    missed = torch.cat((a.new_ones(rows, 1), (1 - a).cumprod(-1)), -1)  # (R, n + 1)
    first = a * missed[:, :-1]
    table = a.new_zeros(rows, n + 1, n + 1)
    table[:, :, 0] = missed
    for k in range(1, n + 1):
        for m in range(k, n + 1):
            table[:, m, k] = (first[:, :m] * table[:, :m, k - 1].flip(-1)).sum(-1)
    return table


def tail_probabilities(table: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """float64 (R, n + 1): probability that K or more of n drafts are accepted.

    mass (R,): probability that a draft's parent is among the beams; the others are dropped unseen, so that m
    of n drafts count with the probability of a binomial law.
    """
    n = table.shape[1] - 1
    m = torch.arange(n + 1, dtype=mass.dtype, device=mass.device)
    ways = torch.lgamma(m.new_tensor(n + 1.0)) - torch.lgamma(m + 1) - torch.lgamma(n - m + 1)
    share = ways.exp() * mass[:, None] ** m * (1 - mass[:, None]).clamp_min(0) ** (n - m)  # 0 ** 0 is 1
    law = (share[:, :, None] * table).sum(1)
    return law.flip(-1).cumsum(-1).flip(-1)


def accepted_tail(p: torch.Tensor, q: torch.Tensor, n: int, mass: torch.Tensor) -> torch.Tensor:
    """float64 (R, n + 1): probability that K or more of n drafts are accepted, of laws (R, S)."""
    return tail_probabilities(accepted_count_table(acceptance_rates(p, q, n)), mass)


def layer_widths(reached: torch.Tensor, threshold: float, least: int, most: int) -> torch.Tensor:
    """W_L int64 (R,) within [least, most], by what ``reach`` says."""
    enough = reached[:, 1:] >= threshold - 1e-12  # sums that rounding spoils
    return enough.sum(-1).clamp(least, most)


def min_expected_layers(threshold: float, beta: float, layers: int) -> float:
    """Least expected layers of a step with so many drafted ones: with b = min(t, beta),
    (1 - b**(layers + 1)) / (1 - b) (theorem 3.2, where it stands as an equality; p = q gives layers + 1).

    beta: least probability, over layers, that W_min drafts are accepted.
    """
    passed = min(threshold, beta)
    return float(sum(passed**layer for layer in range(layers + 1)))


class LayerInput(NamedTuple):
    """likelihoods float64 (A, B): log P of the input beams, -inf where there is none
    logits  float32 (A, B, V) behind them
    banned  bool (A, V): tokens that may not come yet; None: none
    ends    bool (A, V): tokens that end a beam
    drafts  int64 (A, n): pairs beam * V + token, NONE where there is none
    q       float64 (A, B * V): law of the drafts; None: they have none
    verify, residual  float64 (A, n) and (A, W) in [0, 1)
    """

    likelihoods: torch.Tensor
    logits: torch.Tensor
    banned: torch.Tensor | None
    ends: torch.Tensor
    drafts: torch.Tensor
    q: torch.Tensor | None
    verify: torch.Tensor | None
    residual: torch.Tensor | None


class Beam(NamedTuple):
    """W beams of A rows: parents among the input beams and tokens int64 (A, W), likelihoods float64 (A, W),
    -inf where there is none.
    """

    parents: torch.Tensor
    tokens: torch.Tensor
    likelihoods: torch.Tensor


class LayerOutput(NamedTuple):
    """running  beams that go on; ended: those that ended here
    accepted  float64 (A, n): log P of drafts that go on, -inf of the others
    passed    bool (A,): all that goes on was drafted, so that the next layer of drafts counts
    widths    int64 (A,): beams that the layer kept
    sound     bool (A,): the target's numbers are some
    beta      float64 (A,): probability that W_min of the drafts are accepted, at most t; 0 without drafts
    """

    running: Beam
    ended: Beam
    accepted: torch.Tensor
    passed: torch.Tensor
    widths: torch.Tensor
    sound: torch.Tensor
    beta: torch.Tensor


def sample_layer(beams: Beams, given: LayerInput) -> LayerOutput:
    """Outputs drawn from p_beam, iid or without replacement, by drafts where these pass."""
    scores = log_likelihoods(given.likelihoods, given.logits, given.banned)
    p, sound = beam_distribution(scores, beams.warp)
    p, scores = normalised(p), scores.flatten(1)
    drafted = (given.drafts >= 0).any(-1)
    wide = torch.full_like(drafted, beams.width, dtype=torch.int64)
    drafts, count = given.drafts, given.drafts.shape[1]
    if given.q is not None and drafted.any():
        alive = (given.likelihoods > -torch.inf).repeat_interleave(given.logits.shape[-1], 1)
        q, drafts, mass = kernel.surviving_drafts(given.q, drafts, alive)
        reached = accepted_tail(p, q, count, mass)
        found = layer_widths(reached, beams.threshold, beams.min_width, beams.width)
        wide = torch.where(drafted, found, wide)
        beta = reached[:, beams.min_width].clamp_max(beams.threshold) * drafted
        judged = kernel.verify(p, q, drafts, given.verify, wide, beams.law, beams.draft_law)
    else:
        judged = kernel.verify(p, p, drafts[:, :0], given.verify[:, :0], wide, beams.law, beams.draft_law)
        drafts, drafted, beta = drafts[:, :0], torch.zeros_like(drafted), p.new_zeros(len(p))
    pairs = kernel.complete(p, judged, drafts, given.residual, wide, beams.law)
    outs = _beams(pairs, scores, given)
    over = _ends_text(outs, given)
    accepted = torch.nn.functional.pad(_draft_likelihoods(drafts, scores, judged.accepted, given),
                                       (0, count - drafts.shape[1]), value=-torch.inf)
    return LayerOutput(
        _filtered(outs, ~over),
        _filtered(outs, over),
        accepted,
        drafted & (judged.counts >= wide),
        (pairs >= 0).sum(-1),
        sound,
        beta,
    )


def search_layer(beams: Beams, given: LayerInput, eos: int) -> LayerOutput:
    """The most probable beams, float32 as in ``generate``: the best of twice as many that do not end go on.

    eos: end-of-text tokens that there are; with more than one, of so many times more
    """
    scores = log_likelihoods(given.likelihoods.float(), given.logits, given.banned)
    sound = scores.amax((1, 2)).isfinite()
    flat = torch.where(sound[:, None], scores.flatten(1), 0.0)
    asked = min(flat.shape[1], max(2, 1 + eos) * beams.width)
    values, pairs = flat.topk(asked)
    pairs = torch.where(values > -torch.inf, pairs, NONE)
    best = _beams(pairs, flat, given)
    over = _ends_text(best, given)
    order = torch.where(over, -torch.inf, values).topk(min(beams.width, asked)).indices
    running = _filtered(Beam(*(field.gather(1, order) for field in best)), ~over.gather(1, order))
    ended = _filtered(Beam(*(field[:, : beams.width] for field in best)), over[:, : beams.width])
    chosen = torch.where(running.likelihoods > -torch.inf, pairs.gather(1, order), NONE)
    same = (chosen[:, :, None] == given.drafts[:, None]) & (chosen >= 0)[:, :, None]  # (A, W, n)
    accepted = torch.where(same, running.likelihoods[:, :, None], -torch.inf).amax(1)
    passed = (same.any(-1) | (chosen < 0)).all(-1) & (chosen >= 0).any(-1)
    kept = (pairs[:, : beams.width] >= 0).sum(-1)
    return LayerOutput(running, ended, accepted, passed, kept, sound, passed.double())


def _beams(pairs: torch.Tensor, scores: torch.Tensor, given: LayerInput) -> Beam:
    vocabulary = given.logits.shape[-1]
    known = pairs.clamp_min(0)
    values = torch.where(pairs >= 0, scores.gather(1, known).double(), -torch.inf)
    return Beam(known // vocabulary, known % vocabulary, values)


def _ends_text(beams: Beam, given: LayerInput) -> torch.Tensor:
    return given.ends.gather(1, beams.tokens) & (beams.likelihoods > -torch.inf)


def _filtered(beams: Beam, which: torch.Tensor) -> Beam:
    return beams._replace(likelihoods=torch.where(which, beams.likelihoods, -torch.inf))


def _draft_likelihoods(drafts, scores, accepted, given):
    known = drafts.clamp_min(0)
    goes_on = accepted & ~given.ends.gather(1, known % given.logits.shape[-1])
    return torch.where(goes_on, scores.gather(1, known), -torch.inf)
