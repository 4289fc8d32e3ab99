"""Constrained beam search for many users at once, drafted or not: the lists are the same.

A row goes on without a forward as long as the target has read all of its beams: that is strict top-K
verification (AtSpeed, algorithm 1), for a step is accepted if and only if all of its K best were among what
was drafted, and what the last forward says yields one more step. Nodes that were read for another step and
not needed then count as drafted, too.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from dare_job.decode.beam.top_k.banned import Banned
from dare_job.decode.beam.top_k.beams import Beams, best, candidates
from dare_job.decode.beam.top_k.drafts import Drafter, Progress
from dare_job.decode.beam.top_k.reader import RAW, Reader
from dare_job.decode.beam.top_k.trie import NONE, ROOT, Trie, Vocabulary
from dare_job.decode.target import Target
from dare_job.errors import ConfigError


@dataclass(frozen=True)
class Query:
    """One user.

    prompt        token ids, one at least
    history       leaves of the trie, the oldest first: what drafters without a model know of the user
    banned        leaves that the list may not hold
    draft_prompt  token ids for a draft model of another vocabulary; empty: it reads the same prompt
    """

    prompt: Sequence[int]
    history: Sequence[int] = ()
    banned: Sequence[int] = ()
    draft_prompt: Sequence[int] = ()


@dataclass(frozen=True)
class Lists:
    """What was found for R users.

    leaves    int64 (R, K): the best first, counted from 0
    scores    float32 (R, K): log-probabilities
    forwards  int64 (R,): target forwards that the row took part in, the prompt's included
    accepted  int64 (R,): steps that needed no forward of their own
    queries   int64 (R,): tokens that the target read of the row
    seconds   of all rows together; ``draft_s`` of them in drafting
    """

    leaves: np.ndarray
    scores: np.ndarray
    forwards: np.ndarray
    accepted: np.ndarray
    queries: np.ndarray
    seconds: float
    draft_s: float


@dataclass
class _State:
    """level int64 (R,), beams of R rows, and counts as in ``Lists``."""

    level: np.ndarray
    nodes: torch.Tensor
    scores: torch.Tensor
    forwards: np.ndarray = field(init=False)
    queries: np.ndarray = field(init=False)

    def __post_init__(self):
        self.forwards, self.queries = np.zeros((2, len(self.level)), np.int64)

    @classmethod
    def of(cls, rows: int, k: int, device) -> "_State":
        nodes = torch.full((rows, k), NONE, dtype=torch.int64, device=device)
        scores = torch.full((rows, k), -torch.inf, device=device)
        nodes[:, 0], scores[:, 0] = ROOT, 0
        return cls(np.zeros(rows, np.int64), nodes, scores)

    def rows(self, which: np.ndarray) -> Beams:
        at = torch.from_numpy(which).to(self.nodes.device)
        return Beams(self.nodes[at], self.scores[at])

    def advance(self, which: np.ndarray, beams: Beams) -> None:
        at = torch.from_numpy(which).to(self.nodes.device)
        self.nodes[at], self.scores[at] = beams
        self.level[which] += 1


class TopK:
    """The K most probable ids of a target for each user. ``drafter``: None: plain beam search."""

    def __init__(self, target: Target, trie: Trie, first_code_token: Sequence[int], k: int,
                 drafter: Drafter | None = None, scores: str = RAW):
        """Raises ConfigError where there are fewer than k ids."""
        if not 1 <= k <= trie.leaves:
            raise ConfigError(f"k = {k}: lists have 1 to {trie.leaves} ids, as many as there are")
        self.trie, self.k, self.drafter = trie, k, drafter
        self.vocabulary = Vocabulary(trie, list(first_code_token), target.device)
        self.reader = Reader(target, self.vocabulary, scores)

    @torch.inference_mode()
    def search(self, queries: Sequence[Query]) -> Lists:
        """Lists of R users, who share their forwards. Raises ModelError for a prompt that does not fit,
        ConfigError where a user's banned ids leave fewer than k.
        """
        started, draft_s = time.perf_counter(), 0.0
        banned = Banned.of(self.trie, [query.banned for query in queries], self.k, self.vocabulary.device)
        self.reader.begin([query.prompt for query in queries])
        if self.drafter:
            self.drafter.begin(queries)
        state = _State.of(len(queries), self.k, self.vocabulary.device)
        while len(open_ := self._advanced(state, banned)):
            beams = state.rows(open_)
            nodes = beams.nodes.cpu().numpy()
            if self.drafter:
                begun = time.perf_counter()
                drafts = self.drafter.draft(Progress(open_, state.level[open_], *beams))
                draft_s += time.perf_counter() - begun
                nodes = np.concatenate((nodes, *(level.nodes for level in drafts)), axis=1)
            self._read(state, open_, nodes)
        ranked = Beams(state.nodes, state.scores).ranked()
        return Lists(ranked.nodes.cpu().numpy() - self.trie.first_leaf, ranked.scores.cpu().numpy(),
                     state.forwards, self.trie.length - state.forwards, state.queries,
                     time.perf_counter() - started, draft_s)

    def _advanced(self, state: _State, banned: Banned | None) -> np.ndarray:
        """Take all steps that need no forward; the rows (S,) that need one."""
        while True:
            rows = np.flatnonzero(state.level < self.trie.length)
            if not len(rows):
                return rows
            ready = rows[self.reader.knows(rows, state.rows(rows).nodes.cpu().numpy()).all(1)]
            if not len(ready):
                return rows
            beams = state.rows(ready)
            found = self.reader.children(ready, beams.nodes.cpu().numpy())
            barred = banned.among(ready, found[0]) if banned else None
            state.advance(ready, best(candidates(beams.scores, *found, barred), self.k))

    def _read(self, state: _State, rows: np.ndarray, nodes: np.ndarray) -> None:
        """Have the target read nodes (S, X) that it has not read, and whatever stands above them."""
        before = self.reader.counts[rows]
        prompts = np.where(state.forwards[rows] == 0, self.reader.lengths[rows], 0)
        self.reader.read(rows, nodes)
        state.forwards[rows] += 1
        state.queries[rows] += self.reader.counts[rows] - before + prompts
