"""One level of sampled beam search, verified: K outputs of the target's law from drafts of another one.

Rows are independent; places are numbers of candidates. p, q float64 (S, A) sum to 1; q to 0 where nothing
was drafted. drafts int64 (S, N): drawn one after the other without replacement from q, NONE behind. A kernel
gives places int64 (S, k), and bool (S,): whether the draft is verified further down.

Chance of sampled beam search, as an argument: a row's numbers hang on nothing but its key and its own
steps.

Whatever else would be decided by chance goes through these two methods, so that tests can follow all that may
happen, each with its probability, through the code that samples.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from dare_job.decode.sampling.random_streams import CHOICE, RESIDUAL, VERIFY, uniforms
from dare_job.decode.sampling.rules import acceptance_ratio, gather_at, normalised
from dare_job.decode.trie_search.trie import NONE


class Randomness(Protocol):
    def accept(self, rows: np.ndarray, number: int, probability: torch.Tensor) -> torch.Tensor:
        """bool (S,): whether draft ``number`` of rows (S,) is accepted, with probabilities float64 (S,)."""

    def order(self, rows: np.ndarray, nodes: torch.Tensor, weights: torch.Tensor, limits: torch.Tensor,
              purpose: int) -> torch.Tensor:
        """Places int64 (S, max(limits)), NONE behind a row's limit or support: drawn one after the other by
        weights float64 (S, A), none twice (Plackett-Luce).

        nodes int64 (S, A): what stands in the places; limits int64 (S,)
        """

    def turn(self, rows: np.ndarray) -> None:
        """What rows (S,) decide from now on is decided anew."""


class RowRandomness:
    """keys uint64 (R, 2): of the rows, by ``Seeds.keys_of``."""

    def __init__(self, keys: np.ndarray):
        self._keys, self._turns = keys, np.zeros(len(keys), np.int64)

    def accept(self, rows: np.ndarray, number: int, probability: torch.Tensor) -> torch.Tensor:
        found = uniforms(self._keys[rows], self._turns[rows], VERIFY, np.full(len(rows), number), 1)[:, 0]
        return torch.from_numpy(found).to(probability.device) < probability

    def order(self, rows: np.ndarray, nodes: torch.Tensor, weights: torch.Tensor, limits: torch.Tensor,
              purpose: int) -> torch.Tensor:
        """By a race: candidate a arrives at -log(1 - u_a) / weight_a; a number hangs on the node alone."""
        count, width = int(limits.max()), weights.shape[1]
        every = np.repeat(rows, width)
        found = uniforms(self._keys[every], self._turns[every], purpose,
                         nodes.clamp_min(0).flatten().cpu().numpy(), 1).reshape(len(rows), width)
        times = -torch.log1p(-torch.from_numpy(found).to(weights.device)) / normalised(weights)
        times = times.masked_fill(weights <= 0, torch.inf)
        arrived, places = times.sort(dim=-1, stable=True)
        arrived, places = arrived[:, :count], places[:, :count]
        late = torch.arange(places.shape[1], device=limits.device) >= limits[:, None]
        return places.masked_fill(late | (arrived == torch.inf), -1)

    def turn(self, rows: np.ndarray) -> None:
        self._turns[rows] += 1

Kernel = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def exact(
    p: torch.Tensor,
    q: torch.Tensor,
    drafts: torch.Tensor,
    k: int,
    chance: Randomness,
    rows: np.ndarray,
    nodes: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Places int64 (S, k) with the law of k draws from p without replacement, in their order; NONE behind the
    support.

    O = (), r = p, s = q. A draft x is accepted with probability min(1, r(x) / s(x)): then O gets x and r is p
    without O; else r becomes norm(r - s)+. In both cases s loses x. When drafts run out, one more output has
    the law r and the rest that of p without O. The draft is always verified further down.
    """
    r, s, taken = p, normalised(q), torch.zeros_like(p, dtype=torch.bool)
    out = torch.full((len(p), k), NONE, dtype=torch.int64, device=p.device)
    count = torch.zeros(len(p), dtype=torch.int64, device=p.device)
    for number, x in enumerate(drafts.unbind(1)):
        live = (x != NONE) & (count < k)
        if not live.any():  # below beams that were not taken; or nothing is wanted any more
            continue
        passed = live & chance.accept(
            rows, number, torch.where(live, acceptance_ratio(gather_at(r, x), gather_at(s, x)), 0)
        )
        failed = live & ~passed
        _append(out, taken, count, x, passed)
        left = normalised(p.masked_fill(taken, 0))
        r = torch.where(passed[:, None], left, torch.where(failed[:, None], _residual(r, s), r))
        s = torch.where(live[:, None], normalised(s.scatter(1, x.clamp_min(0)[:, None], 0)), s)
    one = chance.order(rows, nodes, r, (count < k).long(), RESIDUAL)
    if one.shape[1]:
        _append(out, taken, count, one[:, 0], one[:, 0] != NONE)
    out = _fill(out, taken, count, p, k, chance, rows, nodes)
    return out, torch.ones_like(count, dtype=torch.bool)


