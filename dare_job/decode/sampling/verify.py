"""Verification of one node's candidates, R rows at a time: by chance, or exactly over all that may happen.

Verification of trees of candidates, node by node from the root on: the path that is accepted.
"""

from typing import NamedTuple

import torch

from dare_job.decode.sampling.distributions import NONE, distribution_for, sample_tokens
from dare_job.decode.sampling.rules import Rule, normalised, rule_for
from dare_job.errors import ConfigError


class Outcome(NamedTuple):
    """What happened to R rows.

    place  int64 (R,): of the accepted candidate, the first of equals; NONE where the token is none of them
    token  int64 (R,): what is emitted, NONE where p or q of the row are no probabilities
    """

    place: torch.Tensor
    token: torch.Tensor


class OutputDistribution(NamedTuple):
    """What may happen to R rows.

    tokens  float64 (R, V): probability that each is emitted
    places  float64 (R, n): that each candidate is accepted, the first of equals
    """

    tokens: torch.Tensor
    places: torch.Tensor


class Verifier:
    """A rule for n candidates of a law that it is exact for.

    p and q are float32 (R, V), what the target and the draft say of the next token after the same warping;
    they are normalised in float64. candidates int64 (R, n) were drawn by the law from this q. The rule naive
    takes None for q: of text that was found and not drawn, with the law ``top_k``.
    """

    def __init__(self, rule: str | Rule, law_name: str, n: int):
        self.law, self.n = distribution_for(law_name), n
        self.rule = rule_for(rule, self.law, n) if isinstance(rule, str) else rule

    def verify(self, p: torch.Tensor, q: torch.Tensor | None, candidates: torch.Tensor,
               uniforms: torch.Tensor) -> Outcome:
        """uniforms (R, n + 1) in [0, 1), not those that drew: one of each candidate, and the residual's."""
        chance = _Sampled(uniforms)
        self._run(p, q, candidates, chance)
        return Outcome(_first_place(candidates, chance.token), chance.token)

    def law_of_output(
        self, p: torch.Tensor, q: torch.Tensor | None, candidates: torch.Tensor
    ) -> OutputDistribution:
        """Exactly, of given candidates."""
        chance = _Exact(p)
        self._run(p, q, candidates, chance)
        new = [(column >= 0) & (candidates[:, :j] != column).all(-1, keepdim=True)
               for j, column in enumerate(candidates.split(1, 1))]
        return OutputDistribution(
            chance.tokens, chance.tokens.gather(1, candidates.clamp_min(0)) * torch.cat(new, 1)
        )

    def _run(self, p, q, candidates, chance) -> None:
        if q is None and self.rule.reads_q:
            raise ConfigError(f"rule {self.rule.name!r} needs the q of its candidates; naive does not")
        p = normalised(p.double())
        q = p if q is None else normalised(q.double())
        state = self.rule.start(self.law, p, q, candidates)
        for j in range(self.n):
            left = chance.step(j, state.candidates[:, j], self.rule.accept(state, j))
            if left is not None:
                state = state.rows(left)
                if not len(left):
                    return
            state = self.rule.reject(self.law, state, j)
        chance.end(self.rule.residual(state))


