"""Constrained beam search for many users at once, with or without drafts; the results are the same.

A row advances without a forward pass while the target has read all of its beams. This is strict top-K
verification (AtSpeed, algorithm 1): a step is accepted if and only if all of its K best are among the drafted
nodes, and the last forward pass always yields one more step. Nodes read for an earlier step count as drafted,
too.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dare_job.decode.model.target import Target
from dare_job.decode.trie_search.beams import (
    Banned,
    Candidates,
    Drafted,
    Query,
    TrieBeams,
    best,
    candidates,
)
from dare_job.decode.trie_search.draft_depth import DraftDepth
from dare_job.decode.trie_search.drafts import TrieDrafter
from dare_job.decode.trie_search.node_scores import RAW, NodeScores
from dare_job.decode.trie_search.trie import NONE, ROOT, Trie, Vocabulary
from dare_job.errors import ConfigError


@dataclass(frozen=True)
class TopKResult:
    """Recommendations for R users.

    Attributes
    ----------
    leaves : int64 (R, K)
        Best first, counted from 0; NONE after the last that is not banned.
    scores : float32 (R, K)
        Log-probabilities; -inf for NONE.
    prefixes : int64 (R, L, K)
        Trie nodes of the beams after each step, in order of score.
    reads : int64 (F, R)
        Tokens that each target forward pass read per row, prompt included.
    draft_reads : int64 (D, R)
        The same for a draft model's forward passes.
    length
        L, steps of a search.
    seconds
        Of all rows together, ``draft_s`` of them for drafting.
    """

    leaves: np.ndarray
    scores: np.ndarray
    prefixes: np.ndarray
    reads: np.ndarray
    draft_reads: np.ndarray
    length: int
    seconds: float
    draft_s: float

    @property
    def forwards(self) -> np.ndarray:
        """Target forward passes that each row took part in, int64 (R,), prompt included."""
        return (self.reads > 0).sum(0)

    @property
    def accepted(self) -> np.ndarray:
        """Steps that needed no forward pass of their own, int64 (R,)."""
        return self.length - self.forwards

    @property
    def queries(self) -> np.ndarray:
        """Tokens that the target read per row, int64 (R,)."""
        return self.reads.sum(0)


@dataclass
class SearchState:
    """Progress of R rows.

    Attributes
    ----------
    level : int64 (R,)
        Number of codes of a row's beams.
    nodes, scores : (R, L + 1, K)
        Beams of every level; NONE and -inf for levels not reached yet.
    """

    level: np.ndarray
    nodes: torch.Tensor
    scores: torch.Tensor

    @classmethod
    def of(cls, rows: int, length: int, k: int, device) -> "SearchState":
        """R = ``rows`` rows with the root as their only beam; L is ``length``, K is ``k``."""
        nodes = torch.full((rows, length + 1, k), NONE, dtype=torch.int64, device=device)
        scores = torch.full((rows, length + 1, k), -torch.inf, device=device)
        nodes[:, 0, 0], scores[:, 0, 0] = ROOT, 0
        return cls(np.zeros(rows, np.int64), nodes, scores)

    def rows(self, which: np.ndarray) -> TrieBeams:
        """The beams (S, K) of rows ``which`` int64 (S,) at their own levels."""
        at = self._place(which)
        return TrieBeams(self.nodes[at], self.scores[at])

    def advance(self, which: np.ndarray, beams: TrieBeams) -> None:
        """Go to the next level of rows ``which`` int64 (S,), which has these beams (S, K)."""
        self.level[which] += 1
        at = self._place(which)
        self.nodes[at], self.scores[at] = beams

    def _place(self, which: np.ndarray) -> tuple[torch.Tensor, ...]:
        return tuple(torch.from_numpy(array).to(self.nodes.device) for array in (which, self.level[which]))


class TopK:
    """Finds the K most probable ids of a target for each user.

    ``drafter`` None means beam search without drafts; ``draft_depth`` None drafts as deep as the drafter
    allows.
    """

    def __init__(self, target: Target, trie: Trie, first_code_token: Sequence[int], k: int,
                 drafter: TrieDrafter | None = None, scores: str = RAW,
                 draft_depth: DraftDepth | None = None):
        """Set up the search. ``first_code_token`` holds the token of code 0 for each level.

        Raises
        ------
        ConfigError
            k is not from 1 to the number of ids.
        """
        if not 1 <= k <= trie.leaves:
            raise ConfigError(f"k = {k}: it must be from 1 to {trie.leaves}, the number of ids")
        self.trie, self.k, self.drafter, self.draft_depth = trie, k, drafter, draft_depth
        self.clock_s = 0.0  # all forward passes so far, drafting included
        self.vocabulary = Vocabulary(trie, list(first_code_token), target.device)
        self.node_scores = NodeScores(target, self.vocabulary, scores)

    @torch.inference_mode()
    def search(self, queries: Sequence[Query]) -> TopKResult:
        """Recommend to R users, who share their forward passes.

        Raises
        ------
        ModelError
            A prompt does not fit the model.
        """
        started, draft_s = time.perf_counter(), 0.0
        banned = Banned.from_leaves(self.trie, [query.banned for query in queries], self.vocabulary.device)
        self.begin(queries)
        state, drafts = SearchState.of(len(queries), self.trie.length, self.k, self.vocabulary.device), []
        while len(rows := self.advance(state, banned, drafts)):
            forward_started, before = time.perf_counter(), state.level[rows]
            drafts = self._drafts(state, rows)
            if self.draft_depth and drafts:
                self.draft_depth.record_draft(before, [(level.nodes >= 0).sum(1) for level in drafts],
                                              1e3 * (time.perf_counter() - forward_started))
            drafted_s = time.perf_counter() - forward_started
            draft_s += drafted_s
            self.clock_s += drafted_s
            forward_started = time.perf_counter()
            self._read(state, rows, drafts)
            read_s = time.perf_counter() - forward_started
            self.clock_s += read_s
            if self.draft_depth:
                self.draft_depth.fit.record(int(self.node_scores.reads[-1].sum()), 1e3 * read_s)
            if self.draft_depth and drafts:
                self.advance(state, banned, drafts)
                self.draft_depth.record_accepted(before, state.level[rows], len(drafts))
        ranked = TrieBeams(state.nodes, state.scores).ranked()
        nodes, draft_reads = ranked.nodes.cpu().numpy(), self.drafter.scorer.reads if self.drafter else []
        leaves = np.where(nodes[:, -1] == NONE, NONE, nodes[:, -1] - self.trie.first_leaf)
        return TopKResult(leaves, ranked.scores[:, -1].cpu().numpy(), nodes[:, 1:],
                          *(np.array(reads, np.int64).reshape(-1, len(queries))
                            for reads in (self.node_scores.reads, draft_reads)),
                          self.trie.length, time.perf_counter() - started, draft_s)

    def begin(self, queries: Sequence[Query]) -> None:
        """Replace all rows by these queries."""
        self.node_scores.begin([query.prompt for query in queries])
        if self.drafter:
            self.drafter.scorer.begin(queries)

    def _drafts(self, state: SearchState, rows: np.ndarray) -> list[Drafted]:
        """Draft what the next forward pass of rows (S,) reads besides their beams."""
        if self.drafter is None:
            return []
        beams, depth = state.rows(rows), None
        if self.draft_depth:
            unread = self.node_scores.unread(rows, beams.nodes.cpu().numpy())
            # Only the first forward pass reads prompts.
            prompts = 0 if self.node_scores.reads else int(self.node_scores.lengths.sum())
            queries = int((unread >= 0).sum()) + prompts
            depth = self.draft_depth.depth(state.level[rows], queries, self.k)
            if not depth:
                return []
        drafts = self.drafter.draft(rows, state.level[rows], beams, depth)
        if (capacity := self.node_scores.capacity()) is not None:
            wanted = np.concatenate([beams.nodes.cpu().numpy(), *(level.nodes for level in drafts)], axis=1)
            # Reads that are needed if all drafts are rejected.
            undrafted_reads = self.k * int(self.trie.length - 1 - state.level[rows].min())
            if self.node_scores.unread(rows, wanted).shape[1] + undrafted_reads > capacity:
                return []
        return drafts

    def advance(self, state: SearchState, banned: Banned | None, drafts: list[Drafted]) -> np.ndarray:
        """Take all steps that need no forward pass; return the rows (S,) that need one.

        drafts are those of the last forward pass.
        """
        while len(ready := self.ready(state)):
            state.advance(ready, best(self.candidates(state, ready, banned), self.k))
        return np.flatnonzero(state.level < self.trie.length)

    def ready(self, state: SearchState) -> np.ndarray:
        """Return the rows (S,) that can take a step."""
        rows = np.flatnonzero(state.level < self.trie.length)
        if not len(rows):
            return rows
        return rows[self.node_scores.has(rows, state.rows(rows).nodes.cpu().numpy()).all(1)]

    def candidates(self, state: SearchState, rows: np.ndarray, banned: Banned | None) -> Candidates:
        """Return the candidates of the next step of rows (S,)."""
        beams = state.rows(rows)
        children = self.node_scores.children(rows, beams.nodes.cpu().numpy())
        return candidates(beams.scores, *children, banned.contains(rows, children[0]) if banned else None)

    def _read(self, state: SearchState, rows: np.ndarray, drafts: list[Drafted]) -> None:
        """Let the target read the drafts of rows (S,), their unread beams and the ancestors of both."""
        beams = state.rows(rows).nodes.cpu().numpy()
        beams = np.where(self.node_scores.has(rows, beams), NONE, beams)  # forced tokens need no read
        self.node_scores.read(rows, np.concatenate((beams, *(level.nodes for level in drafts)), axis=1))
