"""Drafters that users plug in: their trees are checked before compiled code reads them."""

from collections.abc import Sequence

import numba
import numpy as np

from dare_job.decode.request import Drafter, Request
from dare_job.errors import ConfigError
from pools.tree import ROOT, SOURCE_MODEL, DraftBatch, scores_by_depth

_PROBLEMS = ("", "has size {size}, more than its budget of {budget} or fewer than 0",
             "has token {token} in node {node}, outside the model's {vocabulary} tokens",
             "has parent {parent} of node {node}; it must be -1 (the root) or an earlier node",
             "has token {token} in node {node} and in a sibling of it")


class CheckedDrafter:
    """A drafter of a user. Scores and sources that it leaves out (None) are filled in.

    Parameters
    ----------
    drafter : Drafter
    vocabulary : int
        Tokens of the model, V.
    """

    def __init__(self, drafter: Drafter, vocabulary: int):
        self._drafter, self._vocabulary = drafter, vocabulary

    def draft(self, requests: Sequence[Request], context: np.ndarray, lengths: np.ndarray,
              budgets: np.ndarray, depths: np.ndarray, min_score: float = 0.0) -> DraftBatch:
        """As ``Drafter.draft``.

        Raises
        ------
        ConfigError
            The trees are invalid.
        """
        drafts = self._drafter.draft(requests, context, lengths, budgets, depths, min_score)
        try:
            return checked(drafts, budgets, self._vocabulary)
        except ConfigError as error:
            raise ConfigError(f"drafter {type(self._drafter).__name__}: {error}") from None


def checked(drafts: DraftBatch, budgets: np.ndarray, vocabulary: int) -> DraftBatch:
    """Check trees for R rows and return them with scores and sources.

    Parameters
    ----------
    drafts : DraftBatch
        ``scores`` and ``sources`` may be None.
    budgets : int32 (R,)
        Maximum number of nodes of each row.
    vocabulary : int
        Tokens are from 0 to ``vocabulary`` - 1.

    Raises
    ------
    ConfigError
        An array has another shape or type, or a tree breaks a rule of ``DraftBatch``.
    """
    if not isinstance(drafts, DraftBatch):
        raise ConfigError(f"draft returned {type(drafts).__name__}; it must return a DraftBatch")
    rows, nodes, given = len(budgets), np.shape(drafts.tokens)[-1:], drafts.scores
    defaults = {"scores": np.zeros((rows, *nodes), np.float32),
                "sources": np.full((rows, *nodes), SOURCE_MODEL, np.uint8)}
    arrays = {}
    for name, value in drafts._asdict().items():
        array = np.asarray(defaults.get(name) if value is None else value)
        shape, kind = (rows,) if name == "sizes" else (rows, *nodes), "f" if name == "scores" else "iu"
        if array.shape != shape or array.dtype.kind not in kind:
            raise ConfigError(f"{name} is {array.dtype} {array.shape}; it must hold "
                              f"{'floats' if kind == 'f' else 'integers'} {shape}")
        dtype = defaults[name].dtype if name in defaults else np.int32
        arrays[name] = np.ascontiguousarray(array, dtype)
    drafts = DraftBatch(**arrays)
    problem, row, node = _first_problem(drafts.tokens, drafts.parents, drafts.sizes, budgets, vocabulary)
    if problem:
        token, parent = (each[row, node] if node >= 0 else None for each in (drafts.tokens, drafts.parents))
        raise ConfigError(f"the tree of row {row} " + _PROBLEMS[problem].format(
            size=drafts.sizes[row], budget=budgets[row], node=node, token=token, parent=parent,
            vocabulary=vocabulary))
    if given is None:
        for row, size in enumerate(drafts.sizes):
            drafts.scores[row, :size] = scores_by_depth(drafts.parents[row, :size])
    if not (np.isfinite(drafts.scores).all() and (drafts.scores >= 0).all()):
        raise ConfigError("scores must be finite and at least 0")
    return drafts


@numba.njit(cache=True)
def _first_problem(tokens, parents, sizes, budgets, vocabulary):
    """The first rule that is broken (index in _PROBLEMS; 0: none), its row and its node (-1: of no node)."""
    for r in range(len(sizes)):
        if sizes[r] < 0 or sizes[r] > min(budgets[r], tokens.shape[1]):
            return 1, r, -1
        for i in range(sizes[r]):
            if tokens[r, i] < 0 or tokens[r, i] >= vocabulary:
                return 2, r, i
            if parents[r, i] < ROOT or parents[r, i] >= i:
                return 3, r, i
            for other in range(i):
                if parents[r, other] == parents[r, i] and tokens[r, other] == tokens[r, i]:
                    return 4, r, i
    return 0, 0, 0
