"""Draft distributions: how the candidates of a node are sampled from the draft probabilities q.

Each distribution is defined by one function, the weights of the next candidate given the earlier ones.
Sampling, enumeration and recursive rejection all use that function. All arithmetic is in float64.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from dare_job.errors import ConfigError

NONE = -1  # fills candidate places once the support of q is exhausted


@dataclass(frozen=True)
class DraftDistribution:
    """The joint distribution of n candidates of a node, first to last.

    Attributes
    ----------
    name
        Name in settings and messages.
    next_weights
        Maps q float64 (R, V), earlier candidates int64 (R, j) and n to weights float64 (R, V) of candidate j;
        not normalised; all zero where the support is exhausted.
    count
        The only number of candidates it is defined for; None for any.
    """

    name: str
    next_weights: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
    count: int | None = None


def distribution_for(name: str) -> DraftDistribution:
    """Return the draft distribution of this name.

    Raises
    ------
    ConfigError
        The name is unknown.
    """
    if name not in DISTRIBUTIONS:
        raise ConfigError(f"unknown draft distribution {name!r}: use {', '.join(DISTRIBUTIONS)}")
    return DISTRIBUTIONS[name]


def without(q: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return a copy of q (R, V) with zero weight at tokens int64 (R, j); NONE entries are ignored."""
    q = q.clone()
    for column in tokens.split(1, 1):
        at = column.clamp_min(0)
        q.scatter_(1, at, q.gather(1, at) * (column < 0))
    return q


def one_hot_argmax(q: torch.Tensor) -> torch.Tensor:
    """Return one-hot float64 (R, V) of the argmax of q, the first of ties; zeros where q has no mass."""
    peaks, tokens = q.max(-1, keepdim=True)
    return torch.zeros_like(q).scatter_(1, tokens, (peaks > 0).to(q.dtype))


def sample_tokens(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Sample one token per row by the inverse cumulative distribution function.

    A token of weight 0 is never sampled.

    Parameters
    ----------
    weights : float64 (R, V)
        Not normalised.
    uniforms : float64 (R,)
        In [0, 1). Not float32, which cannot represent probabilities below 6e-8.

    Returns
    -------
    tokens : int64 (R,)
        NONE where a row has no mass or is non-finite.
    """
    sums = weights.cumsum(-1)
    totals = sums[:, -1]
    below = torch.nextafter(totals, torch.zeros_like(totals))
    at = torch.minimum(uniforms.to(sums.dtype) * totals, below)
    tokens = torch.searchsorted(sums, at[:, None], right=True)[:, 0]
    return torch.where((totals > 0) & totals.isfinite(), tokens, NONE)


def sample_candidates(distribution: DraftDistribution, q: torch.Tensor, n: int,
                      uniforms: torch.Tensor) -> torch.Tensor:
    """Sample n candidates per row.

    Parameters
    ----------
    distribution
        How candidates are sampled.
    q : float32 (R, V)
        Draft probabilities.
    n
        Number of candidates.
    uniforms : float64 (R, n)
        In [0, 1); a row uses its own only.

    Returns
    -------
    candidates : int64 (R, n)
        NONE once the support is exhausted.
    """
    check_count(distribution, n)
    q, sampled = q.double(), q.new_empty((len(q), 0), dtype=torch.int64)
    for j in range(n):
        tokens = sample_tokens(distribution.next_weights(q, sampled, n), uniforms[:, j])
        sampled = torch.cat((sampled, tokens[:, None]), 1)
    return sampled


def enumerate_candidates(distribution: DraftDistribution, q: torch.Tensor,
                         n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return every tuple of n candidates int64 (M, n) under q (V,), and its probability float64 (M,)."""
    check_count(distribution, n)
    q = q.double()
    tuples, probabilities = torch.empty((1, 0), dtype=torch.int64), torch.ones(1, dtype=torch.float64)
    for _ in range(n):
        weights = distribution.next_weights(q.expand(len(tuples), -1), tuples, n)
        weights = torch.cat((weights, (weights.sum(-1, keepdim=True) == 0).double()), 1)  # the last is NONE
        row_probabilities = weights / weights.sum(-1, keepdim=True)
        rows, tokens = row_probabilities.nonzero(as_tuple=True)
        probabilities = probabilities[rows] * row_probabilities[rows, tokens]
        tuples = torch.cat((tuples[rows], torch.where(tokens < len(q), tokens, NONE)[:, None]), 1)
    return tuples, probabilities


def check_count(distribution: DraftDistribution, n: int) -> None:
    """Check n, the number of candidates of a node.

    Raises
    ------
    ConfigError
        The distribution is not defined for n candidates.
    """
    if n < 1 or distribution.count not in (None, n):
        needs = f"exactly {distribution.count} candidates" if distribution.count else "at least one candidate"
        raise ConfigError(f"draft distribution {distribution.name!r} needs {needs}, not {n}")


def _iid(q, earlier, n):
    """n independent samples from q; a token may repeat."""
    return q


def _without_replacement(q, earlier, n):
    """n samples from q, one after the other, without replacement."""
    return without(q, earlier)


def _distinct(q, earlier, n):
    """n independent samples from q, conditioned on being distinct.

    Weight q(x) times the elementary symmetric polynomial of the tokens that may follow x. Only positive terms
    are added, so no precision is lost.
    """
    rest = without(q, earlier)
    width, positions = rest.shape[-1], (rest > 0).sum(-1).clamp_max(n - earlier.shape[1]) - 1
    prefixes, suffixes = [torch.ones_like(rest)], [torch.ones_like(rest)]
    for _ in range(n - earlier.shape[1] - 1):
        prefixes.append(_shifted((rest * prefixes[-1]).cumsum(-1), width))
        flipped = (rest * suffixes[-1]).flip(-1).cumsum(-1)
        suffixes.append(_shifted(flipped, width).flip(-1))
    polynomials = torch.stack([sum(prefixes[a] * suffixes[k - a] for a in range(k + 1))
                               for k in range(len(prefixes))])
    return rest * polynomials.gather(0, positions.clamp_min(0)[None, :, None].expand(1, -1, width))[0]


def _shifted(sums, width):
    return torch.nn.functional.pad(sums, (1, 0))[:, :width]


def _top_k(q, earlier, n):
    """The n most probable tokens under q; deterministic."""
    return one_hot_argmax(without(q, earlier))


def _greedy(q, earlier, n):
    """The n - 1 most probable tokens under q, then a sample from the rest."""
    rest = without(q, earlier)
    return one_hot_argmax(rest) if earlier.shape[1] < n - 1 else rest


def _spechub(q, earlier, n):
    """A sample from q and the argmax of q; if they are equal, a sample from the rest."""
    if earlier.shape[1] == 0:
        return q
    first = one_hot_argmax(q)
    was_top = first.gather(1, earlier.clamp_min(0)) > 0
    return torch.where(was_top, without(q, earlier), first)


DISTRIBUTIONS = {distribution.name: distribution for distribution in (
    DraftDistribution("iid", _iid), DraftDistribution("without_replacement", _without_replacement),
    DraftDistribution("distinct", _distinct), DraftDistribution("top_k", _top_k),
    DraftDistribution("greedy", _greedy), DraftDistribution("spechub", _spechub, count=2))}
