"""One layer of A rows: which beams continue, which end, and whether the drafts were enough.

``sample_layer`` uses ``verification``; ``search_layer`` is beam search as in ``generate(num_beams=W)``.

The dynamic width of a layer is the largest number of beams that the drafts reach with probability t, computed
from p and q alone. With p_1 = p, p_{j+1} = norm(p_j - q)+ and a_j = sum min(p_j, q), draft i is the first
accepted one with probability f_i = a_i prod_{j<i} (1 - a_j), and k of m drafts are accepted with probability

    P(m, 0) = prod_{j<=m} (1 - a_j),    P(m, k) = sum_i f_i P(m - i, k - 1)

so that W_L = max(W_min, max{K: sum_{k>=K} P(W_S, k) >= t}) (Qin et al., section 3.2, equations 2 to 7). The
width is exact for independent drafts and outputs; for others it is a heuristic that reads p and q alone, so
the outputs stay exact.
"""

from typing import NamedTuple

import torch

from dare_job.decode.beam import verification
from dare_job.decode.beam.verification import beam_distribution, log_likelihoods
from dare_job.decode.sampling.distributions import NONE
from dare_job.decode.sampling.rules import normalised
from dare_job.decode.settings import Beams


def acceptance_rates(p: torch.Tensor, q: torch.Tensor, n: int) -> torch.Tensor:
    """Return a_1 .. a_n float64 (R, n): a draft's acceptance after j - 1 rejections since the last
    acceptance.
    """
    rates = []
    for _ in range(n):
        rates.append(torch.minimum(p, q).sum(-1).clamp_max(1.0))
        p = normalised((p - q).clamp_min(0), p)
    return torch.stack(rates, -1)


def accepted_count_table(a: torch.Tensor) -> torch.Tensor:
    """Return P float64 (R, n + 1, n + 1) from rates (R, n); [m, k] is the probability that k of m drafts are
    accepted.
    """
    rows, n = a.shape
    none_accepted = torch.cat((a.new_ones(rows, 1), (1 - a).cumprod(-1)), -1)  # (R, n + 1)
    first = a * none_accepted[:, :-1]
    table = a.new_zeros(rows, n + 1, n + 1)
    table[:, :, 0] = none_accepted
    for k in range(1, n + 1):
        for m in range(k, n + 1):
            table[:, m, k] = (first[:, :m] * table[:, :m, k - 1].flip(-1)).sum(-1)
    return table


