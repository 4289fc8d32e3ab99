"""Verification rules of one node's candidates, and the draft distributions for which each rule is exact.

A rule is a sequence of steps: accept the next candidate with some probability, or reject it and update the
residual. ``verify.py`` runs the steps with uniforms, or exactly over all outcomes.

Sources: Leviathan et al., arXiv 2211.17192 (speculative); Yang et al., arXiv 2401.06706 (MCSD: naive,
recursive); Sun et al., arXiv 2310.15141 (SpecTr: K-SEQ); Hu et al., arXiv 2502.18779 (greedy); Sun et al.,
arXiv 2411.05289 (SpecHub).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from dare_job.decode.sampling.distributions import (
    DISTRIBUTIONS,
    DraftDistribution,
    check_count,
    one_hot_argmax,
    without,
)
from dare_job.decode.sampling.kseq import by_priority, priority_plan
from dare_job.errors import ConfigError


class State(NamedTuple):
    """R rows in which all candidates so far were rejected.

    Attributes
    ----------
    p : float64 (R, V)
        The residual distribution.
    q : float64 (R, V)
        Draft probabilities, or what the rule stores in their place.
    s : float64 (R, V)
        Distribution of the next verified candidate, zeros for none; or per-token values of the rule.
    candidates : int64 (R, n)
        In verification order; NONE once the support is exhausted.
    extra : float64 (R,)
        A value private to the rule.
    """

    p: torch.Tensor
    q: torch.Tensor
    s: torch.Tensor
    candidates: torch.Tensor
    extra: torch.Tensor

    def rows(self, which: torch.Tensor) -> "State":
        """The state of rows ``which``, int64 (S,)."""
        return State(*(field[which] for field in self))


@dataclass(frozen=True)
class Rule:
    """A verification rule of one node's candidates.

    Attributes
    ----------
    distributions
        Names of the draft distributions for which the rule's output has distribution p.
    start
        Maps distribution, p, q (normalised float64) and candidates to the first ``State``.
    accept
        Maps a state and j to the acceptance probability (R,) of candidate j.
    reject
        Maps distribution, state and j to the state after rejecting candidate j.
    residual
        Maps the last state to weights (R, V) of the emitted token; not normalised.
    count
        The only number of candidates it supports; None for any.
    """

    name: str
    distributions: tuple[str, ...]
    start: Callable[[DraftDistribution, torch.Tensor, torch.Tensor, torch.Tensor], State]
    accept: Callable[[State, int], torch.Tensor]
    reject: Callable[[DraftDistribution, State, int], State]
    residual: Callable[[State], torch.Tensor]
    count: int | None = None


def normalised(weights: torch.Tensor, otherwise: torch.Tensor | None = None) -> torch.Tensor:
    """Scale rows (R, V) to sum 1. Rows without mass become those of ``otherwise``, or stay unchanged."""
    totals = weights.sum(-1, keepdim=True)
    shares = weights / torch.where(totals == 0, 1.0, totals)
    return shares if otherwise is None else torch.where(totals == 0, otherwise, shares)


def gather_at(weights: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the entries (R,) of weights (R, V) at tokens int64 (R,); 0 where the token is NONE."""
    return weights.gather(1, tokens.clamp_min(0)[:, None])[:, 0] * (tokens >= 0)


