"""Exact distribution of the outcomes of tree verification, by the engine's own code."""

import torch

from dare_job.decode.sampling.distributions import distribution_for
from dare_job.decode.sampling.traversal import TourStep, Traversal
from dare_job.decode.sampling.verify import CandidateTrees, Verifier


def tree_distribution(rule: str, distribution: str, tree: CandidateTrees, p: torch.Tensor,
                      q: torch.Tensor) -> torch.Tensor:
    """Return the exact probability float64 (N, V) that a path ends at a node with a token after it.

    Parameters as in ``verify_trees``.
    """
    reached, ends = p.new_zeros(len(p), dtype=torch.float64), p.new_zeros(p.shape, dtype=torch.float64)
    reached[tree.roots] = 1
    active = tree.roots
    while len(active):
        requested, continuing = tree.requested[active], []
        for n in requested.unique().tolist():
            here = active[requested == n]
            weight = reached[here, None]
            if n == 0:
                ends[here] = weight * p[here] / p[here].double().sum(-1, keepdim=True)
                continue
            candidates, children = tree.candidate_tokens(here, n), tree.children[here, :n]
            tokens, places = Verifier(rule, distribution, n).output_distribution(p[here], q[here], candidates)
            accepted = torch.zeros_like(tokens).scatter_add_(1, candidates.clamp_min(0), places)
            ends[here] = weight * (tokens - accepted).clamp_min(0)
            present = children >= 0
            reached.index_add_(0, children[present], (weight * places)[present])
            continuing.append(children[present].unique())
        active = torch.cat(continuing) if continuing else active[:0]
    return ends


def traversal_distribution(distribution: str, tree: CandidateTrees, p: torch.Tensor,
                           q: torch.Tensor) -> torch.Tensor:
    """Return the same probability for verification by traversal. Parameters as in ``traverse``."""
    outcomes = _ExactOutcomes(tree, p)
    Traversal(distribution_for(distribution), tree, p, q).run(outcomes)
    return outcomes.ends


class _ExactOutcomes:
    """Follows both outcomes of every step with their probabilities."""

    def __init__(self, tree: CandidateTrees, p: torch.Tensor):
        self.probability = p.new_ones(len(tree.roots), dtype=torch.float64)
        self.ends = p.new_zeros(p.shape, dtype=torch.float64)

    def step(self, step: TourStep, weight: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        weight = torch.where(step.depth == 0, 1.0, weight)
        self.ends[step.node] = (self.probability[step.row] * weight)[:, None] * residual
        self.probability[step.row] *= 1 - weight
        return torch.ones_like(step.entering)
