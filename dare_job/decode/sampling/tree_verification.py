"""Verification of the trees of one forward pass: each row's accepted path and the token after it."""

from collections.abc import Callable

import numpy as np
import torch

from dare_job.decode.model.tree import Tree
from dare_job.decode.sampling.compiled import WarpParameters, verify_deterministic_drafts
from dare_job.decode.sampling.distributions import NONE
from dare_job.decode.sampling.drafts import SampledDrafts
from dare_job.decode.sampling.traversal import traverse
from dare_job.decode.sampling.verify import CandidateTrees, TreeOutcome, verify_trees
from dare_job.decode.sampling.warp import warp
from dare_job.decode.settings import Warp
from dare_job.decode.verify.penalty import PenaltyContext
from dare_job.decode.verify.result import VerificationResult, empty_result

TRAVERSAL = "traversal"  # verifies whole trees; all other rules verify one node's candidates
DETERMINISTIC = "top_k"  # the deterministic draft distribution

UniformSource = Callable[[np.ndarray, np.ndarray, int], np.ndarray]  # rows, nodes, count -> (M, count)


class Probabilities:
    """Warped target probabilities, computed on demand: ``p[queries]`` is float32 (M, V)."""

    def __init__(self, scores: torch.Tensor, settings: Warp, texts: Callable[[torch.Tensor], torch.Tensor]):
        """Take scores float32 (T, V); ``texts`` returns the texts int64 (M, L) before queries, padded with
        -1.
        """
        self._scores, self._settings, self._texts = scores, settings, texts
        self._cached_queries: torch.Tensor | None = None

    def __getitem__(self, queries: torch.Tensor) -> torch.Tensor:
        if queries is not self._cached_queries:
            text_tokens = self._texts(queries) if self._settings.repetition_penalty != 1 else None
            self._cached, _ = warp(self._scores[queries], self._settings, text_tokens)
            self._cached_queries = queries
        return self._cached


def verify_deterministic(tree: Tree, p: Probabilities, source: UniformSource) -> VerificationResult:
    """Verify deterministic drafts: sample target tokens and accept those that are children of their node.

    This has the highest acceptance of all exact rules for such drafts.
    """
    tokens, parents, _, starts = tree.host
    roots, children = (torch.from_numpy(array).to(tree.tokens.device)
                       for array in (starts[:-1], _children(parents, starts)))
    width = children.shape[1]
    candidates = CandidateTrees(roots, tree.tokens, children, torch.full_like(tree.tokens, width))
    uniforms = _query_uniforms(tree, source, 1).expand(-1, width + 1)
    outcome = verify_trees("naive", DETERMINISTIC, candidates, p, p, uniforms)  # which does not depend on q
    return _verification_result(tree, outcome)


def verify_deterministic_on_cpu(tree: Tree, scores: torch.Tensor, settings: WarpParameters,
                                context: PenaltyContext, source: UniformSource) -> VerificationResult:
    """Do the same in compiled code.

    Parameters
    ----------
    scores : float32 (T, V)
        Before the repetition penalty.
    settings
        Warping parameters.
    context
        Tokens of each row's text and the penalty.
    """
    arrays = empty_result(tree)
    tokens, parents, _, starts = tree.host
    uniforms = _query_uniforms(tree, source, 1).numpy()[:, 0]
    all_finite = verify_deterministic_drafts(scores.contiguous().numpy(), tokens, parents, starts, uniforms,
                                             settings, context, *arrays)
    return VerificationResult(*arrays, all_finite)


def verify_sampled(tree: Tree, drafts: SampledDrafts, p: Probabilities, rule: str,
                   source: UniformSource) -> VerificationResult:
    """Verify sampled drafts, whose trees must be complete; deterministic ones by rule "naive"."""
    candidates, q = drafts.on_tree(tree)
    uniforms = _query_uniforms(tree, source, max(2, candidates.children.shape[1] + 1))
    if drafts.distribution == DETERMINISTIC:
        outcome = verify_trees("naive", DETERMINISTIC, candidates, p, p, uniforms)
    elif rule == TRAVERSAL:
        p_of_queries = p[torch.arange(len(q), device=uniforms.device)]
        candidates = _without_nonfinite(candidates, p_of_queries.sum(-1) > 0)
        outcome = traverse(drafts.distribution, candidates, p_of_queries, q, uniforms[:, [0, -1]])
    else:
        outcome = verify_trees(rule, drafts.distribution, candidates, p, q, uniforms)
    return _verification_result(tree, outcome)


def _without_nonfinite(candidates: CandidateTrees, finite: torch.Tensor) -> CandidateTrees:
    """Remove the descendants of nodes with non-finite logits: the text ends there, so they are leaves."""
    return candidates._replace(children=torch.where(finite[:, None], candidates.children, NONE),
                               requested=torch.where(finite, candidates.requested, 0))


def _children(parents: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the children int64 (T, K) of each query in order, NONE after the last; K is at least 1."""
    nodes = np.setdiff1d(np.arange(len(parents)), starts[:-1], assume_unique=True)
    order = nodes[np.argsort(parents[nodes], kind="stable")]
    above = parents[order]
    first = np.searchsorted(above, above)  # where its siblings begin
    index = np.arange(len(order)) - first
    children = np.full((len(parents), 1 + int(index.max(initial=0))), NONE)
    children[above, index] = order
    return children


def _query_uniforms(tree: Tree, source: UniformSource, count: int) -> torch.Tensor:
    """Return uniforms float64 (T, count) for each query, by its row and its index within the row.

    The last column takes the row's first uniform: ``count`` may depend on the batch, the first uniform does
    not.
    """
    starts = tree.host[3]
    rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    values = source(rows, np.arange(len(tree)) - starts[:-1][rows], count)
    return torch.from_numpy(np.roll(values, -1, 1)).to(tree.tokens.device)


def _verification_result(tree: Tree, outcome: TreeOutcome) -> VerificationResult:
    tokens, parents, depths, starts = tree.host
    nodes, token = outcome.nodes.cpu().numpy(), outcome.token.cpu().numpy()
    counts, paths, out, relaxed, finite, tree_finite = empty_result(tree)
    counts[:], finite[:], relaxed[:] = depths[nodes], token != NONE, False
    # Non-finite logits after an accepted node leave the path up to it valid.
    tree_finite[:] = finite | (counts > 0)
    rows = np.arange(len(nodes))
    out[:], paths[:] = 0, 0
    out[rows, counts] = np.where(finite, token, 0)  # 0 is a placeholder that is never emitted
    for _ in range(tree.depth):
        deep = depths[nodes] > 0
        here, row = nodes[deep], rows[deep]
        paths[row, depths[here]] = here - starts[row]
        out[row, depths[here] - 1] = tokens[here]
        nodes = parents[nodes]
    return VerificationResult(counts, paths, out, relaxed, finite, tree_finite,
                              bool(tree_finite.all()))
