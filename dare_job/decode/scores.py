"""Logits to the scores that greedy decoding compares: penalties and bans, for every node's own prefix."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import LogitsProcessorList

from dare_job.decode.bans import bans
from dare_job.decode.generation import Rules
from dare_job.decode.rows import Rows
from dare_job.decode.tree import Tree
from dare_job.decode.verify.seen import NOTHING, Seen


class Scorer:
    """Applies a generation config's rules to the logits of whole trees."""

    def __init__(self, rules: Rules, vocabulary: int):
        """vocabulary: tokens that the model can read."""
        self._rules = rules
        self._writable: torch.Tensor | None = None
        self._stamps = np.zeros(vocabulary + 1, np.int64)
        self.slow = bool(rules.processors)

    def idle(self, rows: Rows, slots: np.ndarray) -> bool:
        """Whether it would leave the scores of the rows in these slots (R,) as they are."""
        early = rows.held_back and self._rules.eos and (rows.length[slots] < rows.least[slots]).any()
        return not (self.slow or self._rules.penalty != 1.0 or self._rules.ngram or early)

    def __call__(self, scores: torch.Tensor, tree: Tree, context: np.ndarray, lengths: np.ndarray,
                 least: np.ndarray,
                 processors: Sequence[LogitsProcessorList | None]) -> tuple[torch.Tensor, Seen]:
        """Scores float32 (T, V) of logits float32 (T, V), which may be overwritten, and what verification has
        yet to do to those that it reads: on a CPU a penalty waits, as most nodes are never read.

        context int32 (R, L) text padded on the right, lengths (R,) with the root, least (R,) length before
        which no text ends, processors of each row (None unless ``slow``).
        """
        if self.slow:
            return _by_objects(scores, tree, context, lengths, processors), NOTHING
        seen, penalty = NOTHING, self._rules.penalty
        if penalty != 1.0 and scores.device.type == "cpu":
            if len(self._stamps) <= scores.shape[1]:  # a head that is wider than the embedding
                self._stamps = np.zeros(scores.shape[1] + 1, np.int64)
            seen = Seen(context, lengths, self._stamps, penalty)
        elif penalty != 1.0:
            _penalise(scores, tree, context, lengths, penalty)
        if self._rules.ngram:
            banned = bans(tree, context, lengths, self._rules.ngram, scores.shape[1])
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


def _by_objects(scores: torch.Tensor, tree: Tree, context: np.ndarray, lengths: np.ndarray, processors):
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