def _first_place(candidates: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """Where each row's token (R,) stands first among its candidates (R, n), or NONE."""
    equal = (candidates == token[:, None]) & (token >= 0)[:, None]
    return torch.where(equal.any(-1), equal.int().argmax(-1), NONE)


class _Sampled:
    """One thing happens to each row; rows whose candidate is accepted leave."""

    def __init__(self, uniforms: torch.Tensor):
        self.uniforms = uniforms
        self.alive = torch.arange(len(uniforms), device=uniforms.device)
        self.token = torch.full_like(self.alive, NONE)

    def step(self, j: int, tokens: torch.Tensor, accept: torch.Tensor) -> torch.Tensor:
        """Numbers of the rows that go on, among those that came."""
        passed = self.uniforms[self.alive, j] < accept
        self.token[self.alive[passed]] = tokens[passed]
        left = (~passed).nonzero()[:, 0]
        self.alive = self.alive[left]
        return left

    def end(self, weights: torch.Tensor) -> None:
        self.token[self.alive] = sample_tokens(weights, self.uniforms[self.alive, -1])


class _Exact:
    """All happens, with its probability."""

    def __init__(self, p: torch.Tensor):
        self.weight = p.new_ones(len(p), dtype=torch.float64)
        self.tokens = p.new_zeros(p.shape, dtype=torch.float64)

    def step(self, j: int, tokens: torch.Tensor, accept: torch.Tensor) -> None:
        self.tokens.scatter_add_(1, tokens.clamp_min(0)[:, None], (self.weight * accept)[:, None])
        self.weight = self.weight * (1 - accept)

    def end(self, weights: torch.Tensor) -> None:
        self.tokens += self.weight[:, None] * normalised(weights)


class CandidateTrees(NamedTuple):
    """Trees of R rows, N nodes in all; a node's candidates were drawn by one law from q behind the node.

    roots     int64 (R,)     node of each row's root
    tokens    int64 (N,)     of each node; a root's says nothing
    children  int64 (N, n)   nodes of the candidates in the order of drawing, NONE behind the support and
                             behind ``draws``. A token drawn twice is one node twice, or two nodes with draws
                             of their own
    draws     int64 (N,)     how many candidates the law was asked for; 0: a leaf
    """

    roots: torch.Tensor
    tokens: torch.Tensor
    children: torch.Tensor
    draws: torch.Tensor

    def drawn(self, nodes: torch.Tensor, n: int) -> torch.Tensor:
        """Candidates int64 (M, n) of nodes (M,)."""
        places = self.children[nodes, :n]
        return torch.where(places == NONE, NONE, self.tokens[places.clamp_min(0)])


class TreeOutcome(NamedTuple):
    """What happened to R rows.

    nodes  int64 (R,): where the accepted path ends
    token  int64 (R,): what is emitted behind it, NONE where p or q there are no probabilities
    """

    nodes: torch.Tensor
    token: torch.Tensor


def verify_trees(rule: str, law: str, tree: CandidateTrees, p: torch.Tensor, q: torch.Tensor | None,
         uniforms: torch.Tensor) -> TreeOutcome:
    """p and q float32 (N, V), behind each node (q of leaves is not read, nor any by the rule naive: None);
    uniforms (N, n + 1) in [0, 1), not those that drew the candidates: of these, and of the token behind.
    """
    nodes, token = tree.roots.clone(), torch.full_like(tree.roots, NONE)
    going = torch.arange(len(nodes), device=nodes.device)
    while len(going):
        draws, onward = tree.draws[nodes[going]], []
        for n in draws.unique().tolist():
            rows = going[draws == n]
            here = nodes[rows]
            if n == 0:
                token[rows] = sample_tokens(p[here].double(), uniforms[here, -1])
                continue
            own = torch.cat((uniforms[here, :n], uniforms[here, -1:]), 1)
            place, token[rows] = Verifier(rule, law, n).verify(p[here], None if q is None else q[here],
                                                               tree.drawn(here, n), own)
            passed = place != NONE
            nodes[rows[passed]] = tree.children[here[passed], place[passed]]
            onward.append(rows[passed])
        going = torch.cat(onward) if onward else going[:0]
    return TreeOutcome(nodes, token)


def tree_distribution(
    rule: str, law: str, tree: CandidateTrees, p: torch.Tensor, q: torch.Tensor
) -> torch.Tensor:
    """Probability float64 (N, V) that a row's path ends at a node with a token behind it, exactly."""
    reached, ends = p.new_zeros(len(p), dtype=torch.float64), p.new_zeros(p.shape, dtype=torch.float64)
    reached[tree.roots] = 1
    going = tree.roots
    while len(going):
        draws, onward = tree.draws[going], []
        for n in draws.unique().tolist():
            here = going[draws == n]
            weight = reached[here, None]
            if n == 0:
                ends[here] = weight * p[here] / p[here].double().sum(-1, keepdim=True)
                continue
            drawn, children = tree.drawn(here, n), tree.children[here, :n]
            tokens, places = Verifier(rule, law, n).law_of_output(p[here], q[here], drawn)
            taken = torch.zeros_like(tokens).scatter_add_(1, drawn.clamp_min(0), places)
            ends[here] = weight * (tokens - taken).clamp_min(0)
            there = children >= 0
            reached.index_add_(0, children[there], (weight * places)[there])
            onward.append(children[there].unique())
        going = torch.cat(onward) if onward else going[:0]
    return ends
