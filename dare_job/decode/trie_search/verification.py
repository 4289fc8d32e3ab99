"""Verification of one level of sampled beam search: K outputs of the target distribution from drafts.

Rows are independent, and places are indices of candidates. p and q are float64 (S, A) with rows of sum 1; q
is zero where nothing was drafted. drafts int64 (S, N) were sampled from q without replacement, NONE at the
end. ``exact`` and ``relaxed`` return places int64 (S, k), and bool (S,): whether the draft's next level is
still valid.

All random decisions go through ``RowRandomness``, which tests replace to follow every outcome with its
probability.
"""

from collections.abc import Callable

import numpy as np
import torch

from dare_job.decode.sampling.random_streams import CHOICE, RESIDUAL, VERIFY, uniforms
from dare_job.decode.sampling.rules import acceptance_ratio, gather_at, normalised
from dare_job.decode.trie_search.trie import NONE


class RowRandomness:
    """Random decisions that depend only on a row's key and its own steps; keys uint64 (R, 2) of
    ``RowKeys.keys_of``.
    """

    def __init__(self, keys: np.ndarray):
        self._keys, self._steps = keys, np.zeros(len(keys), np.int64)

    def accept(self, rows: np.ndarray, draft_number: int, probability: torch.Tensor) -> torch.Tensor:
        """Decide whether draft ``draft_number`` of rows (S,) is accepted, with probabilities float64 (S,);
        bool (S,).
        """
        numbers = np.full(len(rows), draft_number)
        row_uniforms = uniforms(self._keys[rows], self._steps[rows], VERIFY, numbers, 1)[:, 0]
        return torch.from_numpy(row_uniforms).to(probability.device) < probability

    def sample_order(self, rows: np.ndarray, nodes: torch.Tensor, weights: torch.Tensor, limits: torch.Tensor,
                     purpose: int) -> torch.Tensor:
        """Sample places int64 (S, max(limits)) without replacement (Plackett-Luce).

        An exponential race: candidate a arrives at -log(1 - u_a) / weight_a, with u_a from the node alone.

        Parameters
        ----------
        rows : (S,)
        nodes : int64 (S, A)
            Node at each place.
        weights : float64 (S, A)
            Not normalised.
        limits : int64 (S,)
            Samples per row; NONE fills the places after a row's limit or support.
        purpose
            Random stream.
        """
        count, width = int(limits.max()), weights.shape[1]
        repeated_rows = np.repeat(rows, width)
        row_uniforms = uniforms(self._keys[repeated_rows], self._steps[repeated_rows], purpose,
                                nodes.clamp_min(0).flatten().cpu().numpy(), 1).reshape(len(rows), width)
        arrival_times = -torch.log1p(-torch.from_numpy(row_uniforms).to(weights.device)) / normalised(weights)
        arrival_times = arrival_times.masked_fill(weights <= 0, torch.inf)
        arrived, places = arrival_times.sort(dim=-1, stable=True)
        arrived, places = arrived[:, :count], places[:, :count]
        late = torch.arange(places.shape[1], device=limits.device) >= limits[:, None]
        return places.masked_fill(late | (arrived == torch.inf), NONE)

    def advance(self, rows: np.ndarray) -> None:
        """Use fresh randomness for the next decisions of rows (S,)."""
        self._steps[rows] += 1


