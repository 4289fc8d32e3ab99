"""Constrained beam search for many users at once, drafted or not: the lists are the same.

A row goes on without a forward as long as the target has read all of its beams: that is strict top-K
verification (AtSpeed, algorithm 1), for a step is accepted if and only if all of its K best were among what
was drafted, and what the last forward says yields one more step. Nodes that were read for another step and
not needed then count as drafted, too.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dare_job.decode.model.target import Target
from dare_job.decode.trie_search.beams import (
    Banned,
    Beams,
    Candidates,
    Drafted,
    Drafter,
    Progress,
    Query,
    best,
    candidates,
)
from dare_job.decode.trie_search.draft_depth import DraftDepth
from dare_job.decode.trie_search.node_scores import RAW, NodeScores
from dare_job.decode.trie_search.trie import NONE, ROOT, Trie, Vocabulary
from dare_job.errors import ConfigError


@dataclass(frozen=True)
class TopKResult:
    """What was found for R users.

    leaves      int64 (R, K): the best first, counted from 0; NONE behind all that are not banned
    scores      float32 (R, K): log-probabilities, -inf of NONE
    prefixes    int64 (R, L, K): nodes of the trie, the beams after each step, ordered alike
    reads       int64 (F, R): tokens that each target forward read of each row, its prompt included
    draft_reads int64 (D, R): the same of a draft model's forwards
    length      steps of a search, L
    seconds     of all rows together; ``draft_s`` of them in drafting
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
        """int64 (R,): target forwards that the row took part in, the prompt's included."""
        return (self.reads > 0).sum(0)

    @property
    def accepted(self) -> np.ndarray:
        """int64 (R,): steps that needed no forward of their own."""
        return self.length - self.forwards

    @property
    def queries(self) -> np.ndarray:
        """int64 (R,): tokens that the target read of the row."""
        return self.reads.sum(0)


@dataclass
class SearchState:
    """level int64 (R,): codes that a row's beams have; nodes, scores (R, L + 1, K): the beams of every level.

    Those of a level that a row has not reached are NONE.
    """

    level: np.ndarray
    nodes: torch.Tensor
    scores: torch.Tensor

    @classmethod
    def of(cls, rows: int, length: int, k: int, device) -> "SearchState":
        nodes = torch.full((rows, length + 1, k), NONE, dtype=torch.int64, device=device)
        scores = torch.full((rows, length + 1, k), -torch.inf, device=device)
        nodes[:, 0, 0], scores[:, 0, 0] = ROOT, 0
        return cls(np.zeros(rows, np.int64), nodes, scores)

    def rows(self, which: np.ndarray) -> Beams:
        at = self._place(which)
        return Beams(self.nodes[at], self.scores[at])

    def advance(self, which: np.ndarray, beams: Beams) -> None:
        self.level[which] += 1
        at = self._place(which)
        self.nodes[at], self.scores[at] = beams

    def _place(self, which: np.ndarray) -> tuple[torch.Tensor, ...]:
        return tuple(torch.from_numpy(one).to(self.nodes.device) for one in (which, self.level[which]))


