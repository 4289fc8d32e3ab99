"""Verification of trees of candidates, node by node from the root on: the path that is accepted."""

from typing import NamedTuple

import torch

from dare_job.decode.sampling.laws import NONE, pick
from dare_job.decode.sampling.verify import Verifier


class Candidates(NamedTuple):
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


class Walk(NamedTuple):
    """What happened to R rows.

    nodes  int64 (R,): where the accepted path ends
    token  int64 (R,): what is emitted behind it, NONE where p or q there are no probabilities
    """

    nodes: torch.Tensor
    token: torch.Tensor


def walk(rule: str, law: str, tree: Candidates, p: torch.Tensor, q: torch.Tensor | None,
         uniforms: torch.Tensor) -> Walk:
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
                token[rows] = pick(p[here].double(), uniforms[here, -1])
                continue
            own = torch.cat((uniforms[here, :n], uniforms[here, -1:]), 1)
            place, token[rows] = Verifier(rule, law, n).verify(p[here], None if q is None else q[here],
                                                               tree.drawn(here, n), own)
            passed = place != NONE
            nodes[rows[passed]] = tree.children[here[passed], place[passed]]
            onward.append(rows[passed])
        going = torch.cat(onward) if onward else going[:0]
    return Walk(nodes, token)


def law_of_walk(rule: str, law: str, tree: Candidates, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
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