def tail_probabilities(table: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """Return the probability float64 (R, n + 1) that at least K of n drafts are accepted.

    mass (R,) is the probability that a draft's parent is among the beams. Other drafts are dropped, so the
    number of drafts that count is binomially distributed.
    """
    n = table.shape[1] - 1
    m = torch.arange(n + 1, dtype=mass.dtype, device=mass.device)
    log_binomials = torch.lgamma(m.new_tensor(n + 1.0)) - torch.lgamma(m + 1) - torch.lgamma(n - m + 1)
    rest = (1 - mass[:, None]).clamp_min(0)
    weights = log_binomials.exp() * mass[:, None] ** m * rest ** (n - m)  # 0 ** 0 is 1
    distribution = (weights[:, :, None] * table).sum(1)
    return distribution.flip(-1).cumsum(-1).flip(-1)


def accepted_tail(p: torch.Tensor, q: torch.Tensor, n: int, mass: torch.Tensor) -> torch.Tensor:
    """Return the probability float64 (R, n + 1) that at least K of n drafts are accepted, for p and q (R, S).
    """
    return tail_probabilities(accepted_count_table(acceptance_rates(p, q, n)), mass)


def layer_widths(tail: torch.Tensor, threshold: float, min_width: int, max_width: int) -> torch.Tensor:
    """Return W_L int64 (R,) within [min_width, max_width] from ``accepted_tail``."""
    reached = tail[:, 1:] >= threshold - 1e-12  # tolerance for rounding
    return reached.sum(-1).clamp(min_width, max_width)


def min_expected_layers(threshold: float, beta: float, layers: int) -> float:
    """Return a lower bound on the expected layers of a step: (1 - b**(layers + 1)) / (1 - b) with b = min(t,
    beta).

    Theorem 3.2 prints it as an equality; for p = q the expectation is layers + 1. beta is the least
    probability, over layers, that W_min drafts are accepted.
    """
    pass_probability = min(threshold, beta)
    return float(sum(pass_probability**layer for layer in range(layers + 1)))


class LayerInput(NamedTuple):
    """Input of a layer.

    Attributes
    ----------
    likelihoods : float64 (A, B)
        Log P of the input beams, -inf where there is none.
    logits : float32 (A, B, V)
        After them.
    banned : bool (A, V)
        Tokens that are forbidden here; None for none.
    ends : bool (A, V)
        Tokens that end a beam.
    drafts : int64 (A, n)
        Pairs beam * V + token, NONE where there is none.
    q : float64 (A, B * V)
        Distribution of the drafts; None for deterministic drafts.
    verify, residual : float64 (A, n) and (A, W)
        Uniforms in [0, 1).
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
    """W beams of A rows: parents among the input beams and tokens int64 (A, W), and log P float64 (A, W) or
    -inf.
    """

    parents: torch.Tensor
    tokens: torch.Tensor
    likelihoods: torch.Tensor


class LayerOutput(NamedTuple):
    """Result of a layer.

    Attributes
    ----------
    running, ended
        Beams that continue, and beams that ended here.
    accepted : float64 (A, n)
        Log P of drafts that continue, -inf for the others.
    passed : bool (A,)
        Whether all continuing beams were drafted, so that the next drafted layer is valid.
    widths : int64 (A,)
        Number of beams that the layer kept.
    finite : bool (A,)
        Whether the target's logits are finite.
    beta : float64 (A,)
        Probability that W_min drafts are accepted, at most t; 0 without drafts.
    """

    running: Beam
    ended: Beam
    accepted: torch.Tensor
    passed: torch.Tensor
    widths: torch.Tensor
    finite: torch.Tensor
    beta: torch.Tensor


def sample_layer(beams: Beams, inputs: LayerInput) -> LayerOutput:
    """Sample outputs from p_beam, iid or without replacement, reusing accepted drafts."""
    scores = log_likelihoods(inputs.likelihoods, inputs.logits, inputs.banned)
    p, finite = beam_distribution(scores, beams.warp)
    p, scores = normalised(p), scores.flatten(1)
    drafted = (inputs.drafts >= 0).any(-1)
    widths = torch.full_like(drafted, beams.width, dtype=torch.int64)
    drafts, count = inputs.drafts, inputs.drafts.shape[1]
    if inputs.q is not None and drafted.any():
        alive = (inputs.likelihoods > -torch.inf).repeat_interleave(inputs.logits.shape[-1], 1)
        q, drafts, mass = verification.surviving_drafts(inputs.q, drafts, alive)
        tail = accepted_tail(p, q, count, mass)
        kept_widths = layer_widths(tail, beams.threshold, beams.min_width, beams.width)
        widths = torch.where(drafted, kept_widths, widths)
        beta = tail[:, beams.min_width].clamp_max(beams.threshold) * drafted
        verified = verification.verify(p, q, drafts, inputs.verify, widths, beams.distribution,
                                 beams.draft_distribution)
    else:
        verified = verification.verify(p, p, drafts[:, :0], inputs.verify[:, :0], widths, beams.distribution,
                                 beams.draft_distribution)
        drafts, drafted, beta = drafts[:, :0], torch.zeros_like(drafted), p.new_zeros(len(p))
    pairs = verification.complete(p, verified, drafts, inputs.residual, widths, beams.distribution)
    outputs = _beams(pairs, scores, inputs)
    ended = _ends_text(outputs, inputs)
    accepted = torch.nn.functional.pad(_draft_likelihoods(drafts, scores, verified.accepted, inputs),
                                       (0, count - drafts.shape[1]), value=-torch.inf)
    passed = drafted & (verified.counts >= widths)
    return LayerOutput(_filtered(outputs, ~ended), _filtered(outputs, ended), accepted, passed,
                       (pairs >= 0).sum(-1), finite, beta)


def search_layer(beams: Beams, inputs: LayerInput, eos: int) -> LayerOutput:
    """Select the most probable beams in float32 as ``generate`` does.

    Of the best 2 W pairs ((1 + eos) W for more than one end-of-text token) the W best that do not end
    continue. ``eos`` is the number of end-of-text tokens.
    """
    scores = log_likelihoods(inputs.likelihoods.float(), inputs.logits, inputs.banned)
    finite = scores.amax((1, 2)).isfinite()
    flat = torch.where(finite[:, None], scores.flatten(1), 0.0)
    count = min(flat.shape[1], max(2, 1 + eos) * beams.width)
    values, pairs = flat.topk(count)
    pairs = torch.where(values > -torch.inf, pairs, NONE)
    best = _beams(pairs, flat, inputs)
    ended_mask = _ends_text(best, inputs)
    order = torch.where(ended_mask, -torch.inf, values).topk(min(beams.width, count)).indices
    running = _filtered(Beam(*(field.gather(1, order) for field in best)), ~ended_mask.gather(1, order))
    ended = _filtered(Beam(*(field[:, : beams.width] for field in best)), ended_mask[:, : beams.width])
    chosen = torch.where(running.likelihoods > -torch.inf, pairs.gather(1, order), NONE)
    matches = (chosen[:, :, None] == inputs.drafts[:, None]) & (chosen >= 0)[:, :, None]  # (A, W, n)
    accepted = torch.where(matches, running.likelihoods[:, :, None], -torch.inf).amax(1)
    passed = (matches.any(-1) | (chosen < 0)).all(-1) & (chosen >= 0).any(-1)
    widths = (pairs[:, : beams.width] >= 0).sum(-1)
    return LayerOutput(running, ended, accepted, passed, widths, finite, passed.double())


def _beams(pairs: torch.Tensor, scores: torch.Tensor, inputs: LayerInput) -> Beam:
    vocabulary = inputs.logits.shape[-1]
    clamped = pairs.clamp_min(0)
    values = torch.where(pairs >= 0, scores.gather(1, clamped).double(), -torch.inf)
    return Beam(clamped // vocabulary, clamped % vocabulary, values)


def _ends_text(beams: Beam, inputs: LayerInput) -> torch.Tensor:
    return inputs.ends.gather(1, beams.tokens) & (beams.likelihoods > -torch.inf)


def _filtered(beams: Beam, which: torch.Tensor) -> Beam:
    return beams._replace(likelihoods=torch.where(which, beams.likelihoods, -torch.inf))


def _draft_likelihoods(drafts, scores, accepted, inputs):
    clamped = drafts.clamp_min(0)
    continues = accepted & ~inputs.ends.gather(1, clamped % inputs.logits.shape[-1])
    return torch.where(continues, scores.gather(1, clamped), -torch.inf)
