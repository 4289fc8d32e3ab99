"""Logits processing for trees: penalties and banned tokens of a generation config, for each node's prefix."""

from collections.abc import Sequence

import numba
import numpy as np
import torch
from transformers import LogitsProcessorList

from dare_job.decode.engine.generation_config import GenerationRules
from dare_job.decode.engine.rows import Rows
from dare_job.decode.model.tree import Tree
from dare_job.decode.verify.penalty import NO_PENALTY, PenaltyContext


def banned_tokens(tree: Tree, context: np.ndarray, lengths: np.ndarray, size: int,
                  vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens that ``no_repeat_ngram_size`` bans after the nodes of trees.

    Same result as ``NoRepeatNGramLogitsProcessor`` of transformers.

    Parameters
    ----------
    tree : Tree
    context : int32 (R, L)
        Text padded on the right.
    lengths : int64 (R,)
        Tokens of the text, including the root.
    size : int
        Size of n-grams.
    vocabulary : int
        Tokens with a logit.

    Returns
    -------
    tuple of int64 (B,)
        Nodes, and the token banned after each: it would complete an n-gram of the node's prefix.
    """
    tokens, parents, depths, starts = tree.host
    buffer = np.empty((2, 4 * len(tree)), np.int64)
    while True:
        count = _fill_banned(tokens, parents, depths, starts, context, lengths, size, vocabulary, buffer)
        if count <= buffer.shape[1]:
            return buffer[0, :count], buffer[1, :count]
        buffer = np.empty((2, count), np.int64)


@numba.njit(cache=True)
def _fill_banned(tokens, parents, depths, starts, context, lengths, size, vocabulary, out):
    """Fill ``out`` up to its capacity; return the number of banned tokens."""
    count, longest = 0, lengths.max() + depths.max()
    text = np.empty(longest, np.int64)
    chain = np.empty(longest, np.int64)  # previous position of the same token; -1: none
    last = np.full(max(context.max(), tokens.max()) + 1, -1)
    for r in range(len(starts) - 1):
        length = lengths[r]
        for i in range(length):
            text[i] = context[r, i]
            chain[i], last[text[i]] = last[text[i]], i
        for t in range(starts[r], starts[r + 1]):
            end, node = length + depths[t], t
            for i in range(end - 1, length - 1, -1):
                text[i], node = tokens[node], parents[node]
            at = last[text[end - 1]] if size > 1 else length - 1  # in the row's text
            while at >= 0:
                if at < end - 1 or size == 1:
                    count = _ban(text, end, at, size, vocabulary, t, out, count)
                at = chain[at] if size > 1 else at - 1
            for at in range(length, end if size == 1 else end - 1):
                count = _ban(text, end, at, size, vocabulary, t, out, count)
        for i in range(length):
            last[text[i]] = -1
    return count


@numba.njit
def _ban(text, end, at, size, vocabulary, node, out, count):
    """Ban the token after position ``at`` if the n - 1 tokens up to it equal the last n - 1 of the prefix.

    For n = 1, ban the token at ``at``. Returns the number of banned tokens.
    """
    if size == 1:
        token = text[at]
    else:
        for i in range(size - 1):
            if at - i < 0 or text[at - i] != text[end - 1 - i]:
                return count
        token = text[at + 1]
    if token >= vocabulary:
        return count
    if count < out.shape[1]:
        out[0, count], out[1, count] = node, token
    return count + 1


class TreeLogitsProcessor:
    """Applies the rules of a generation config to the logits of trees.

    Parameters
    ----------
    defer_penalty : bool
        On a CPU, leave the repetition penalty to verification, because most nodes are never visited.

    Attributes
    ----------
    vocabulary
        Number of tokens with an embedding.
    slow
        Whether rows have processors of transformers.
    always
        Whether every step's scores are changed.
    """

    def __init__(self, rules: GenerationRules, vocabulary: int, defer_penalty: bool = True):
        self._rules, self._defer_penalty = rules, defer_penalty
        self._writable: torch.Tensor | None = None
        self._stamps = np.zeros(vocabulary + 1, np.int64)
        self.slow = bool(rules.processors)
        self.always = bool(self.slow or rules.penalty != 1.0 or rules.ngram)

    def idle(self, rows: Rows, slots: np.ndarray) -> bool:
        """Return whether processing leaves the scores of rows in slots (R,) unchanged."""
        early = rows.any_min_length and self._rules.eos
        early = early and (rows.length[slots] < rows.min_length[slots]).any()
        return not (self.always or early or rows.any_grammar)

    def __call__(self, scores: torch.Tensor, tree: Tree, context: np.ndarray, lengths: np.ndarray,
                 min_length: np.ndarray,
                 processors: Sequence[LogitsProcessorList | None]) -> tuple[torch.Tensor, PenaltyContext]:
        """Process logits.

        Parameters
        ----------
        scores : float32 (T, V)
            Logits; may be overwritten.
        tree : Tree
        context : int32 (R, L)
            Text padded on the right.
        lengths, min_length : int64 (R,)
            Tokens of the text including the root; length before which no text ends.
        processors : sequence of LogitsProcessorList, optional
            Of each row; None unless ``slow``.

        Returns
        -------
        tuple of float32 (T, V), and PenaltyContext
            Scores, and the repetition penalty that verification has to apply.
        """
        if self.slow:
            return _run_processors(scores, tree, context, lengths, processors), NO_PENALTY
        context_penalty, penalty = NO_PENALTY, self._rules.penalty
        if penalty != 1.0 and self._defer_penalty and scores.device.type == "cpu":
            if len(self._stamps) <= scores.shape[1]:  # the output head is larger than the embedding
                self._stamps = np.zeros(scores.shape[1] + 1, np.int64)
            context_penalty = PenaltyContext(context, lengths, self._stamps, penalty)
        elif penalty != 1.0:
            _penalize(scores, tree, context, lengths, penalty)
        if self._rules.ngram:
            banned = banned_tokens(tree, context, lengths, self._rules.ngram, scores.shape[1])
            scores[tuple(torch.from_numpy(part).to(scores.device) for part in banned)] = -torch.inf
        if self._rules.eos and (lengths < min_length).any():
            remaining = torch.from_numpy(min_length - lengths).to(scores.device)
            early = tree.depths < remaining[tree.rows]
            ends = self._ends(scores.shape[1], scores.device)
            scores[:, ends] = scores[:, ends].masked_fill(early[:, None], -torch.inf)
        return scores, context_penalty

    def _ends(self, vocabulary: int, device: torch.device) -> torch.Tensor:
        """Return end-of-text tokens that have a logit; a config may name others."""
        if self._writable is None:
            ends = [token for token in self._rules.eos if token < vocabulary]
            self._writable = torch.tensor(ends, dtype=torch.long, device=device)
        return self._writable


def _penalize(scores: torch.Tensor, tree: Tree, context: np.ndarray, lengths: np.ndarray, penalty: float):
    """Apply the repetition penalty in place: each token of a node's prefix once, as in ``generate``."""
    longest, vocabulary = int(lengths.max()), scores.shape[1]
    filled = np.where(np.arange(longest) < lengths[:, None], context[:, :longest], context[:, :1])
    prefix = torch.from_numpy(filled.astype(np.int64)).to(scores.device)[tree.rows]  # (T, L)
    starts = torch.from_numpy(tree.starts[:-1]).to(scores.device)[tree.rows]
    queries = (starts[:, None] + torch.arange(tree.width, device=scores.device))
    queries = queries.clamp_max(len(tree.tokens) - 1)
    path = torch.where(tree.ancestors, tree.tokens[queries], prefix[:, :1])  # (T, W)
    prefix = torch.cat((prefix, path), 1)
    unwritable = filled.max() >= vocabulary  # the embedding may be larger than the output head
    if unwritable:
        has_last = (prefix == vocabulary - 1).any(1, keepdim=True)
        unknown = prefix >= vocabulary
        prefix = prefix.clamp_max(vocabulary - 1)
    old = scores.gather(1, prefix)
    new = torch.where(old < 0, old * penalty, old / penalty)
    if unwritable:  # clamped to the last token, which keeps its own score unless it occurs itself
        new = torch.where(unknown & ~has_last, old, new)
    scores.scatter_(1, prefix, new)


def _run_processors(scores: torch.Tensor, tree: Tree, context: np.ndarray, lengths: np.ndarray, processors):
    """Run each row's processors on the prefixes of its nodes, together for nodes of the same depth."""
    tokens, _, depths, starts = tree.host
    ancestors = tree.ancestors.cpu().numpy()
    for row, length in enumerate(lengths):
        text = context[row, :length].astype(np.int64)
        start, end = starts[row], starts[row + 1]
        for depth in range(depths[start:end].max() + 1):
            nodes = start + np.flatnonzero(depths[start:end] == depth)
            prefixes = [np.concatenate((text, _drafted(tokens[start:end], ancestors[node, : end - start])))
                        for node in nodes]
            ids = torch.from_numpy(np.stack(prefixes)).to(scores.device)
            scores[nodes] = processors[row](ids, scores[nodes])
    return scores


def _drafted(tokens: np.ndarray, path: np.ndarray) -> np.ndarray:
    """Return the draft tokens on a path, without the root, which is the text's last token."""
    return tokens[1:][path[1:]]
