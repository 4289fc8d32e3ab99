"""The rules, and which draft laws each is exact for: its output then has the target's law, whatever q is.

Leviathan et al., arXiv 2211.17192 (speculative); Yang et al., arXiv 2401.06706 (MCSD: naive and recursive);
Sun et al., arXiv 2310.15141 (SpecTr: K-SEQ); Hu et al., arXiv 2502.18779 (greedy); Sun et al., arXiv
2411.05289 (SpecHub).

What a rule is made of: steps that accept the next candidate, or reject it and go on.

A rule says with what probability each candidate is accepted when all before it were rejected, and which law
the emitted token has when all were. ``verify.py`` runs these steps by chance, or along both ways at once.

The threshold of K-SEQ (Sun et al., arXiv 2310.15141).
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
    """R rows in which all candidates so far were rejected. Tensors on one device.

    p           float64 (R, V): law of the token that is still owed
    q           float64 (R, V): for the rule itself
    s           float64 (R, V): law of the next candidate, or of the one that counts; zeros: none. Or what the
                rule says of each token
    candidates  int64 (R, n), NONE behind the support; in the order in which the rule asks them
    extra       float64 (R,): a number of the rule's own
    """

    p: torch.Tensor
    q: torch.Tensor
    s: torch.Tensor
    candidates: torch.Tensor
    extra: torch.Tensor

    def rows(self, which: torch.Tensor) -> "State":
        return State(*(field[which] for field in self))


@dataclass(frozen=True)
class Rule:
    """A verifier of one node's candidates.

    laws      names of the draft laws that it is exact for: its output is of the law p
    start     of law, p, q (normalised float64) and candidates: the first ``State``
    accept    of a state and a place j: probability (R,) of accepting candidate j
    reject    of law, state and j: the state behind its rejection
    residual  of the last state: weights (R, V) of the token that is emitted then, not normalised
    only      the one number of candidates that it takes; None: any
    reads_q   or it does as well without
    """

    name: str
    laws: tuple[str, ...]
    start: Callable[[DraftDistribution, torch.Tensor, torch.Tensor, torch.Tensor], State]
    accept: Callable[[State, int], torch.Tensor]
    reject: Callable[[DraftDistribution, State, int], State]
    residual: Callable[[State], torch.Tensor]
    only: int | None = None
    reads_q: bool = True


def normalised(weights: torch.Tensor, otherwise: torch.Tensor | None = None) -> torch.Tensor:
    """Rows (R, V) that sum to 1. Those without mass are taken from ``otherwise``, or stay as they are."""
    totals = weights.sum(-1, keepdim=True)
    shares = weights / torch.where(totals == 0, 1.0, totals)
    return shares if otherwise is None else torch.where(totals == 0, otherwise, shares)


def gather_at(weights: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Entries (R,) of (R, V) at tokens int64 (R,); 0 where there is no token."""
    return weights.gather(1, tokens.clamp_min(0)[:, None])[:, 0] * (tokens >= 0)