def acceptance_ratio(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return min(1, p / q) of p and q with the same shape, by element, and 0 where q is 0."""
    return torch.where(q > 0, p / torch.where(q > 0, q, 1.0), 0.0).clamp_max(1.0)


def kseq_threshold(p: torch.Tensor, q: torch.Tensor, n: int) -> torch.Tensor:
    """Solve the K-SEQ threshold equation 1 - (1 - beta)^n = rho beta with beta = sum min(p / rho, q).

    Newton steps, with bisection where a step leaves the bracket. Both sides are computed as their difference
    from 1, which keeps full precision (Sun et al., arXiv 2310.15141).

    Parameters
    ----------
    p, q : float64 (R, V)
    n
        Number of candidates.

    Returns
    -------
    rho : float64 (R,)
        In [1, n].
    """
    rho, low, high = p.new_ones(len(p)), p.new_ones(len(p)), p.new_full((len(p),), n)
    for _ in range(100):
        over, under = p > q * rho[:, None], q > p / rho[:, None]
        heavy, light = (p * over).sum(-1), (q * over).sum(-1)
        covered, proposed = (p * under).sum(-1), (q * under).sum(-1)
        rejected = (proposed - covered / rho).clamp_min(0)  # 1 - beta
        excess = (heavy - rho * light).clamp_min(0) - rejected**n
        low, high = torch.where(excess >= 0, rho, low), torch.where(excess < 0, rho, high)
        slope = light + n * rejected ** (n - 1) * covered / rho**2
        step = rho + excess / torch.where(slope > 0, slope, 1.0)
        step = torch.where((step >= low) & (step <= high), step, (low + high) / 2)
        moved, rho = (step - rho).abs(), step
        if not (moved > 1e-15 * n).any():
            break
    return rho


def rule_for(name: str, distribution: DraftDistribution, n: int) -> Rule:
    """Return the rule of this name.

    Raises
    ------
    ConfigError
        The rule is unknown, or not exact for n candidates of the distribution.
    """
    if name not in RULES:
        raise ConfigError(f"unknown verification rule {name!r}: use {', '.join(RULES)}")
    rule = RULES[name]
    if distribution.name not in rule.distributions:
        alternatives = (other.name for other in RULES.values() if distribution.name in other.distributions)
        raise ConfigError(f"rule {name!r} is not exact for draft distribution {distribution.name!r}: it "
                          f"supports {', '.join(rule.distributions)}; for {distribution.name} use one of "
                          f"{', '.join(alternatives)}")
    if rule.count not in (None, n):
        raise ConfigError(f"rule {name!r} needs exactly {rule.count} candidates, not {n}; use rrs for other "
                          "counts")
    check_count(distribution, n)
    return rule


def _never_accept(state, j):
    return state.extra.new_zeros(len(state.extra))


def _unchanged(distribution, state, j):
    return state


def _residual_of_p(state):
    """Return (p - s)+, or p where rounding leaves nothing.

    There a rejection has a probability of the order of rounding, and p is right up to rounding.
    """
    residual = (state.p - state.s).clamp_min(0)
    return torch.where(residual.sum(-1, keepdim=True) == 0, state.p, residual)


def _zeros(p):
    return p.new_zeros(len(p))


# Recursive rejection (MCSD): exact for every distribution, as it uses the distribution's own next weights.


def _start_recursive(distribution, p, q, candidates):
    first = normalised(distribution.next_weights(q, candidates[:, :0], candidates.shape[1]))
    return State(p, q, first, candidates, _zeros(p))


def _accept_by_ratio(state, j):
    token = state.candidates[:, j]
    return acceptance_ratio(gather_at(state.p, token), gather_at(state.s, token))


def _reject_recursive(distribution, state, j):
    possible = gather_at(state.s, state.candidates[:, j]) > 0
    p = torch.where(possible[:, None], normalised((state.p - state.s).clamp_min(0), state.p), state.p)
    n = state.candidates.shape[1]
    if j + 1 == n:
        return state._replace(p=p)
    s = distribution.next_weights(state.q, state.candidates[:, : j + 1], n)
    return state._replace(p=p, s=normalised(s))


def _recursive_residual(state):
    return state.p


def _recursive(name, distributions, count=None):
    return Rule(name, distributions, _start_recursive, _accept_by_ratio, _reject_recursive,
                _recursive_residual, count)


# Naive: sample a token from p and accept it if it is among the candidates.


def _start_naive(distribution, p, q, candidates):
    return State(p, q, p.new_zeros(p.shape), candidates, _zeros(p))


# K-SEQ: the same threshold rho for all candidates.


def _start_k_seq(distribution, p, q, candidates):
    scale = kseq_threshold(p, q, candidates.shape[1])
    return State(p, q, q * scale[:, None], candidates, scale)


# Priority: K-SEQ with one threshold per class of p / q.


def _start_priority(distribution, p, q, candidates):
    plan = priority_plan(p, q, candidates.shape[1])
    return State(p - plan.accepted, p, plan.passes, by_priority(candidates, plan), _zeros(p))


def _accept_priority(state, j):
    return gather_at(state.s, state.candidates[:, j])


def _priority_residual(state):
    """Return (p - accepted)+, or p (stored in ``q``) where rounding leaves nothing."""
    residual = state.p.clamp_min(0)
    return torch.where(residual.sum(-1, keepdim=True) == 0, state.q, residual)


# Greedy: only the last candidate is verified, with q restricted to the other tokens; the deterministic
# candidates are emitted through the residual.


def _start_greedy(distribution, p, q, candidates):
    return State(p, q, normalised(without(q, candidates[:, :-1])), candidates, _zeros(p))


def _accept_greedy(state, j):
    if j + 1 < state.candidates.shape[1]:
        return _never_accept(state, j)
    return _accept_by_ratio(state, j)


# SpecHub: the argmax of q is always a candidate and is emitted through the residual; the other is verified.


def _start_spechub(distribution, p, q, candidates):
    first = one_hot_argmax(q)
    return State(p, q, normalised(q * (1 - first)), candidates, (q * first).sum(-1))


def _accept_spechub(state, j):
    token = state.candidates[:, j]
    q, other = gather_at(state.q, token), gather_at(state.s, token)  # other is 0 for the argmax of q
    residual = gather_at(state.p, token)
    if j == 0:
        return torch.where(other > 0, acceptance_ratio(residual, q), 0.0)
    return acceptance_ratio((residual - q).clamp_min(0), state.extra * other)


_ALL = tuple(DISTRIBUTIONS)
_FOR_ONE = tuple(name for name, distribution in DISTRIBUTIONS.items() if distribution.count in (None, 1))

RULES = {rule.name: rule for rule in (
    _recursive("speculative", _FOR_ONE, count=1),
    _recursive("rrs", _ALL),
    _recursive("mcss", ("iid", "without_replacement")),
    Rule("naive", _ALL, _start_naive, _never_accept, _unchanged, _residual_of_p),
    Rule("k_seq", ("iid",), _start_k_seq, _accept_by_ratio, _unchanged, _residual_of_p),
    Rule("priority", ("iid",), _start_priority, _accept_priority, _unchanged, _priority_residual),
    Rule("greedy", ("greedy", "without_replacement"), _start_greedy, _accept_greedy, _unchanged,
         _residual_of_p),
    Rule("spechub", ("spechub",), _start_spechub, _accept_spechub, _unchanged, _residual_of_p, count=2))}
