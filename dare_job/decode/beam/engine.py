"""The beam engine: per step a draft forest and one forward pass of the target over it, verified layer by
layer.
"""

import time
from dataclasses import replace

import numpy as np
import torch

from dare_job.decode.beam.descent import Descent
from dare_job.decode.beam.drafting import BeamDrafter, BeamDrafts, forbidden_ends, gather_logits
from dare_job.decode.beam.forest import TEXT
from dare_job.decode.beam.layer import LayerInput, LayerOutput, sample_layer, search_layer
from dare_job.decode.beam.rows import BeamRows
from dare_job.decode.engine import prefill
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.cache import TreeCache
from dare_job.decode.model.prefix_cache import Prefix
from dare_job.decode.model.target import Target
from dare_job.decode.request import Result
from dare_job.decode.sampling.distributions import NONE
from dare_job.decode.sampling.random_streams import RESIDUAL, VERIFY, RowKeys, uniforms
from dare_job.decode.settings import Beams, EngineSettings
from dare_job.errors import ModelError

_NONFINITE = "the model's logits are not finite"


class BeamEngine(Engine):
    """Generates each row's most probable finished beam.

    A row's text depends on the seed, its id, its prompt, both models and the settings, not on the batch.
    Under beam search (temperature 0) it depends neither on the draft model nor on the seed.
    """

    rule_on_device = False  # it needs the logits

    def __init__(self, target: Target, settings: EngineSettings, beams: Beams,
                 drafter: BeamDrafter | None = None):
        """Set up the engine; without a drafter, or with ``beams.layers`` 0, it is beam sampling or beam
        search.

        Raises
        ------
        ModelError
            The model's generation config changes scores in a way that beams do not support, or the model
            cannot run the trees of beams.
        """
        if target.drafts != "tree":
            raise ModelError(f"decode.mode = beam does not support {type(target.model).__name__}: "
                             f"{target.reason}; use another mode or another model")
        super().__init__(target, replace(settings, score="never"))
        self.beams, self._row_keys = beams, RowKeys(beams.seed)
        self._drafter = drafter if beams.layers else None
        if self._drafter:
            self._drafter.columns = target.logit_columns
        self._check()
        self._ends = torch.empty(0, dtype=torch.bool)

    def _check(self) -> None:
        generation, traits = self.generation_rules, self.target.traits
        native = {"repetition_penalty": generation.penalty != 1, "no_repeat_ngram_size": generation.ngram}
        refused = [*generation.processors, *(name for name, used in native.items() if used)]
        if refused:
            raise ModelError(f"decode.mode = beam does not support generation_config.{refused[0]}: "
                             "remove it from the model's generation_config.json, or use another mode")
        if traits.max_columns is not None:
            raise ModelError(f"{type(self.target.model).__name__} has a causal mask or an index of its own, "
                             "so its beams cannot share a cache; use another decode.mode")

    def _new_rows(self) -> BeamRows:
        if self._drafter:
            self._drafter.begin(self.settings.batch_size)
        return BeamRows(self.settings.batch_size, self.beams)

    def _move_row(self, rows: BeamRows, cache: TreeCache, source: int, target: int) -> None:
        cache.move_slot(source, target, rows.entries(source))
        if self._drafter and rows.drafted[source]:
            self._drafter.cache.copy_slots([source], [target], rows.entries(source))
        rows.move(source, target)

    def _step(self, rows: BeamRows, cache: TreeCache) -> list[Result]:
        """Run one forward pass over the beams and drafts of all rows, which occupy the first slots."""
        started = time.perf_counter()
        slots, forest = np.arange(rows.active), rows.forest
        lengths = rows.length[slots]
        first = forest.counts[slots].copy()
        present = rows.likelihoods[slots] > -np.inf
        ids = forest.add(rows.parents[slots], rows.last_tokens[slots], present)
        keys = self._row_keys.keys(rows.active_requests)
        drafts = self._drafts_of(rows, slots, keys, ids)
        drafted = time.perf_counter()
        level = forest.level(lengths, first, self.target.vocabulary - 1)
        rows.queries[slots] += np.diff(level.starts)
        logits = self.target.extend(cache, level).float()
        descent = Descent(rows, slots, keys, ids, rows.likelihoods[slots])
        for depth in range(len(drafts) + 1):
            layer_drafts = drafts[depth] if depth < len(drafts) else None
            layer_logits = gather_logits(logits, level, descent.ids, descent.active)
            output = self._layer(rows, descent, layer_logits, layer_drafts)
            descent.follow(output, layer_drafts)
            if not len(descent.active):
                break
        self._commit(rows, cache, slots, descent)
        ended = time.perf_counter()
        rows.add_step_time(1e3 * (drafted - started), 1e3 * (ended - started))
        self.clock_s += ended - started
        results = self._conclude(rows, cache, slots, descent)
        return results if self.clock_s < self._next_timeout_s else results + self._timed_out(rows, cache)

    def _drafts_of(self, rows: BeamRows, slots: np.ndarray, keys: np.ndarray,
                   ids: np.ndarray) -> list[BeamDrafts]:
        """Draft the layers of a step. The step's last layer is the target's own, up to the row's length
        limit.
        """
        if self._drafter is None:
            return []
        written = rows.written[slots]
        capacity = np.minimum(rows.max_length[slots] - written - 1, self._drafter.fits(written))
        layers = np.where(rows.drafted[slots], np.clip(capacity, 0, self.beams.layers), 0)
        drafts, finite = self._drafter.grow(
            self.beams, rows.forest, rows.likelihoods[slots], ids, rows.length[slots], layers, keys, written,
            self._ending(self._drafter.columns), rows.min_length[slots] - written)
        rows.drafted[slots] &= finite & (self._drafter.fits(written) > 0)
        return drafts

    def _layer(self, rows: BeamRows, descent: Descent, logits: torch.Tensor,
               layer_drafts: BeamDrafts | None) -> LayerOutput:
        """Verify the layer after the beams of the active rows, from logits (A, B, V)."""
        slots, device = descent.slots[descent.active], logits.device
        written = rows.written[slots]
        ends = self._ending(logits.shape[-1])
        banned = forbidden_ends(ends, rows.min_length[slots] > written)
        at_limit = torch.from_numpy(written + 1 >= rows.max_length[slots]).to(device)
        ends = ends | at_limit[:, None]
        likelihoods = torch.from_numpy(descent.likelihoods[descent.active]).to(device)
        none = torch.full((len(slots), self.beams.draft_width if self._drafter else 0), NONE, device=device)
        active = torch.from_numpy(descent.active).to(device)
        drafts, q = (none, None) if layer_drafts is None else (layer_drafts.pairs[active], layer_drafts.q)
        if self.beams.warp.greedy:
            layer_input = LayerInput(likelihoods, logits, banned, ends, drafts, None, None, None)
            return search_layer(self.beams, layer_input, len(self._eos))
        keys, zeros = descent.keys[descent.active], np.zeros(len(slots), np.int64)
        row_uniforms = (torch.from_numpy(uniforms(keys, written, purpose, zeros, count)).to(device)
                        for purpose, count in ((VERIFY, drafts.shape[1]), (RESIDUAL, self.beams.width)))
        q = None if q is None else q[active]
        layer_input = LayerInput(likelihoods, logits, banned, ends, drafts, q, *row_uniforms)
        return sample_layer(self.beams, layer_input)

    def _ending(self, columns: int) -> torch.Tensor:
        """Return the tokens that end a text, bool (V,)."""
        if len(self._ends) != columns:
            self._ends = torch.zeros(columns, dtype=torch.bool, device=self.target.device)
            self._ends[[token for token in self._eos if token < columns]] = True
        return self._ends

    def _commit(self, rows: BeamRows, cache: TreeCache, slots: np.ndarray, descent: Descent) -> None:
        """Store the beams that continue in the rows and in both caches."""
        if self.beams.single_cache:
            best = descent.out_likelihoods.argmax(-1)[:, None]
            others = np.arange(self.beams.width) != best
            descent.out_likelihoods[others] = -np.inf
        present = descent.out_likelihoods > -np.inf
        before = rows.length[slots] - 1
        pruned = rows.forest.prune(descent.out_parents, present, rows.drafted[slots])
        self.target.commit(cache, before, pruned.paths, pruned.counts)
        if self._drafter:
            counts = np.where(rows.drafted[slots], pruned.of_draft, 0)
            self._drafter.model.commit(self._drafter.cache, before, pruned.paths, counts)
        for slot in slots[pruned.shared > 0]:
            rows.extend(slot, pruned.text[slot, : pruned.shared[slot]])
        rows.parents[slots], rows.last_tokens[slots] = descent.out_parents, descent.out_tokens
        rows.likelihoods[slots] = descent.out_likelihoods
        rows.stepped(slots, descent.layers, len(rows.used) / len(slots))
        rows.statistics[slots] += descent.statistics

    def _conclude(self, rows: BeamRows, cache: TreeCache, slots: np.ndarray,
                  descent: Descent) -> list[Result]:
        results = []
        for place in np.flatnonzero(descent.over):
            slot, failed = slots[place], descent.nonfinite[place]
            if failed:
                cache.clear(slot)
            cache.release(slot)
            results.append(rows.finish(slot, "error", _NONFINITE) if failed
                           else rows.conclude(slot, self._is_eos))
        return results

    def _prefill(self, rows: BeamRows, cache: TreeCache, slots: np.ndarray,
                 prefix: Prefix | None) -> list[Result]:
        """Read the prompts of newly admitted rows and sample the first layer of each, which the target does
        alone.
        """
        started = time.perf_counter()
        if self.settings.row_timeout_s is not None:
            rows.admitted_s[slots] = self.clock_s
            self._next_timeout_s = min(self._next_timeout_s, self.clock_s + self.settings.row_timeout_s)
        lengths = rows.length[slots]
        no_drafts = prefill.chain_drafts([rows.tokens[0, :0]] * len(slots))
        ids = prefill.padded_ids(rows.tokens[slots], lengths, no_drafts)
        logits = self.target.prefill(cache, slots, ids, lengths, None, prefix).float()
        if self._drafter:
            reads = np.flatnonzero(self._drafter.fits(lengths) > 1)
            if len(reads):
                prompt_ids = ids[reads, : lengths[reads].max()]
                rows.drafted[slots[reads]] = self._drafter.read_prompts(slots[reads], prompt_ids,
                                                                        lengths[reads])
        keys = self._row_keys.keys_of(rows.requests[slot].id for slot in slots)
        shape = len(slots), 1
        descent = Descent(rows, slots, keys, np.full(shape, TEXT), np.zeros(shape))
        descent.follow(self._layer(rows, descent, logits[:, None], None), None)
        rows.parents[slots], rows.last_tokens[slots] = descent.out_parents, descent.out_tokens
        rows.likelihoods[slots] = descent.out_likelihoods
        rows.stepped(slots, descent.layers, 0.0)
        rows.statistics[slots] += descent.statistics
        seconds = time.perf_counter() - started
        self.clock_s += seconds
        rows.add_prompt_time(slots, seconds)
        return self._conclude(rows, cache, slots, descent)
