"""Verifiers that users plug in, and what the engine does around them."""

from typing import NamedTuple, Protocol

import numpy as np
import torch

from dare_job.decode.model.tree import Tree
from dare_job.decode.verify.result import (
    NodeVerification,
    VerificationResult,
    argmax_finite,
    longest_accepted,
)
from dare_job.errors import ConfigError


class VerifyContext(NamedTuple):
    """What precedes the trees of R rows with T queries, for a verifier. Read only.

    Attributes
    ----------
    tokens : int32 (R, L)
        Prompt and text so far, padded on the right.
    lengths : int64 (R,)
        Tokens in use; the last one is the tree's root.
    prompts : int64 (R,)
        Tokens of the prompt.
    argmax : int64 (T,)
        Token with the highest score after each query, on the device of the scores; of equals the first.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    prompts: np.ndarray
    argmax: torch.Tensor


class Verifier(Protocol):
    """Decides which draft tokens are accepted.

    The engine makes one object: ``Class(eos, **options)``, with the end-of-text tokens, int64 (E,), on the
    device of the scores. The engine itself sees to the rest, whatever the verifier says: an end-of-text token
    is accepted only as the argmax, a banned token never, nodes of strict rows and nodes past a row's
    length limit only as the argmax. A query without a finite score ends its row.

    Attributes
    ----------
    lossless
        Whether texts equal greedy decoding. The engine then accepts only the argmax.
    """

    lossless: bool

    def __call__(self, scores: torch.Tensor, tree: Tree, context: VerifyContext) -> NodeVerification:
        """Verify the draft nodes of one forward pass. Of each row, the longest path that passed is accepted.

        Parameters
        ----------
        scores : float32 (T, V)
            Logits after each query, with the penalties and bans of the generation config: -Inf is a banned
            token. The highest score of each query is finite. Do not write to them.
        tree : Tree
            The queries: for each row its root, then its draft nodes; on the device of the scores. All tokens
            are below V.
        context : VerifyContext

        Returns
        -------
        NodeVerification
            The engine uses ``passed`` and ``logp``; ``argmax`` may be that of the context.
        """


def verify(plugin: Verifier, scores: torch.Tensor, tree: Tree, strict: torch.Tensor | None, eos: torch.Tensor,
           context: tuple[np.ndarray, np.ndarray, np.ndarray]) -> VerificationResult:
    """Verify the trees of one forward pass with a plug-in.

    Parameters
    ----------
    scores : float32 (T, V)
    tree : Tree
        On the device of the scores.
    strict : bool (T,), optional
        Nodes that are accepted only as the argmax. None: no node.
    eos : int64 (E,)
        End-of-text tokens.
    context
        The first three fields of ``VerifyContext``.

    Raises
    ------
    ConfigError
        The plug-in's result has another shape or type.
    """
    argmax, finite = argmax_finite(scores)
    if not finite.all():  # such rows are verified again or end
        scores = torch.where(finite[:, None], scores, 0.0)
    nodes = plugin(scores, _with_scores(tree, scores.shape[1]), VerifyContext(*context, argmax))
    check(plugin, nodes, argmax)
    is_top, width = tree.tokens == argmax[tree.parents], scores.shape[1]
    has_score = scores[tree.parents, tree.tokens.clamp_max(width - 1)].isfinite() & (tree.tokens < width)
    passed = nodes.passed & has_score & (is_top | ~torch.isin(tree.tokens, eos))
    if plugin.lossless:
        passed = passed & is_top
    elif strict is not None:
        passed = torch.where(strict, passed & is_top, passed)
    return longest_accepted(tree, NodeVerification(argmax, passed, finite, nodes.logp))


def _with_scores(tree: Tree, width: int) -> Tree:
    """The tree with tokens below ``width``: the embedding may have more tokens than the output head."""
    tokens, *others = tree.host
    if tokens.max() < width:
        return tree
    host = np.minimum(tokens, width - 1), *others
    return Tree(host, tree.width, tree.depth, tree.scores, tree.padding).to(tree.tokens.device)


def check(plugin: Verifier, nodes: NodeVerification, argmax: torch.Tensor) -> None:
    """Check a plug-in's result, which compiled code reads. ``argmax`` int64 (T,): as in ``VerifyContext``.

    Raises
    ------
    ConfigError
        It has another shape or type.
    """
    for name, dtype in (("passed", torch.bool), ("logp", torch.float32)):
        value = getattr(nodes, name, None)
        if name == "logp" and value is None:
            continue
        if not (isinstance(value, torch.Tensor) and value.dtype == dtype and value.shape == argmax.shape
                and value.device == argmax.device):
            found = f"{value.dtype} {tuple(value.shape)} on {value.device}" if isinstance(
                value, torch.Tensor) else type(value).__name__
            raise ConfigError(f"verifier {type(plugin).__name__}: {name} is {found}; it must be a tensor "
                              f"{dtype} ({len(argmax)},) on {argmax.device}, one entry per query of the tree")