def relaxed(
    p: torch.Tensor,
    q: torch.Tensor,
    drafts: torch.Tensor,
    k: int,
    chance: Randomness,
    rows: np.ndarray,
    nodes: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """AtSpeed's algorithm 2, as published. Lossy: its outputs do not have the law of p.

    Each draft is accepted with probability min(1, p / q), whatever became of the others. Of k and more that
    were accepted k are taken at random; fewer are topped up from norm(p - q)+ without them, which ends the
    draft.
    """
    accepted = torch.zeros_like(p, dtype=torch.bool)
    q = normalised(q)
    for number, x in enumerate(drafts.unbind(1)):
        there = x != NONE
        passed = there & chance.accept(
            rows, number, torch.where(there, acceptance_ratio(gather_at(p, x), gather_at(q, x)), 0)
        )
        accepted.scatter_(1, x.clamp_min(0)[:, None], passed[:, None] | accepted.gather(
            1, x.clamp_min(0)[:, None]))
    enough = torch.full((len(p),), k, device=p.device)
    chosen = chance.order(rows, nodes, accepted.double(), enough, RESIDUAL)
    out = torch.full((len(p), k), NONE, dtype=torch.int64, device=p.device)
    out[:, :chosen.shape[1]] = chosen
    count, taken = (out != NONE).sum(1), accepted.clone()
    more_there = (p.masked_fill(taken, 0) > 0).any(1)
    through = (count == k) | ~more_there | ~(q > 0).any(1)
    gap = normalised((p - q).clamp_min(0).masked_fill(taken, 0))
    more = chance.order(rows, nodes, gap, k - count, CHOICE)
    for x in more.unbind(1):
        _append(out, taken, count, x, x != NONE)
    return _fill(out, taken, count, p, k, chance, rows, nodes), through


def _append(out: torch.Tensor, taken: torch.Tensor, count: torch.Tensor, x: torch.Tensor,
            which: torch.Tensor) -> None:
    """Outputs x (S,) of the rows ``which``, in place."""
    own = which.nonzero()[:, 0]
    out[own, count[own]] = x[own]
    taken[own, x[own]] = True
    count[own] += 1


def _residual(r: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """norm(r - s)+; r where they are the same, for then nothing is ever rejected."""
    return normalised((r - s).clamp_min(0), otherwise=r)


def _fill(out: torch.Tensor, taken: torch.Tensor, count: torch.Tensor, p: torch.Tensor, k: int,
            chance: Randomness, rows: np.ndarray, nodes: torch.Tensor) -> torch.Tensor:
    """The rest by p without what is taken."""
    if bool((count < k).any()):
        more = chance.order(rows, nodes, p.masked_fill(taken, 0), k - count, CHOICE)
        for x in more.unbind(1):
            _append(out, taken, count, x, x != NONE)
    return out
