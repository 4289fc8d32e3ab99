"""Verdicts on the trees of a forward: the path each row goes on with, and the token drawn behind it."""

from collections.abc import Callable

import numpy as np
import torch

from dare_job.decode.model.tree import Tree
from dare_job.decode.sampling.compiled import WarpParameters, verify_deterministic_drafts
from dare_job.decode.sampling.distributions import NONE
from dare_job.decode.sampling.drafts import QueryProbabilities, SampledDrafts
from dare_job.decode.sampling.traversal import traverse
from dare_job.decode.sampling.verify import CandidateTrees, TreeOutcome, verify_trees
from dare_job.decode.sampling.warp import warp
from dare_job.decode.settings import Warp
from dare_job.decode.verify.penalty import PenaltyContext
from dare_job.decode.verify.result import VerificationResult, empty_result

TRAVERSAL = "traversal"  # a rule of whole trees, where the others are of one node's candidates
DETERMINISTIC = "top_k"  # the law that has no chance in it

Uniforms = Callable[[np.ndarray, np.ndarray, int], np.ndarray]  # rows, nodes of the row, how many -> uniforms


class Probabilities:
    """Of the target behind the queries that are asked for, warped; ``p[queries]`` is float32 (M, V)."""

    def __init__(self, scores: torch.Tensor, settings: Warp, texts: Callable[[torch.Tensor], torch.Tensor]):
        """scores float32 (T, V); texts: int64 (M, L) that queries stand behind, padded with -1."""
        self._scores, self._settings, self._texts = scores, settings, texts
        self._asked: torch.Tensor | None = None

    def __getitem__(self, queries: torch.Tensor) -> torch.Tensor:
        if queries is not self._asked:
            seen = self._texts(queries) if self._settings.repetition_penalty != 1 else None
            self._found, _ = warp(self._scores[queries], self._settings, seen)
            self._asked = queries
        return self._found


def verify_deterministic(tree: Tree, p: Probabilities, numbers: Uniforms) -> VerificationResult:
    """Where there was no chance in the drafts: a token of the target is drawn, and is accepted where it is
    one of the node's children. No rule accepts more of them.
    """
    tokens, parents, _, starts = tree.host
    children = _children(parents, starts)
    width = children.shape[1]
    candidates = _candidates(tree, children, np.full(len(tree), width))
    uniforms = _query_uniforms(tree, numbers, 1).expand(-1, width + 1)
    return _verdict(
        tree, verify_trees("naive", DETERMINISTIC, candidates, p, p, uniforms)
    )  # which reads no q


def verify_deterministic_on_cpu(
    tree: Tree, scores: torch.Tensor, settings: WarpParameters, seen: PenaltyContext, numbers: Uniforms
) -> VerificationResult:
    """The same by compiled code. scores float32 (T, V); seen: of a penalty that they have not had yet."""
    found = empty_result(tree)
    tokens, parents, _, starts = tree.host
    uniforms = _query_uniforms(tree, numbers, 1).numpy()[:, 0]
    return VerificationResult(
        *found,
        verify_deterministic_drafts(
            scores.contiguous().numpy(), tokens, parents, starts, uniforms, settings, seen, *found
        ),
    )


def verify_sampled(
    tree: Tree, drafts: SampledDrafts, p: Probabilities, rule: str, numbers: Uniforms
) -> VerificationResult:
    """Where candidates were drawn by laws, all of which the tree has.

    rule  judges what was drawn; what is certain needs none (``of_certain``)
    """
    candidates, q = drafts.on(tree)
    uniforms = _query_uniforms(tree, numbers, max(2, candidates.children.shape[1] + 1))
    found = TreeOutcome(candidates.roots.clone(), torch.full_like(candidates.roots, NONE))
    for law, rows in drafts.by_law().items():
        rows = torch.from_numpy(rows).to(candidates.roots.device)
        ends = _accepted_paths(rule, law, candidates._replace(roots=candidates.roots[rows]), p, q, uniforms)
        found.nodes[rows], found.token[rows] = ends
    return _verdict(tree, found)


def _accepted_paths(rule: str, law: str, candidates: CandidateTrees, p: Probabilities, q: QueryProbabilities,
          uniforms: torch.Tensor) -> TreeOutcome:
    if law == DETERMINISTIC:
        return verify_trees("naive", law, candidates, p, p, uniforms)
    if rule == TRAVERSAL:
        every = p[torch.arange(len(q), device=uniforms.device)]
        return traverse(law, _cut_at_nonfinite(candidates, every.sum(-1) > 0), every, q, uniforms[:, [0, -1]])
    return verify_trees(rule, law, candidates, p, q, uniforms)


def _cut_at_nonfinite(candidates: CandidateTrees, numbers: torch.Tensor) -> CandidateTrees:
    """Without what is behind nodes that have no numbers: their text ends there, so they are leaves."""
    return candidates._replace(children=torch.where(numbers[:, None], candidates.children, NONE),
                               draws=torch.where(numbers, candidates.draws, 0))


def _candidates(tree: Tree, children: np.ndarray, draws: np.ndarray) -> CandidateTrees:
    device = tree.tokens.device
    return CandidateTrees(torch.from_numpy(tree.starts[:-1]).to(device), tree.tokens,
                      *(torch.from_numpy(part.astype(np.int64)).to(device) for part in (children, draws)))


def _children(parents: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """int64 (T, K): queries behind each query, in their order, NONE behind the last; K is at least 1."""
    nodes = np.setdiff1d(np.arange(len(parents)), starts[:-1], assume_unique=True)
    order = nodes[np.argsort(parents[nodes], kind="stable")]
    above = parents[order]
    first = np.searchsorted(above, above)  # where its siblings begin
    place = np.arange(len(order)) - first
    found = np.full((len(parents), 1 + int(place.max(initial=0))), NONE)
    found[above, place] = order
    return found


def _query_uniforms(tree: Tree, numbers: Uniforms, count: int) -> torch.Tensor:
    """float64 (T, count): of each query by its row and its place among the row's.

    The last one comes first from the row's numbers: how many there are may hang on the batch.
    """
    starts = tree.host[3]
    rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    found = numbers(rows, np.arange(len(tree)) - starts[:-1][rows], count)
    return torch.from_numpy(np.roll(found, -1, 1)).to(tree.tokens.device)


def _verdict(tree: Tree, found: TreeOutcome) -> VerificationResult:
    tokens, parents, depths, starts = tree.host
    nodes, token = found.nodes.cpu().numpy(), found.token.cpu().numpy()
    counts, paths, out, relaxed, finite, sound = empty_result(tree)
    counts[:], finite[:], relaxed[:] = depths[nodes], token != NONE, False
    sound[:] = finite | (counts > 0)  # a node behind one that was accepted spoiled nothing before it
    rows = np.arange(len(nodes))
    out[:], paths[:] = 0, 0
    out[rows, counts] = np.where(finite, token, 0)  # 0: nobody writes it
    for _ in range(tree.depth):
        deep = depths[nodes] > 0
        here, row = nodes[deep], rows[deep]
        paths[row, depths[here]] = here - starts[row]
        out[row, depths[here] - 1] = tokens[here]
        nodes = parents[nodes]
    return VerificationResult(counts, paths, out, relaxed, finite, sound, bool(sound.all()))
