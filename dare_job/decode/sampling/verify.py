"""Exact verification of multi-candidate drafts, at one node or down a tree from its root.

The same rule code runs in two ways: with uniforms, sampling one outcome per row, or exactly, with the
probability of every outcome (for tests and acceptance statistics).
"""

from typing import NamedTuple

import torch

from dare_job.decode.sampling.distributions import NONE, distribution_for, sample_tokens
from dare_job.decode.sampling.rules import Rule, normalised, rule_for


class Outcome(NamedTuple):
    """The sampled outcome of R rows.

    Attributes
    ----------
    place : int64 (R,)
        First candidate equal to the token; NONE if the token is none of the candidates.
    token : int64 (R,)
        Emitted token; NONE where p or q of the row are not probabilities.
    """

    place: torch.Tensor
    token: torch.Tensor


class OutputDistribution(NamedTuple):
    """The exact output distribution of R rows.

    Attributes
    ----------
    tokens : float64 (R, V)
        Probability that a token is emitted.
    places : float64 (R, n)
        Probability that a candidate is accepted; repeated candidates count at their first place.
    """

    tokens: torch.Tensor
    places: torch.Tensor


class Verifier:
    """Verifies n candidates of one node with a rule that is exact for their draft distribution.

    p and q are float32 (R, V): the warped next-token probabilities of target and draft; they are normalised
    in float64. candidates int64 (R, n) were sampled from q. The output of rule "naive" does not depend on q.

    Raises
    ------
    ConfigError
        The rule is not exact for n candidates of the distribution.
    """

    def __init__(self, rule: str | Rule, distribution: str, n: int):
        self.distribution, self.n = distribution_for(distribution), n
        self.rule = rule_for(rule, self.distribution, n) if isinstance(rule, str) else rule

    def verify(self, p: torch.Tensor, q: torch.Tensor, candidates: torch.Tensor,
               uniforms: torch.Tensor) -> Outcome:
        """Sample an outcome per row; uniforms (R, n + 1) in [0, 1) are one per candidate and one for the
        residual.

        They must be independent of the uniforms that sampled the candidates.
        """
        outcomes = _SampledOutcomes(uniforms)
        self._run(p, q, candidates, outcomes)
        return Outcome(_first_place(candidates, outcomes.token), outcomes.token)

    def output_distribution(self, p: torch.Tensor, q: torch.Tensor,
                            candidates: torch.Tensor) -> OutputDistribution:
        """Return the exact output distribution given the candidates int64 (R, n)."""
        outcomes = _ExactOutcomes(p)
        self._run(p, q, candidates, outcomes)
        first = [(column >= 0) & (candidates[:, :j] != column).all(-1, keepdim=True)
                 for j, column in enumerate(candidates.split(1, 1))]
        places = outcomes.tokens.gather(1, candidates.clamp_min(0)) * torch.cat(first, 1)
        return OutputDistribution(outcomes.tokens, places)

    def _run(self, p, q, candidates, outcomes) -> None:
        p, q = normalised(p.double()), normalised(q.double())
        state = self.rule.start(self.distribution, p, q, candidates)
        for j in range(self.n):
            alive = outcomes.step(j, state.candidates[:, j], self.rule.accept(state, j))
            if alive is not None:
                state = state.rows(alive)
                if not len(alive):
                    return
            state = self.rule.reject(self.distribution, state, j)
        outcomes.end(self.rule.residual(state))


