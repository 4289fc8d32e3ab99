"""How many drafted layers any exact rule could pass, at most.

A layer passes where all its outputs are among its drafts. Whatever the joint law of both, for each set H of
pairs and each j it does so with a probability of at most

    1 - P(j or more outputs in H) + P(j or more drafts in H)

With one output the best H holds the pairs of the highest p / q, and the bound is the optimum itself (Hu et
al., arXiv 2502.18779); with several, such sets give a bound that perhaps no rule reaches.
"""

import numpy as np
import torch

from dare_job.decode.beam.descent import Descent
from dare_job.decode.beam.drafting import BeamDrafts
from dare_job.decode.beam.engine import BeamEngine
from dare_job.decode.beam.kernel import WITHOUT_REPLACEMENT, beam_distribution, log_likelihoods
from dare_job.decode.beam.layer import LayerOutput
from dare_job.decode.beam.rows import BeamRows

DRAWS = 400  # of outputs and drafts of a layer; half of them choose the set, the others measure it
EVERY = 16  # layers


class BoundedEngine(BeamEngine):
    """Notes the bound of one in ``EVERY`` judged layers in ``bounds``; texts are those of the engine."""

    def __init__(self, *args):
        super().__init__(*args)
        self.bounds: list[float] = []
        self._judged, self._generator = 0, torch.Generator().manual_seed(self.beams.seed)

    def _layer(
        self, rows: BeamRows, walk: Descent, logits: torch.Tensor, given: BeamDrafts | None
    ) -> LayerOutput:
        found = super()._layer(rows, walk, logits, given)
        if given is None:
            return found
        for place in np.flatnonzero((given.pairs[walk.active] >= 0).any(-1).cpu().numpy()):
            self._judged += 1
            if self._judged % EVERY == 1:
                row = walk.active[place]
                scores = log_likelihoods(torch.from_numpy(walk.likelihoods[[row]]), logits[[place]].cpu())
                p, _ = beam_distribution(scores, self.beams.warp)
                q, width = given.q[row].cpu(), int(found.widths[place])
                self.bounds.append(bound(p[0], q, self.beams.draft_width, width, self.beams.distribution,
                                         self.beams.draft_distribution, self._generator))
        return found


def bound(p: torch.Tensor, q: torch.Tensor, drafts: int, width: int, outputs: str, drawn: str,
          generator: torch.Generator, draws: int = DRAWS) -> float:
    """Of p and q float64 (S,), so many drafts and outputs, and their laws; an unbiased estimate of a bound.

    Pairs under rejected parents have no p; drafts of them pass nothing.
    """
    ratios = torch.where(q > 0, p / torch.where(q > 0, q, 1.0), torch.inf)
    inside = [_ratios(ratios, law, count, kind, draws, generator)
              for law, count, kind in ((p, width, outputs), (q, drafts, drawn))]
    half = draws // 2
    best = max(((_apart(inside, slice(half), j, least), j, least) for j in range(min(width, drafts))
                for least in np.unique(inside[0][:half, j]) if least > 0), default=None)
    return 1.0 if best is None else 1 - max(0.0, _apart(inside, slice(half, None), *best[1:]))


def _apart(inside: list[np.ndarray], which: slice, j: int, least: float) -> float:
    """How much oftener j + 1 outputs are in the set of pairs of this p / q at least than j + 1 drafts."""
    outs, drafts = (one[which, j] >= least for one in inside)
    return float(outs.mean() - drafts.mean())


def _ratios(ratios: torch.Tensor, law: torch.Tensor, count: int, kind: str, draws: int,
            generator: torch.Generator) -> np.ndarray:
    """p / q of the pairs in each of so many draws, falling, float64 (draws, count); -1 for one that came
    before, or is not there.
    """
    if kind == WITHOUT_REPLACEMENT:  # the first arrivals of a race are draws without replacement
        times = torch.empty(draws, len(law), dtype=law.dtype).exponential_(generator=generator) / law
        times, pairs = times.topk(min(count, len(law)), largest=False)
        found = torch.where(times.isfinite(), ratios[pairs], -1.0)
    else:
        pairs = torch.multinomial(law.expand(draws, -1), count, True, generator=generator).sort(-1).values
        again = torch.nn.functional.pad(pairs[:, 1:] == pairs[:, :-1], (1, 0))
        found = torch.where(again, -1.0, ratios[pairs])
    found = torch.nn.functional.pad(found, (0, count - found.shape[1]), value=-1.0)
    return found.sort(-1, descending=True).values.numpy()
