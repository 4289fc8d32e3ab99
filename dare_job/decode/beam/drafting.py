"""Draft forests: a draft model's own beam sampling, layer by layer behind the rows' beams."""

from typing import NamedTuple

import numpy as np
import torch

from dare_job.decode.beam.forest import Forest
from dare_job.decode.beam.kernel import beam_distribution, log_likelihoods
from dare_job.decode.draft.model import over_vocabulary
from dare_job.decode.model.masks import Level
from dare_job.decode.model.target import Target
from dare_job.decode.sampling.distributions import NONE, distribution_for, sample_candidates
from dare_job.decode.sampling.random_streams import DRAFT, uniforms
from dare_job.decode.settings import Beams


class BeamDrafts(NamedTuple):
    """One layer of R rows.

    pairs  int64 (R, n): beam * V + token, NONE where there is none
    q      float64 (R, B * V): the law that drew them; None: the most probable
    ids    int64 (R, n): nodes of those that may go on
    """

    pairs: torch.Tensor
    q: torch.Tensor | None
    ids: np.ndarray


class BeamDrafter:
    """A draft model and its cache, whose rows hold the nodes that the engine's forest says it has read."""

    def __init__(self, model: Target):
        self.model = model
        self.cache = model.new_cache(0)
        self.columns = 0  # of the target's vocabulary
        self._last = model.vocabulary - 1

    def begin(self, slots: int) -> None:
        """An empty cache for a run."""
        self.cache = self.model.new_cache(slots)

    def fits(self, lengths: np.ndarray) -> np.ndarray:
        """int64 (R,): layers that may be drafted behind texts of these lengths, by the model's positions."""
        limit = self.model.traits.context
        return np.full(len(lengths), 2**31) if limit is None else np.maximum(limit - lengths + 1, 0)

    def read_prompts(self, slots: np.ndarray, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Prompts int64 (F, P), padded on the right, into these slots (F,): those with numbers, bool (F,)."""
        logits = self.model.prefill(self.cache, slots, np.minimum(ids, self._last), lengths)
        sound = logits.amax(-1).isfinite().cpu().numpy()
        for slot in slots[~sound]:
            self.cache.clear(slot)
        return sound

    def keep(self, lengths: np.ndarray, paths: np.ndarray, counts: np.ndarray) -> None:
        self.model.commit(self.cache, lengths, paths, counts)

    def move(self, source: int, target: int, length: int) -> None:
        self.cache.copy_slot(source, target, length)

    def grow(self, beams: Beams, forest: Forest, likelihoods: np.ndarray, ids: np.ndarray,
             lengths: np.ndarray, layers: np.ndarray, keys: np.ndarray, written: np.ndarray,
             ends: torch.Tensor, banned: np.ndarray) -> tuple[list[BeamDrafts], np.ndarray]:
        """Layers of drafts behind beams (R, B), given by log P, -inf where there is none, and nodes ids.

        lengths (R,) of texts, layers (R,) to draft, keys and written (R,) of the rows' random numbers, ends
        bool (V,), banned (R,): layers in which no text may end. Adds the drafts' nodes to the forest. Says of
        each row, too, whether the draft model's numbers are some, bool (R,): else it has no use for the row.
        """
        found, state = [], torch.from_numpy(likelihoods).to(ends.device)
        sound = np.ones(len(lengths), np.bool_)
        for depth in range(int(layers.max(initial=0))):
            going = layers > depth
            state = torch.where(torch.from_numpy(going).to(ends.device)[:, None], state, -torch.inf)
            logits = self._logits(forest, lengths, going, ids)
            if logits is None:
                break
            numbers = uniforms(keys, written + depth, DRAFT, np.zeros(len(keys), np.int64), beams.draft_width)
            asked = (state > -torch.inf).any(-1)
            pairs, q, state = _sample_layer(
                beams,
                state,
                logits,
                ends,
                forbidden_ends(ends, banned > depth),
                torch.from_numpy(numbers).to(ends.device),
            )
            sound &= (~asked | (pairs >= 0).any(-1)).cpu().numpy()
            beam, tokens = np.divmod(pairs.clamp_min(0).cpu().numpy(), logits.shape[-1])
            there = (state > -torch.inf).cpu().numpy()
            ids = forest.add(np.take_along_axis(ids, beam, 1), tokens, there)
            found.append(BeamDrafts(pairs, q, ids))
        for row in np.flatnonzero(~sound):
            self.cache.clear(row)  # for the rows that come after
        return found, sound

    def _logits(self, forest: Forest, lengths: np.ndarray, going: np.ndarray, ids: np.ndarray):
        """float32 (R, B, V) behind nodes ids (R, B), of rows that go on; None where no row does."""
        counts = forest.counts[: len(lengths)].copy()
        level = forest.level(lengths, np.where(going, forest.read[: len(lengths)], counts), self._last)
        if level is None:
            return None
        logits = self.model.extend(self.cache, level).float()
        forest.read[: len(lengths)] = np.where(going, counts, forest.read[: len(lengths)])
        return gather_logits(over_vocabulary(logits, self.columns), level, ids, np.arange(len(lengths)))


def _sample_layer(beams: Beams, likelihoods: torch.Tensor, logits: torch.Tensor, ends: torch.Tensor,
           banned: torch.Tensor | None, numbers: torch.Tensor) -> tuple:
    """Pairs (R, n) behind beams of log P (R, B), their law, and log P of those that go on."""
    scores = log_likelihoods(likelihoods.float() if beams.deterministic else likelihoods, logits, banned)
    flat, n = scores.flatten(1), beams.draft_width
    if beams.deterministic:
        values, pairs = flat.topk(min(n, flat.shape[1]))
        pairs, q = torch.where(values > -torch.inf, pairs, NONE), None
    else:
        q, _ = beam_distribution(scores, beams.warp)
        pairs = sample_candidates(distribution_for(beams.draft_law), q, n, numbers)
    known = pairs.clamp_min(0)
    goes_on = (pairs >= 0) & ~ends[known % logits.shape[-1]]
    return pairs, q, torch.where(goes_on, flat.gather(1, known).double(), -torch.inf)


def gather_logits(logits: torch.Tensor, level: Level, ids: np.ndarray, rows: np.ndarray) -> torch.Tensor:
    """Logits (A, B, V) of nodes ids (R, B) of rows (A,), of those (T, V) that a level read; of others any."""
    places = (level.starts[:-1] - level.first)[rows, None] + ids[rows]
    return logits[torch.from_numpy(np.clip(places, 0, len(level.tokens) - 1)).to(logits.device)]


def forbidden_ends(ends: torch.Tensor, rows: np.ndarray) -> torch.Tensor | None:
    """Bool (R, V): no text may end in these rows, bool (R,). ends bool (V,)."""
    return torch.from_numpy(rows).to(ends.device)[:, None] & ends if rows.any() else None
