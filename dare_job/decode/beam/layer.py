"""One layer of A rows: which beams go on, which end, and whether the drafts were enough.

Two ways: ``sampled`` by the kernel, and ``searched`` as in ``generate(num_beams=W)``.
"""

from typing import NamedTuple

import torch

from dare_job.decode.beam import kernel, width
from dare_job.decode.beam.joint import beam_law, log_likelihoods
from dare_job.decode.beam.settings import Beams
from dare_job.decode.sampling.laws import NONE
from dare_job.decode.sampling.steps import normalised


class Input(NamedTuple):
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


class Output(NamedTuple):
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


def sampled(beams: Beams, given: Input) -> Output:
    """Outputs drawn from p_beam, iid or without replacement, by drafts where these pass."""
    scores = log_likelihoods(given.likelihoods, given.logits, given.banned)
    p, sound = beam_law(scores, beams.warp)
    p, scores = normalised(p), scores.flatten(1)
    drafted = (given.drafts >= 0).any(-1)
    wide = torch.full_like(drafted, beams.width, dtype=torch.int64)
    drafts, count = given.drafts, given.drafts.shape[1]
    if given.q is not None and drafted.any():
        alive = (given.likelihoods > -torch.inf).repeat_interleave(given.logits.shape[-1], 1)
        q, drafts, mass = kernel.survivors(given.q, drafts, alive)
        reached = width.reach(p, q, count, mass)
        found = width.widths(reached, beams.threshold, beams.min_width, beams.width)
        wide = torch.where(drafted, found, wide)
        beta = reached[:, beams.min_width].clamp_max(beams.threshold) * drafted
        judged = kernel.judge(p, q, drafts, given.verify, wide, beams.law, beams.draft_law)
    else:
        judged = kernel.judge(p, p, drafts[:, :0], given.verify[:, :0], wide, beams.law, beams.draft_law)
        drafts, drafted, beta = drafts[:, :0], torch.zeros_like(drafted), p.new_zeros(len(p))
    pairs = kernel.complete(p, judged, drafts, given.residual, wide, beams.law)
    outs = _beams(pairs, scores, given)
    over = _ending(outs, given)
    accepted = torch.nn.functional.pad(_likelihoods(drafts, scores, judged.accepted, given),
                                       (0, count - drafts.shape[1]), value=-torch.inf)
    return Output(_only(outs, ~over), _only(outs, over), accepted, drafted & (judged.counts >= wide),
                  (pairs >= 0).sum(-1), sound, beta)


def searched(beams: Beams, given: Input, eos: int) -> Output:
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
    over = _ending(best, given)
    order = torch.where(over, -torch.inf, values).topk(min(beams.width, asked)).indices
    running = _only(Beam(*(field.gather(1, order) for field in best)), ~over.gather(1, order))
    ended = _only(Beam(*(field[:, : beams.width] for field in best)), over[:, : beams.width])
    chosen = torch.where(running.likelihoods > -torch.inf, pairs.gather(1, order), NONE)
    same = (chosen[:, :, None] == given.drafts[:, None]) & (chosen >= 0)[:, :, None]  # (A, W, n)
    accepted = torch.where(same, running.likelihoods[:, :, None], -torch.inf).amax(1)
    passed = (same.any(-1) | (chosen < 0)).all(-1) & (chosen >= 0).any(-1)
    kept = (pairs[:, : beams.width] >= 0).sum(-1)
    return Output(running, ended, accepted, passed, kept, sound, passed.double())


def _beams(pairs: torch.Tensor, scores: torch.Tensor, given: Input) -> Beam:
    vocabulary = given.logits.shape[-1]
    known = pairs.clamp_min(0)
    values = torch.where(pairs >= 0, scores.gather(1, known).double(), -torch.inf)
    return Beam(known // vocabulary, known % vocabulary, values)


def _ending(beams: Beam, given: Input) -> torch.Tensor:
    return given.ends.gather(1, beams.tokens) & (beams.likelihoods > -torch.inf)


def _only(beams: Beam, which: torch.Tensor) -> Beam:
    return beams._replace(likelihoods=torch.where(which, beams.likelihoods, -torch.inf))


def _likelihoods(drafts, scores, accepted, given):
    known = drafts.clamp_min(0)
    goes_on = accepted & ~given.ends.gather(1, known % given.logits.shape[-1])
    return torch.where(goes_on, scores.gather(1, known), -torch.inf)
