"""The laws that a node's candidates are drawn from, each given by the law of the next candidate.

Drawing, enumerating and the recursive rule all go by that one function, so that they cannot disagree.
Everything is computed in float64 from the float32 numbers that it is given.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from dare_job.errors import ConfigError

NONE = -1  # in place of a candidate: the support holds no more


@dataclass(frozen=True)
class DraftDistribution:
    """A law of n candidates, first to last.

    after    of q float64 (R, V), earlier candidates int64 (R, j) and n: weights float64 (R, V) of candidate
             j, not normalised; all zero where there is none
    only     the one number of candidates that it is defined for; None: any
    what     how the candidates are drawn, for messages and documents
    """

    name: str
    after: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
    what: str
    only: int | None = None


def distribution_for(name: str) -> DraftDistribution:
    """By name; ConfigError where there is none."""
    if name not in DISTRIBUTIONS:
        raise ConfigError(f"no draft law {name!r}: use {', '.join(DISTRIBUTIONS)}")
    return DISTRIBUTIONS[name]


def without(q: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """A copy of q (R, V) in which the tokens int64 (R, j) have no weight; NONE is skipped."""
    q = q.clone()
    for column in tokens.split(1, 1):
        at = column.clamp_min(0)
        q.scatter_(1, at, q.gather(1, at) * (column < 0))
    return q


def one_hot_argmax(q: torch.Tensor) -> torch.Tensor:
    """One-hot float64 (R, V) of the most probable token, of equals the first; zeros where q has no mass."""
    peaks, tokens = q.max(-1, keepdim=True)
    return torch.zeros_like(q).scatter_(1, tokens, (peaks > 0).to(q.dtype))


def sample_tokens(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Tokens int64 (R,) by inverse distribution function; NONE where a row has no mass, or no numbers.

    weights float64 (R, V), not normalised; uniforms (R,) in [0, 1), best float64: float32 has no numbers for
    what is rarer than 6e-8. A token without weight is never taken.
    """
    sums = weights.cumsum(-1)
    totals = sums[:, -1]
    below = torch.nextafter(totals, torch.zeros_like(totals))
    at = torch.minimum(uniforms.to(sums.dtype) * totals, below)
    tokens = torch.searchsorted(sums, at[:, None], right=True)[:, 0]
    return torch.where((totals > 0) & totals.isfinite(), tokens, NONE)


def sample_candidates(
    law: DraftDistribution, q: torch.Tensor, n: int, uniforms: torch.Tensor
) -> torch.Tensor:
    """Candidates int64 (R, n) of q float32 (R, V) by uniforms (R, n): a row by its own numbers alone.

    NONE fills places behind the support.
    """
    check_count(law, n)
    q, drawn = q.double(), q.new_empty((len(q), 0), dtype=torch.int64)
    for j in range(n):
        drawn = torch.cat((drawn, sample_tokens(law.after(q, drawn, n), uniforms[:, j])[:, None]), 1)
    return drawn


def enumerate_candidates(
    law: DraftDistribution, q: torch.Tensor, n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Every tuple int64 (M, n) of candidates of q (V,) and its probability float64 (M,)."""
    check_count(law, n)
    q = q.double()
    tuples, chances = torch.empty((1, 0), dtype=torch.int64), torch.ones(1, dtype=torch.float64)
    for _ in range(n):
        weights = law.after(q.expand(len(tuples), -1), tuples, n)
        weights = torch.cat((weights, (weights.sum(-1, keepdim=True) == 0).double()), 1)  # the last is NONE
        shares = weights / weights.sum(-1, keepdim=True)
        rows, tokens = shares.nonzero(as_tuple=True)
        chances = chances[rows] * shares[rows, tokens]
        tuples = torch.cat((tuples[rows], torch.where(tokens < len(q), tokens, NONE)[:, None]), 1)
    return tuples, chances


def check_count(law: DraftDistribution, n: int) -> None:
    """ConfigError where the law has no n candidates."""
    if n < 1 or law.only not in (None, n):
        needs = "at least one candidate" if law.only is None else f"exactly {law.only} candidates"
        raise ConfigError(f"draft law {law.name!r} is of {needs}, not of {n}")


def _iid(q, earlier, n):
    return q


def _without_replacement(q, earlier, n):
    return without(q, earlier)


def _distinct(q, earlier, n):
    """q times the elementary symmetric polynomial of what may follow: sums of positive terms alone."""
    rest = without(q, earlier)
    width, more = rest.shape[-1], (rest > 0).sum(-1).clamp_max(n - earlier.shape[1]) - 1
    before, behind = [torch.ones_like(rest)], [torch.ones_like(rest)]
    for _ in range(n - earlier.shape[1] - 1):
        before.append(_shifted((rest * before[-1]).cumsum(-1), width))
        flipped = (rest * behind[-1]).flip(-1).cumsum(-1)
        behind.append(_shifted(flipped, width).flip(-1))
    others = torch.stack([sum(before[a] * behind[k - a] for a in range(k + 1)) for k in range(len(before))])
    return rest * others.gather(0, more.clamp_min(0)[None, :, None].expand(1, -1, width))[0]


def _shifted(sums, width):
    return torch.nn.functional.pad(sums, (1, 0))[:, :width]


def _top_k(q, earlier, n):
    return one_hot_argmax(without(q, earlier))


def _greedy(q, earlier, n):
    rest = without(q, earlier)
    return one_hot_argmax(rest) if earlier.shape[1] < n - 1 else rest


def _spechub(q, earlier, n):
    if earlier.shape[1] == 0:
        return q
    first = one_hot_argmax(q)
    was_top = first.gather(1, earlier.clamp_min(0)) > 0
    return torch.where(was_top, without(q, earlier), first)


DISTRIBUTIONS = {
    entry.name: entry
    for entry in (
        DraftDistribution("iid", _iid, "n independent draws from q; one may come twice"),
        DraftDistribution(
            "without_replacement", _without_replacement, "one after the other, each from what is left of q"
        ),
        DraftDistribution("distinct", _distinct, "n independent draws from q, given that no two are equal"),
        DraftDistribution(
            "top_k", _top_k, "the n most probable under q: no chance in it, so of one-hot laws"
        ),
        DraftDistribution("greedy", _greedy, "the n-1 most probable under q, then a draw from the rest"),
        DraftDistribution(
            "spechub",
            _spechub,
            "a draw from q and the most probable; where they are one, a draw from the rest",
            only=2,
        ),
    )
}
