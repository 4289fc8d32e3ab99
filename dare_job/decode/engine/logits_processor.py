"""Logits to the scores that greedy decoding compares: penalties and bans, for every node's own prefix.

Tokens that ``no_repeat_ngram_size`` forbids behind the nodes of trees, in compiled code.
"""

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
    """Nodes and tokens int64 (B,): the token would end a run of ``size`` tokens that is in the node's prefix.

    context int32 (R, L) text padded on the right, lengths (R,) with the root. Source:
    ``NoRepeatNGramLogitsProcessor`` of transformers.
    """
    tokens, parents, depths, starts = tree.host
    room = np.empty((2, 4 * len(tree)), np.int64)
    while True:
        found = _bans(tokens, parents, depths, starts, context, lengths, size, vocabulary, room)
        if found <= room.shape[1]:
            return room[0, :found], room[1, :found]
        room = np.empty((2, found), np.int64)


@numba.njit(cache=True)
def _bans(tokens, parents, depths, starts, context, lengths, size, vocabulary, out):
    """Fill ``out`` as far as it reaches; how many there are."""
    found, widest = 0, lengths.max() + depths.max()
    text = np.empty(widest, np.int64)
    chain = np.empty(widest, np.int64)  # place before with the same token; -1: none
    last = np.full(max(context.max(), tokens.max()) + 1, -1)
    for r in range(len(starts) - 1):
        length = lengths[r]
        for i in range(length):
            text[i] = context[r, i]
            chain[i], last[text[i]] = last[text[i]], i
        for t in range(starts[r], starts[r + 1]):
            whole, node = length + depths[t], t
            for i in range(whole - 1, length - 1, -1):
                text[i], node = tokens[node], parents[node]
            at = last[text[whole - 1]] if size > 1 else length - 1  # in the row's text
            while at >= 0:
                if at < whole - 1 or size == 1:
                    found = _ban(text, whole, at, size, vocabulary, t, out, found)
                at = chain[at] if size > 1 else at - 1
            for at in range(length, whole if size == 1 else whole - 1):
                found = _ban(text, whole, at, size, vocabulary, t, out, found)
        for i in range(length):
            last[text[i]] = -1
    return found


@numba.njit
def _ban(text, whole, at, size, vocabulary, node, out, found):
    """Ban what stands behind place ``at`` where the run that ends there is the one that ends the prefix; of
    runs of one token the token itself.
    """
    if size == 1:
        token = text[at]
    else:
        for i in range(size - 1):
            if at - i < 0 or text[at - i] != text[whole - 1 - i]:
                return found
        token = text[at + 1]
    if token >= vocabulary:
        return found
    if found < out.shape[1]:
        out[0, found], out[1, found] = node, token
    return found + 1


class TreeLogitsProcessor:
    """Applies a generation config's rules to the logits of whole trees."""

    def __init__(self, rules: GenerationRules, vocabulary: int):
        """vocabulary: tokens that the model can read."""
        self._rules = rules
        self._writable: torch.Tensor | None = None
        self._stamps = np.zeros(vocabulary + 1, np.int64)
        self.slow = bool(rules.processors)

    def idle(self, rows: Rows, slots: np.ndarray) -> bool:
        """Whether it would leave the scores of the rows in these slots (R,) as they are."""
        early = rows.any_min_length and self._rules.eos
        early = early and (rows.length[slots] < rows.min_length[slots]).any()
        return not (self.slow or self._rules.penalty != 1.0 or self._rules.ngram or early)

    def __call__(self, scores: torch.Tensor, tree: Tree, context: np.ndarray, lengths: np.ndarray,
                 least: np.ndarray,
                 processors: Sequence[LogitsProcessorList | None]) -> tuple[torch.Tensor, PenaltyContext]:
        """Scores float32 (T, V) of logits float32 (T, V), which may be overwritten, and what verification has
        yet to do to those that it reads: on a CPU a penalty waits, as most nodes are never read.

        context int32 (R, L) text padded on the right, lengths (R,) with the root, least (R,) length before
        which no text ends, processors of each row (None unless ``slow``).
        """
        if self.slow:
            return _run_processors(scores, tree, context, lengths, processors), NO_PENALTY
        seen, penalty = NO_PENALTY, self._rules.penalty
        if penalty != 1.0 and scores.device.type == "cpu":
            if len(self._stamps) <= scores.shape[1]:  # a head that is wider than the embedding
                self._stamps = np.zeros(scores.shape[1] + 1, np.int64)
            seen = PenaltyContext(context, lengths, self._stamps, penalty)
        elif penalty != 1.0:
            _penalise(scores, tree, context, lengths, penalty)
        if self._rules.ngram:
            banned = banned_tokens(tree, context, lengths, self._rules.ngram, scores.shape[1])
            scores[tuple(torch.from_numpy(part).to(scores.device) for part in banned)] = -torch.inf
        if self._rules.eos and (lengths < least).any():
            room = torch.from_numpy(least - lengths).to(scores.device)
            early = tree.depths < room[tree.rows]
            ends = self._ends(scores.shape[1], scores.device)
            scores[:, ends] = scores[:, ends].masked_fill(early[:, None], -torch.inf)
        return scores, seen

    def _ends(self, vocabulary: int, device: torch.device) -> torch.Tensor:
        """End-of-text tokens that the model can write: a config may name others."""
        if self._writable is None:
            ends = [token for token in self._rules.eos if token < vocabulary]
            self._writable = torch.tensor(ends, dtype=torch.long, device=device)
        return self._writable


def _penalise(scores: torch.Tensor, tree: Tree, context: np.ndarray, lengths: np.ndarray, penalty: float):
    """Repetition penalty in place: every token of a node's prefix once, as ``generate`` has it."""
    longest, vocabulary = int(lengths.max()), scores.shape[1]
    filled = np.where(np.arange(longest) < lengths[:, None], context[:, :longest], context[:, :1])
    seen = torch.from_numpy(filled.astype(np.int64)).to(scores.device)[tree.rows]  # (T, L)
    starts = torch.from_numpy(tree.starts[:-1]).to(scores.device)[tree.rows]
    queries = (starts[:, None] + torch.arange(tree.width, device=scores.device))
    queries = queries.clamp_max(len(tree.tokens) - 1)
    path = torch.where(tree.ancestors, tree.tokens[queries], seen[:, :1])  # (T, W)
    seen = torch.cat((seen, path), 1)
    unwritable = filled.max() >= vocabulary  # the embedding may hold tokens that the model cannot write
    if unwritable:
        last_seen = (seen == vocabulary - 1).any(1, keepdim=True)
        unknown = seen >= vocabulary
        seen = seen.clamp_max(vocabulary - 1)
    old = scores.gather(1, seen)
    new = torch.where(old < 0, old * penalty, old / penalty)
    if unwritable:  # they share the last token's column, which is penalised only if it was seen itself
        new = torch.where(unknown & ~last_seen, old, new)
    scores.scatter_(1, seen, new)


def _run_processors(scores: torch.Tensor, tree: Tree, context: np.ndarray, lengths: np.ndarray, processors):
    """Each row's own processors on the prefixes of its nodes, those of one depth together."""
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
    """Draft tokens on a path, the root left out (it is the text's last token)."""
    return tokens[1:][path[1:]]
