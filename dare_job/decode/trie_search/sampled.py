"""Sampled beam search: K distinct prefixes of each level are sampled, rather than the K best.

Of the candidates after the K beams of a level, K are sampled without replacement in proportion to P(path) **
(1 / temperature), as ``generate`` samples beams; the limit of temperature 0 is beam search. Drafted levels
are sampled likewise under the drafter and verified level by level: ``exact`` keeps the distribution,
``relaxed`` (AtSpeed, algorithm 2) does not.

Why exact is exact: the drafts of a level are sampled from the candidates of the draft's own beams. Drafts
below beams that the target rejected are left out, and the rest are samples without replacement from the
drafter's distribution over the remaining candidates, as an exponential race among all is a race among some.
Whether a level is verified at all depends only on the levels above it.
"""

from collections.abc import Sequence

import numpy as np
import torch

from dare_job.decode.model.target import Target
from dare_job.decode.sampling.random_streams import DRAFT, RowKeys
from dare_job.decode.sampling.rules import normalised
from dare_job.decode.trie_search.beams import (
    Banned,
    Candidates,
    Drafted,
    Query,
    TrieBeams,
    candidate_distribution,
    fill_with_best,
    find_places,
    select,
)
from dare_job.decode.trie_search.drafts import TrieDrafter
from dare_job.decode.trie_search.node_scores import RAW
from dare_job.decode.trie_search.search import SearchState, TopK
from dare_job.decode.trie_search.trie import NONE, Trie
from dare_job.decode.trie_search.verification import RowRandomness, Verification, exact, relaxed
from dare_job.errors import ConfigError

VERIFICATIONS: dict[str, Verification] = {"exact": exact, "relaxed": relaxed}


class SampledTrieDrafter(TrieDrafter):
    """Samples the ``width`` (N) nodes of a level without replacement.

    A level drafted in full involves no randomness: it is read, and the target samples from it itself.
    """

    randomness: RowRandomness | None = None  # set by SampledTopK
    temperature = 1.0

    def select_level(self, rows: np.ndarray, candidates: Candidates) -> tuple[TrieBeams, torch.Tensor | None]:
        sizes = (candidates.nodes >= 0).sum(-1)
        is_full = sizes <= self.max_full_level
        limits = torch.where(is_full, sizes, self.width)
        q = candidate_distribution(candidates, self.temperature)
        sampled = self.randomness.sample_order(rows, candidates.nodes, q, limits, DRAFT)
        beams = select(candidates, sampled, max(1, int(limits.max())))
        return beams, sampled.masked_fill(is_full[:, None], NONE)


class SampledTopK(TopK):
    """Samples K distinct ids for each user.

    ``verification`` is "exact" or "relaxed" (lossy); without a drafter they are the same.
    """

    def __init__(self, target: Target, trie: Trie, first_code_token: Sequence[int], k: int,
                 temperature: float = 1.0, drafter: SampledTrieDrafter | None = None,
                 verification: str = "exact", scores: str = RAW, seed: int = 0):
        """Set up the search. The draft depth is fixed, since choosing it by latency would make samples depend
        on timing.

        Raises
        ------
        ConfigError
            The temperature is not positive, or the verification is unknown.
        """
        super().__init__(target, trie, first_code_token, k, drafter, scores)
        if not temperature > 0:
            raise ConfigError(f"temperature {temperature}: sampling needs a temperature above 0; for 0 use "
                              "beam search without sampling")
        if verification not in VERIFICATIONS:
            raise ConfigError(f"verification {verification!r}: use {' or '.join(VERIFICATIONS)}")
        self.temperature, self.seeds = temperature, RowKeys(seed)
        self.verification = VERIFICATIONS[verification]
        self.randomness: RowRandomness | None = None

    def begin(self, queries: Sequence[Query]) -> None:
        super().begin(queries)
        self.use_randomness(RowRandomness(self.seeds.keys_of(query.name for query in queries)))

    def use_randomness(self, randomness: RowRandomness) -> None:
        """Use this source for all further random decisions."""
        self.randomness = randomness
        if self.drafter:
            self.drafter.randomness, self.drafter.temperature = randomness, self.temperature

    def advance(self, state: SearchState, banned: Banned | None, drafts: list[Drafted]) -> np.ndarray:
        """Verify the levels of the last draft, then continue while all beams are read, up to where one
        ends the draft.
        """
        levels, ended = iter(drafts), np.zeros(len(state.level), np.bool_)
        while True:
            ready = self.ready(state)
            ready = ready[~ended[ready]]
            if not len(ready):
                break
            level_candidates, drafted = self.candidates(state, ready, banned), next(levels, None)
            p = candidate_distribution(level_candidates, self.temperature)
            q, draft_places = torch.zeros_like(p), level_candidates.nodes[:, :0]
            if drafted:
                q, draft_places = _draft_distribution(drafted, ready, level_candidates, self.temperature)
            selected, continues = self.verification(p, q, draft_places, self.k, self.randomness, ready,
                                              level_candidates.nodes)
            ended[ready] = ~continues.cpu().numpy()
            state.advance(ready, select(level_candidates, fill_with_best(level_candidates, selected), self.k))
            self.randomness.advance(ready)
        return np.flatnonzero(state.level < self.trie.length)


def _draft_distribution(level: Drafted, rows: np.ndarray, candidates: Candidates,
                        temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the drafter's distribution float64 (S, A) over the candidates of rows (S,), and their drafts'
    places (S, N).

    For a level drafted in full it is 0, since nothing was sampled from it and nothing must be subtracted from
    p.
    """
    order = torch.from_numpy(np.searchsorted(level.rows, rows)).to(candidates.nodes.device)
    drafted = Candidates(*(field[order] for field in level.candidates))
    index = find_places(drafted, candidates.nodes)
    q = candidate_distribution(drafted, temperature).gather(1, index.clamp_min(0))
    q = q.masked_fill(index == NONE, 0)
    sampled = level.sampled[order]
    q = q.masked_fill((sampled == NONE).all(1, keepdim=True), 0)
    nodes = drafted.nodes.gather(1, sampled.clamp_min(0)).masked_fill(sampled == NONE, NONE)
    return normalised(q), find_places(candidates, nodes)