class TopK:
    """The K most probable ids of a target for each user.

    drafter    None: plain beam search
    scheduler  how deep to draft; None: always as deep as the drafter goes
    """

    def __init__(self, target: Target, trie: Trie, first_code_token: Sequence[int], k: int,
                 drafter: Drafter | None = None, scores: str = RAW, scheduler: DraftDepth | None = None):
        """Raises ConfigError where there are fewer than k ids."""
        if not 1 <= k <= trie.leaves:
            raise ConfigError(f"k = {k}: lists have 1 to {trie.leaves} ids, as many as there are")
        self.trie, self.k, self.drafter, self.scheduler = trie, k, drafter, scheduler
        self.clock_s = 0.0  # all forwards so far, drafting included
        self.vocabulary = Vocabulary(trie, list(first_code_token), target.device)
        self.reader = NodeScores(target, self.vocabulary, scores)

    @torch.inference_mode()
    def search(self, queries: Sequence[Query]) -> TopKResult:
        """Lists of R users, who share their forwards. Raises ModelError for a prompt that does not fit."""
        started, draft_s = time.perf_counter(), 0.0
        banned = Banned.of(self.trie, [query.banned for query in queries], self.vocabulary.device)
        self.begin(queries)
        state, drafts = SearchState.of(len(queries), self.trie.length, self.k, self.vocabulary.device), []
        while len(rows := self.advanced(state, banned, drafts)):
            begun, before = time.perf_counter(), state.level[rows]
            drafts = self._drafts(state, rows)
            if self.scheduler and drafts:
                self.scheduler.note_draft(before, [(level.nodes >= 0).sum(1) for level in drafts],
                                          1e3 * (time.perf_counter() - begun))
            drafted_s = time.perf_counter() - begun
            draft_s += drafted_s
            self.clock_s += drafted_s
            begun = time.perf_counter()
            self._read(state, rows, drafts)
            read_s = time.perf_counter() - begun
            self.clock_s += read_s
            if self.scheduler:
                self.scheduler.line.note(int(self.reader.reads[-1].sum()), 1e3 * read_s)
            if self.scheduler and drafts:
                self.advanced(state, banned, drafts)
                self.scheduler.note_passed(before, state.level[rows], len(drafts))
        ranked = Beams(state.nodes, state.scores).ranked()
        nodes, drafted = ranked.nodes.cpu().numpy(), self.drafter.reads if self.drafter else []
        leaves = np.where(nodes[:, -1] == NONE, NONE, nodes[:, -1] - self.trie.first_leaf)
        return TopKResult(leaves, ranked.scores[:, -1].cpu().numpy(), nodes[:, 1:],
                     *(np.array(reads, np.int64).reshape(-1, len(queries))
                       for reads in (self.reader.reads, drafted)),
                     self.trie.length, time.perf_counter() - started, draft_s)

    def begin(self, queries: Sequence[Query]) -> None:
        """Forget all rows; these are the new ones."""
        self.reader.begin([query.prompt for query in queries])
        if self.drafter:
            self.drafter.begin(queries)

    def _drafts(self, state: SearchState, rows: np.ndarray) -> list[Drafted]:
        """What the next forward of rows (S,) reads beside their beams."""
        if self.drafter is None:
            return []
        beams, depth = state.rows(rows), None
        if self.scheduler:
            unread = self.reader.missing(rows, beams.nodes.cpu().numpy())
            prompts = 0 if self.reader.reads else int(self.reader.lengths.sum())  # read by the first forward
            queries = int((unread >= 0).sum()) + prompts
            depth = self.scheduler.depth(state.level[rows], queries, self.k)
            if not depth:
                return []
        drafts = self.drafter.draft(Progress(rows, state.level[rows], *beams), depth)
        if (room := self.reader.room()) is not None:
            wanted = np.concatenate([beams.nodes.cpu().numpy(), *(level.nodes for level in drafts)], axis=1)
            later = self.k * int(self.trie.length - 1 - state.level[rows].min())  # were all drafts refused
            if self.reader.missing(rows, wanted).shape[1] + later > room:
                return []
        return drafts

    def advanced(self, state: SearchState, banned: Banned | None, drafts: list[Drafted]) -> np.ndarray:
        """Take all steps that need no forward; the rows (S,) that need one. drafts: of the last forward."""
        while len(ready := self.ready(state)):
            state.advance(ready, best(self.candidates(state, ready, banned), self.k))
        return np.flatnonzero(state.level < self.trie.length)

    def ready(self, state: SearchState) -> np.ndarray:
        """Rows (S,) that can take a step."""
        rows = np.flatnonzero(state.level < self.trie.length)
        if not len(rows):
            return rows
        return rows[self.reader.knows(rows, state.rows(rows).nodes.cpu().numpy()).all(1)]

    def candidates(self, state: SearchState, rows: np.ndarray, banned: Banned | None) -> Candidates:
        """What the next step of rows (S,) chooses from."""
        beams = state.rows(rows)
        found = self.reader.children(rows, beams.nodes.cpu().numpy())
        return candidates(beams.scores, *found, banned.among(rows, found[0]) if banned else None)

    def _read(self, state: SearchState, rows: np.ndarray, drafts: list[Drafted]) -> None:
        """Have the target read drafts of rows (S,) and beams that it does not know, and what is above."""
        beams = state.rows(rows).nodes.cpu().numpy()
        beams = np.where(self.reader.knows(rows, beams), NONE, beams)  # forced tokens need not be read
        self.reader.read(rows, np.concatenate((beams, *(level.nodes for level in drafts)), axis=1))