def acceptance_ratio(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """min(1, p / q); 0 where q is 0, as such a candidate was never drawn."""
    return torch.where(q > 0, p / torch.where(q > 0, q, 1.0), 0.0).clamp_max(1.0)


def kseq_threshold(p: torch.Tensor, q: torch.Tensor, n: int) -> torch.Tensor:
    """rho (R,) in [1, n] with 1 - (1 - beta)^n = rho beta, beta the sum of min(p / rho, q).

    By Newton's steps, halving where they leave the bracket. Both sides are taken from 1, where they are sums
    of what is left and lose no digits.
    """
    rho, low, high = p.new_ones(len(p)), p.new_ones(len(p)), p.new_full((len(p),), n)
    for _ in range(100):
        over, under = p > q * rho[:, None], q > p / rho[:, None]
        heavy, light = (p * over).sum(-1), (q * over).sum(-1)
        covered, drawn = (p * under).sum(-1), (q * under).sum(-1)
        missed = (drawn - covered / rho).clamp_min(0)  # 1 - beta
        excess = (heavy - rho * light).clamp_min(0) - missed**n
        low, high = torch.where(excess >= 0, rho, low), torch.where(excess < 0, rho, high)
        slope = light + n * missed ** (n - 1) * covered / rho**2
        step = rho + excess / torch.where(slope > 0, slope, 1.0)
        step = torch.where((step >= low) & (step <= high), step, (low + high) / 2)
        moved, rho = (step - rho).abs(), step
        if not (moved > 1e-15 * n).any():
            break
    return rho


def rule_for(name: str, law: DraftDistribution, n: int) -> Rule:
    """By name, for n candidates of a law; ConfigError where it is not exact for them."""
    if name not in RULES:
        raise ConfigError(f"no verification rule {name!r}: use {', '.join(RULES)}")
    rule = RULES[name]
    if law.name not in rule.laws:
        fit = ", ".join(other.name for other in RULES.values() if law.name in other.laws)
        raise ConfigError(f"rule {name!r} is not exact for draft law {law.name!r}: it takes "
                          f"{', '.join(rule.laws)}; for {law.name} use one of {fit}")
    if rule.only not in (None, n):
        raise ConfigError(f"rule {name!r} takes {rule.only} candidates, not {n}: draw as many, or use rrs")
    check_count(law, n)
    return rule


def _never_accept(state, j):
    return state.extra.new_zeros(len(state.extra))


def _unchanged(law, state, j):
    return state


def _residual_of_p(state):
    """p less the law of the candidate that counts. Where rounding leaves nothing a rejection has a
    probability of that size, and p itself is right up to it."""
    rest = (state.p - state.s).clamp_min(0)
    return torch.where(rest.sum(-1, keepdim=True) == 0, state.p, rest)


def _zeros(p):
    return p.new_zeros(len(p))


# Recursive rejection: any law, as it asks the law itself what the next candidate was drawn from.


def _start_recursive(law, p, q, candidates):
    first = normalised(law.after(q, candidates[:, :0], candidates.shape[1]))
    return State(p, q, first, candidates, _zeros(p))


def _accept_recursive(state, j):
    token = state.candidates[:, j]
    return acceptance_ratio(gather_at(state.p, token), gather_at(state.s, token))


def _reject_recursive(law, state, j):
    drawn = gather_at(state.s, state.candidates[:, j]) > 0
    p = torch.where(drawn[:, None], normalised((state.p - state.s).clamp_min(0), state.p), state.p)
    n = state.candidates.shape[1]
    if j + 1 == n:
        return state._replace(p=p)
    return state._replace(p=p, s=normalised(law.after(state.q, state.candidates[:, : j + 1], n)))


def _recursive_residual(state):
    return state.p


def _recursive(name, laws, only=None):
    return Rule(name, laws, _start_recursive, _accept_recursive, _reject_recursive, _recursive_residual, only)


# Naive: a token of p; it is accepted if it is among the candidates.


def _start_naive(law, p, q, candidates):
    return State(p, q, p.new_zeros(p.shape), candidates, _zeros(p))


# K-SEQ: one threshold for all candidates.


def _start_k_seq(law, p, q, candidates):
    scale = kseq_threshold(p, q, candidates.shape[1])
    return State(p, q, q * scale[:, None], candidates, scale)


def _accept_k_seq(state, j):
    token = state.candidates[:, j]
    return acceptance_ratio(gather_at(state.p, token), gather_at(state.s, token))


# K-SEQ by classes of p / q.


def _start_priority(law, p, q, candidates):
    made = priority_plan(p, q, candidates.shape[1])
    return State(p - made.accepted, p, made.passes, by_priority(candidates, made), _zeros(p))


def _accept_priority(state, j):
    return gather_at(state.s, state.candidates[:, j])


def _priority_residual(state):
    """As ``_rest_of_p``; ``q`` holds p itself."""
    left = state.p.clamp_min(0)
    return torch.where(left.sum(-1, keepdim=True) == 0, state.q, left)


# Greedy: the last candidate is judged, drawn from q without the others; these come from the residual.


def _start_greedy(law, p, q, candidates):
    return State(p, q, normalised(without(q, candidates[:, :-1])), candidates, _zeros(p))


def _accept_greedy(state, j):
    if j + 1 < state.candidates.shape[1]:
        return _never_accept(state, j)
    return _accept_recursive(state, j)


# SpecHub: the most probable token is always there, and comes from the residual; the other one counts.


def _start_spechub(law, p, q, candidates):
    first = one_hot_argmax(q)
    return State(p, q, normalised(q * (1 - first)), candidates, (q * first).sum(-1))


def _accept_spechub(state, j):
    token = state.candidates[:, j]
    drawn, other = gather_at(state.q, token), gather_at(state.s, token)  # other: 0 of the most probable token
    owed = gather_at(state.p, token)
    if j == 0:
        return torch.where(other > 0, acceptance_ratio(owed, drawn), 0.0)
    return acceptance_ratio((owed - drawn).clamp_min(0), state.extra * other)


_ALL_DISTRIBUTIONS = tuple(DISTRIBUTIONS)

RULES = {
    rule.name: rule
    for rule in (
        _recursive(
            "speculative",
            tuple(name for name in DISTRIBUTIONS if DISTRIBUTIONS[name].only in (None, 1)),
            only=1,
        ),
        _recursive("rrs", _ALL_DISTRIBUTIONS),
        _recursive("mcss", ("iid", "without_replacement")),
        Rule(
            "naive",
            _ALL_DISTRIBUTIONS,
            _start_naive,
            _never_accept,
            _unchanged,
            _residual_of_p,
            reads_q=False,
        ),
        Rule("k_seq", ("iid",), _start_k_seq, _accept_k_seq, _unchanged, _residual_of_p),
        Rule("priority", ("iid",), _start_priority, _accept_priority, _unchanged, _priority_residual),
        Rule(
            "greedy",
            ("greedy", "without_replacement"),
            _start_greedy,
            _accept_greedy,
            _unchanged,
            _residual_of_p,
        ),
        Rule("spechub", ("spechub",), _start_spechub, _accept_spechub, _unchanged, _residual_of_p, only=2),
    )
}