def _first_place(candidates: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """Return the first place (R,) of each row's token (R,) among its candidates (R, n), or NONE."""
    equal = (candidates == token[:, None]) & (token >= 0)[:, None]
    return torch.where(equal.any(-1), equal.int().argmax(-1), NONE)


class _SampledOutcomes:
    """Samples one outcome per row; a row leaves once a candidate is accepted."""

    def __init__(self, uniforms: torch.Tensor):
        self.uniforms = uniforms
        self.alive = torch.arange(len(uniforms), device=uniforms.device)
        self.token = torch.full_like(self.alive, NONE)

    def step(self, j: int, tokens: torch.Tensor, accept: torch.Tensor) -> torch.Tensor:
        """Return which of the remaining rows rejected candidate j, as indices into them."""
        passed = self.uniforms[self.alive, j] < accept
        self.token[self.alive[passed]] = tokens[passed]
        left = (~passed).nonzero()[:, 0]
        self.alive = self.alive[left]
        return left

    def end(self, weights: torch.Tensor) -> None:
        self.token[self.alive] = sample_tokens(weights, self.uniforms[self.alive, -1])


class _ExactOutcomes:
    """Follows both outcomes of every step with their probabilities."""

    def __init__(self, p: torch.Tensor):
        self.weight = p.new_ones(len(p), dtype=torch.float64)
        self.tokens = p.new_zeros(p.shape, dtype=torch.float64)

    def step(self, j: int, tokens: torch.Tensor, accept: torch.Tensor) -> None:
        self.tokens.scatter_add_(1, tokens.clamp_min(0)[:, None], (self.weight * accept)[:, None])
        self.weight = self.weight * (1 - accept)

    def end(self, weights: torch.Tensor) -> None:
        self.tokens += self.weight[:, None] * normalised(weights)


class CandidateTrees(NamedTuple):
    """Candidate trees of R rows with N nodes in all.

    The candidates of a node were sampled from one distribution with the draft probabilities q after the node.

    Attributes
    ----------
    roots : int64 (R,)
        Root node of each row.
    tokens : int64 (N,)
        Token of each node; undefined for roots.
    children : int64 (N, n)
        Nodes of the candidates in sampling order, NONE beyond ``requested`` or the support; a token sampled
        twice is one node listed twice, or two nodes with candidates of their own.
    requested : int64 (N,)
        Number of candidates requested from the distribution; 0 for a leaf.
    """

    roots: torch.Tensor
    tokens: torch.Tensor
    children: torch.Tensor
    requested: torch.Tensor

    def candidate_tokens(self, nodes: torch.Tensor, n: int) -> torch.Tensor:
        """Return the candidates int64 (M, n) of nodes (M,)."""
        places = self.children[nodes, :n]
        return torch.where(places == NONE, NONE, self.tokens[places.clamp_min(0)])


class TreeOutcome(NamedTuple):
    """The verification outcome of R trees.

    Attributes
    ----------
    nodes : int64 (R,)
        Last node of the accepted path.
    token : int64 (R,)
        Token emitted after it; NONE where p or q there are not probabilities.
    """

    nodes: torch.Tensor
    token: torch.Tensor


def verify_trees(rule: str, distribution: str, tree: CandidateTrees, p: torch.Tensor, q: torch.Tensor,
                 uniforms: torch.Tensor) -> TreeOutcome:
    """Verify trees from the root down, node by node, with a rule of ``RULES``.

    Parameters
    ----------
    rule, distribution
        Names of the rule and of the draft distribution.
    tree
        Candidate trees of R rows.
    p, q : float32 (N, V)
        After each node; q of leaves is not read, and rule "naive" does not depend on q.
    uniforms : float64 (N, n + 1)
        In [0, 1), independent of those that sampled the candidates: one per candidate and one for the token
        after the path.
    """
    nodes, token = tree.roots.clone(), torch.full_like(tree.roots, NONE)
    active = torch.arange(len(nodes), device=nodes.device)
    while len(active):
        requested, continuing = tree.requested[nodes[active]], []
        for n in requested.unique().tolist():
            rows = active[requested == n]
            nodes_here = nodes[rows]
            if n == 0:
                token[rows] = sample_tokens(p[nodes_here].double(), uniforms[nodes_here, -1])
                continue
            own = torch.cat((uniforms[nodes_here, :n], uniforms[nodes_here, -1:]), 1)
            place, token[rows] = Verifier(rule, distribution, n).verify(
                p[nodes_here], q[nodes_here], tree.candidate_tokens(nodes_here, n), own)
            passed = place != NONE
            nodes[rows[passed]] = tree.children[nodes_here[passed], place[passed]]
            continuing.append(rows[passed])
        active = torch.cat(continuing) if continuing else active[:0]
    return TreeOutcome(nodes, token)