Verification = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def exact(p: torch.Tensor, q: torch.Tensor, drafts: torch.Tensor, k: int, randomness: RowRandomness,
          rows: np.ndarray, nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample k outputs from p without replacement, reusing drafts; the output distribution is exact.

    O = (), r = p, s = q. A draft x is accepted with probability min(1, r(x) / s(x)). If accepted, O gets x
    and r becomes p without O; if rejected, r becomes norm(r - s)+. In both cases x is removed from s. When
    the drafts run out, the next output is sampled from r and the others from p without O (Qin et al., AAAI
    2025, with a target without replacement). The draft's next level always stays valid.

    Returns
    -------
    places : int64 (S, k)
        In sampling order; NONE once the support is exhausted.
    continues : bool (S,)
        All True.
    """
    r, s, selected = p, normalised(q), torch.zeros_like(p, dtype=torch.bool)
    out = torch.full((len(p), k), NONE, dtype=torch.int64, device=p.device)
    count = torch.zeros(len(p), dtype=torch.int64, device=p.device)
    for draft_number, x in enumerate(drafts.unbind(1)):
        pending = (x != NONE) & (count < k)
        if not pending.any():  # all drafts are below rejected beams, or all outputs are filled
            continue
        probability = torch.where(pending, acceptance_ratio(gather_at(r, x), gather_at(s, x)), 0)
        accepted = pending & randomness.accept(rows, draft_number, probability)
        rejected = pending & ~accepted
        _append(out, selected, count, x, accepted)
        remaining = normalised(p.masked_fill(selected, 0))
        r = torch.where(accepted[:, None], remaining, torch.where(rejected[:, None], _residual(r, s), r))
        s = torch.where(pending[:, None], normalised(s.scatter(1, x.clamp_min(0)[:, None], 0)), s)
    residual_sample = randomness.sample_order(rows, nodes, r, (count < k).long(), RESIDUAL)
    if residual_sample.shape[1]:
        _append(out, selected, count, residual_sample[:, 0], residual_sample[:, 0] != NONE)
    out = _fill(out, selected, count, p, k, randomness, rows, nodes)
    return out, torch.ones_like(count, dtype=torch.bool)


def relaxed(p: torch.Tensor, q: torch.Tensor, drafts: torch.Tensor, k: int, randomness: RowRandomness,
            rows: np.ndarray, nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Relaxed sampling verification of AtSpeed, algorithm 2, as published. Lossy: outputs do not have
    distribution p.

    Each draft is accepted independently with probability min(1, p / q). If at least k are accepted, k of them
    are chosen at random. If fewer are, samples from norm(p - q)+ without the accepted ones fill up, and the
    draft ends.

    Returns
    -------
    places : int64 (S, k)
        NONE once the support is exhausted.
    continues : bool (S,)
        Whether k drafts were accepted, no other candidate has p > 0, or nothing was drafted.
    """
    accepted = torch.zeros_like(p, dtype=torch.bool)
    q = normalised(q)
    for draft_number, x in enumerate(drafts.unbind(1)):
        present, place = x != NONE, x.clamp_min(0)[:, None]
        probability = torch.where(present, acceptance_ratio(gather_at(p, x), gather_at(q, x)), 0)
        accept = present & randomness.accept(rows, draft_number, probability)
        accepted.scatter_(1, place, accept[:, None] | accepted.gather(1, place))
    enough = torch.full((len(p),), k, device=p.device)
    chosen = randomness.sample_order(rows, nodes, accepted.double(), enough, RESIDUAL)
    out = torch.full((len(p), k), NONE, dtype=torch.int64, device=p.device)
    out[:, :chosen.shape[1]] = chosen
    count, selected = (out != NONE).sum(1), accepted.clone()
    has_more = (p.masked_fill(selected, 0) > 0).any(1)
    continues = (count == k) | ~has_more | ~(q > 0).any(1)
    residual = normalised((p - q).clamp_min(0).masked_fill(selected, 0))
    samples = randomness.sample_order(rows, nodes, residual, k - count, CHOICE)
    for x in samples.unbind(1):
        _append(out, selected, count, x, x != NONE)
    return _fill(out, selected, count, p, k, randomness, rows, nodes), continues


def _append(out: torch.Tensor, selected: torch.Tensor, count: torch.Tensor, x: torch.Tensor,
            which: torch.Tensor) -> None:
    """Append outputs x (S,) to the rows ``which``, in place."""
    row_index = which.nonzero()[:, 0]
    out[row_index, count[row_index]] = x[row_index]
    selected[row_index, x[row_index]] = True
    count[row_index] += 1


def _residual(r: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """Return norm(r - s)+, or r where they are equal, since a rejection then has probability 0."""
    return normalised((r - s).clamp_min(0), otherwise=r)


def _fill(out: torch.Tensor, selected: torch.Tensor, count: torch.Tensor, p: torch.Tensor, k: int,
          randomness: RowRandomness, rows: np.ndarray, nodes: torch.Tensor) -> torch.Tensor:
    """Sample the missing outputs from p without the selected ones."""
    if bool((count < k).any()):
        samples = randomness.sample_order(rows, nodes, p.masked_fill(selected, 0), k - count, CHOICE)
        for x in samples.unbind(1):
            _append(out, selected, count, x, x != NONE)
    return out
