"""Sampled beam search: K different prefixes of each level are drawn, not the K best.

The law: of the candidates behind the K beams of a level, K are drawn one after the other without replacement,
each in proportion to P(path) ** (1 / temperature), as ``generate`` samples beams; at temperature 0 that
would be beam search itself. Drafted levels are drawn the same way from what the drafter
says, and verified level by level: ``exact`` keeps the law, ``relaxed`` (AtSpeed's algorithm 2) does not.

Exact: the drafts of a level are those of the draft's own beams. Those below beams that the target did not
take are left out, and the rest are draws without replacement from the drafter's law over what is left: a race
among all is a race among some. Whether a level is verified at all is settled by the levels above it.
"""

from collections.abc import Sequence

import numpy as np
import torch

from dare_job.decode.model.target import Target
from dare_job.decode.sampling.random_streams import DRAFT, RowKeys
from dare_job.decode.sampling.rules import normalised
from dare_job.decode.trie_search.beams import (
    Banned,
    Beams,
    Candidates,
    Drafted,
    Query,
    candidate_distribution,
    fill_with_best,
    find_places,
    select,
)
from dare_job.decode.trie_search.drafts import Scorer, TrieDrafter
from dare_job.decode.trie_search.kernels import Kernel, Randomness, RowRandomness, exact, relaxed
from dare_job.decode.trie_search.node_scores import RAW
from dare_job.decode.trie_search.search import SearchState, TopK
from dare_job.decode.trie_search.trie import NONE, Trie
from dare_job.errors import ConfigError

KERNELS: dict[str, Kernel] = {"exact": exact, "relaxed": relaxed}


class SampledTrieDrafter(TrieDrafter):
    """Draws the ``width`` (N) nodes of a level without replacement. A level that is drafted whole says
    nothing of chance: it is read, and the target draws from it itself.
    """

    def __init__(self, scorer: Scorer, length: int, width: int = 40, depth: int | None = None,
                 whole: int = 0):
        super().__init__(scorer, length, width, depth, whole)
        self.chance: Randomness | None = None  # who searches gives both
        self.temperature = 1.0

    def chosen(self, rows: np.ndarray, found: Candidates) -> tuple[Beams, torch.Tensor | None]:
        sizes = (found.nodes >= 0).sum(-1)
        whole = sizes <= self.whole
        limits = torch.where(whole, sizes, self.width)
        drawn = self.chance.order(
            rows, found.nodes, candidate_distribution(found, self.temperature), limits, DRAFT
        )
        beams = select(found, drawn, max(1, int(limits.max())))
        return beams, drawn.masked_fill(whole[:, None], NONE)


class SampledTopK(TopK):
    """K different ids drawn for each user.

    verification  exact or relaxed (lossy); without a drafter they are one
    """

    def __init__(
        self,
        target: Target,
        trie: Trie,
        first_code_token: Sequence[int],
        k: int,
        temperature: float = 1.0,
        drafter: SampledTrieDrafter | None = None,
        verification: str = "exact",
        scores: str = RAW,
        seed: int = 0,
    ):
        """Raises ConfigError for a temperature that is not above 0 and for an unknown verification. There is
        no scheduler: what is drawn would hang on the clock.
        """
        super().__init__(target, trie, first_code_token, k, drafter, scores)
        if not temperature > 0:
            raise ConfigError(f"temperature {temperature}: sampled lists need one above 0; at 0 the lists "
                              "are those of plain beam search")
        if verification not in KERNELS:
            raise ConfigError(f"verification {verification!r}: use {' or '.join(KERNELS)}")
        self.temperature, self.kernel, self.seeds = temperature, KERNELS[verification], RowKeys(seed)
        self.chance: Randomness | None = None

    def begin(self, queries: Sequence[Query]) -> None:
        super().begin(queries)
        self.use(RowRandomness(self.seeds.keys_of(query.name for query in queries)))

    def use(self, chance: Randomness) -> None:
        """Whose chance decides from now on."""
        self.chance = chance
        if self.drafter:
            self.drafter.chance, self.drafter.temperature = chance, self.temperature

    def advanced(self, state: SearchState, banned: Banned | None, drafts: list[Drafted]) -> np.ndarray:
        """Verify the levels of the last forward's draft, then go on as far as all beams were read, but no
        further than to where a kernel ends a row's draft.
        """
        levels, ended = iter(drafts), np.zeros(len(state.level), np.bool_)
        while True:
            ready = self.ready(state)
            ready = ready[~ended[ready]]
            if not len(ready):
                break
            found, level = self.candidates(state, ready, banned), next(levels, None)
            p = candidate_distribution(found, self.temperature)
            q, drawn = torch.zeros_like(p), found.nodes[:, :0]
            if level:
                q, drawn = _draft_distribution(level, ready, found, self.temperature)
            chosen, through = self.kernel(p, q, drawn, self.k, self.chance, ready, found.nodes)
            ended[ready] = ~through.cpu().numpy()
            state.advance(ready, select(found, fill_with_best(found, chosen), self.k))
            self.chance.turn(ready)
        return np.flatnonzero(state.level < self.trie.length)


def _draft_distribution(level: Drafted, rows: np.ndarray, found: Candidates,
             temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The drafter's law float64 (S, A) over the candidates of rows (S,), and their drafts by place (S, N).

    Where a level is drafted whole nothing was drawn: the law is 0, for none of it is to be taken from p.
    """
    own = torch.from_numpy(np.searchsorted(level.rows, rows)).to(found.nodes.device)
    below = Candidates(*(field[own] for field in level.found))
    at = find_places(below, found.nodes)
    q = candidate_distribution(below, temperature).gather(1, at.clamp_min(0)).masked_fill(at == NONE, 0)
    drawn = level.drawn[own]
    q = q.masked_fill((drawn == NONE).all(1, keepdim=True), 0)
    nodes = below.nodes.gather(1, drawn.clamp_min(0)).masked_fill(drawn == NONE, NONE)
    return normalised(q), find_places(found, nodes)
