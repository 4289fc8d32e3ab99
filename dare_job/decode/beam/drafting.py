"""Draft forests: a draft model's own beam sampling, layer by layer after the rows' beams."""

from typing import NamedTuple

import numpy as np
import torch

from dare_job.decode.beam.forest import Forest
from dare_job.decode.beam.verification import beam_distribution, log_likelihoods
from dare_job.decode.draft.model import over_vocabulary
from dare_job.decode.model.masks import Level
from dare_job.decode.model.target import Target
from dare_job.decode.sampling.distributions import NONE, distribution_for, sample_candidates
from dare_job.decode.sampling.random_streams import DRAFT, uniforms
from dare_job.decode.settings import Beams


class BeamDrafts(NamedTuple):
    """One drafted layer of R rows.

    Attributes
    ----------
    pairs : int64 (R, n)
        Beam * V + token, NONE where there is none.
    q : float64 (R, B * V)
        Distribution that the pairs were sampled from; None for the deterministic top n.
    ids : int64 (R, n)
        Forest nodes of the pairs that may continue.
    """

    pairs: torch.Tensor
    q: torch.Tensor | None
    ids: np.ndarray


class BeamDrafter:
    """A draft model with its cache, whose contents the engine's forest tracks (``Forest.read``)."""

    def __init__(self, model: Target):
        self.model = model
        self.cache = model.new_cache(0)
        self.columns = 0  # of the target's vocabulary
        self._max_token = model.vocabulary - 1

    def begin(self, slots: int) -> None:
        """Start a run with an empty cache."""
        self.cache = self.model.new_cache(slots)

    def fits(self, lengths: np.ndarray) -> np.ndarray:
        """Return how many layers int64 (R,) the model's positions allow after texts of these lengths."""
        limit = self.model.traits.context
        return np.full(len(lengths), 2**31) if limit is None else np.maximum(limit - lengths + 1, 0)

    def read_prompts(self, slots: np.ndarray, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Read prompts int64 (F, P), padded on the right, into slots (F,); return whether logits are finite,
        bool (F,).
        """
        logits = self.model.prefill(self.cache, slots, np.minimum(ids, self._max_token), lengths)
        finite = logits.amax(-1).isfinite().cpu().numpy()
        for slot in slots[~finite]:
            self.cache.clear(slot)
        return finite

    def grow(self, beams: Beams, forest: Forest, likelihoods: np.ndarray, ids: np.ndarray,
             lengths: np.ndarray, layers: np.ndarray, keys: np.ndarray, written: np.ndarray,
             ends: torch.Tensor, banned: np.ndarray) -> tuple[list[BeamDrafts], np.ndarray]:
        """Draft layers after the beams (R, B), and add their nodes to the forest.

        Parameters
        ----------
        likelihoods : float64 (R, B)
            Log P of the beams, -inf where there is none.
        ids : int64 (R, B)
            Forest nodes of the beams.
        lengths : (R,)
            Text lengths.
        layers : (R,)
            Number of layers to draft.
        keys, written : (R,)
            Random-stream keys and positions.
        ends : bool (V,)
            Tokens that end a text.
        banned : (R,)
            Number of layers in which no text may end.

        Returns
        -------
        drafts
            The layers.
        finite : bool (R,)
            False if the draft model's logits are non-finite, so that it cannot draft for the row.
        """
        layers_drafted, likelihoods_now = [], torch.from_numpy(likelihoods).to(ends.device)
        finite = np.ones(len(lengths), np.bool_)
        for depth in range(int(layers.max(initial=0))):
            active = layers > depth
            on_device = torch.from_numpy(active).to(ends.device)
            likelihoods_now = torch.where(on_device[:, None], likelihoods_now, -torch.inf)
            logits = self._logits(forest, lengths, active, ids)
            if logits is None:
                break
            zeros = np.zeros(len(keys), np.int64)
            row_uniforms = uniforms(keys, written + depth, DRAFT, zeros, beams.draft_width)
            has_beams = (likelihoods_now > -torch.inf).any(-1)
            pairs, q, likelihoods_now = _sample_layer(
                beams, likelihoods_now, logits, ends, forbidden_ends(ends, banned > depth),
                torch.from_numpy(row_uniforms).to(ends.device))
            finite &= (~has_beams | (pairs >= 0).any(-1)).cpu().numpy()
            beam, tokens = np.divmod(pairs.clamp_min(0).cpu().numpy(), logits.shape[-1])
            continues = (likelihoods_now > -torch.inf).cpu().numpy()
            ids = forest.add(np.take_along_axis(ids, beam, 1), tokens, continues)
            layers_drafted.append(BeamDrafts(pairs, q, ids))
        for row in np.flatnonzero(~finite):
            self.cache.clear(row)  # NaN in the cache would affect later rows in this slot
        return layers_drafted, finite

    def _logits(self, forest: Forest, lengths: np.ndarray, active: np.ndarray, ids: np.ndarray):
        """Return logits float32 (R, B, V) after nodes ids (R, B) of the active rows, or None if there are
        none.
        """
        counts = forest.counts[: len(lengths)].copy()
        level = forest.level(lengths, np.where(active, forest.read[: len(lengths)], counts), self._max_token)
        if level is None:
            return None
        logits = self.model.extend(self.cache, level).float()
        forest.read[: len(lengths)] = np.where(active, counts, forest.read[: len(lengths)])
        return gather_logits(over_vocabulary(logits, self.columns), level, ids, np.arange(len(lengths)))


def _sample_layer(beams: Beams, likelihoods: torch.Tensor, logits: torch.Tensor, ends: torch.Tensor,
                  banned: torch.Tensor | None, row_uniforms: torch.Tensor) -> tuple:
    """Return pairs (R, n) after beams of log P (R, B), their distribution, and log P of those that may
    continue.
    """
    scores = log_likelihoods(likelihoods.float() if beams.warp.greedy else likelihoods, logits, banned)
    flat, n = scores.flatten(1), beams.draft_width
    if beams.warp.greedy:
        values, pairs = flat.topk(min(n, flat.shape[1]))
        pairs, q = torch.where(values > -torch.inf, pairs, NONE), None
    else:
        q, _ = beam_distribution(scores, beams.warp)
        pairs = sample_candidates(distribution_for(beams.draft_distribution), q, n, row_uniforms)
    clamped = pairs.clamp_min(0)
    continues = (pairs >= 0) & ~ends[clamped % logits.shape[-1]]
    return pairs, q, torch.where(continues, flat.gather(1, clamped).double(), -torch.inf)


def gather_logits(logits: torch.Tensor, level: Level, ids: np.ndarray, rows: np.ndarray) -> torch.Tensor:
    """Return logits (A, B, V) of nodes ids (R, B) of rows (A,), from the logits (T, V) of a level.

    Entries of nodes that the level did not read are arbitrary.
    """
    places = (level.starts[:-1] - level.first)[rows, None] + ids[rows]
    return logits[torch.from_numpy(np.clip(places, 0, len(level.tokens) - 1)).to(logits.device)]


def forbidden_ends(ends: torch.Tensor, rows: np.ndarray) -> torch.Tensor | None:
    """Return bool (R, V), the end tokens that are forbidden in these rows, bool (R,); None if there are none.
    """
    return torch.from_numpy(rows).to(ends.device)[:, None] & ends if rows.any() else None
