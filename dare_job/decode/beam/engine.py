"""The engine that writes beams: a draft forest, one forward of the target over it, layer by layer."""

import time
from dataclasses import replace

import numpy as np
import torch

from dare_job.decode.beam.descent import Descent
from dare_job.decode.beam.drafting import BeamDrafter, BeamDrafts, forbidden_ends, gather_logits
from dare_job.decode.beam.layer import LayerInput, LayerOutput, sample_layer, search_layer
from dare_job.decode.beam.rows import BeamRows, text_parents
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
    """Writes each row's most probable finished beam.

    A row's text hangs on the seed, its id, its prompt, both models and the settings, and not on what shares
    its batch. Under beam search (temperature 0) it hangs on neither the draft model nor the seed.
    """

    def __init__(self, target: Target, settings: EngineSettings, beams: Beams,
                 drafter: BeamDrafter | None = None):
        """drafter: None, or ``beams.layers`` 0: plain beam sampling, or beam search.

        Raises ModelError where the model's generation config changes scores in a way that beams do not know.
        """
        super().__init__(target, replace(settings, score="never"))
        self.beams, self._seeds = beams, RowKeys(beams.seed)
        self._drafter = drafter if beams.layers else None
        if self._drafter:
            head = target.model.get_output_embeddings()
            self._drafter.columns = target.vocabulary if head is None else head.weight.shape[0]
        self._check()
        self._ends: torch.Tensor | None = None

    def _check(self) -> None:
        rules, traits = self.rules, self.target.traits
        native = {"repetition_penalty": rules.penalty != 1, "no_repeat_ngram_size": rules.ngram}
        refused = [*rules.processors, *(name for name, there in native.items() if there)]
        if refused:
            raise ModelError(f"generation_config.{refused[0]} is set, which decode.mode = beam lacks: "
                             "remove it from the model's generation_config.json, or use another mode")
        if traits.max_columns is not None:
            raise ModelError(f"{type(self.target.model).__name__} has a causal mask of its own, under which "
                             "beams cannot share a cache; use another mode")

    def _new_rows(self) -> BeamRows:
        if self._drafter:
            self._drafter.begin(self.settings.batch_size)
        return BeamRows(self.settings.batch_size, self.beams)

    def _move_row(self, rows: BeamRows, cache: TreeCache, source: int, target: int) -> None:
        cache.copy_slot(source, target, rows.entries(source))
        if self._drafter and rows.drafted[source]:
            self._drafter.move(source, target, rows.entries(source))
        rows.move(source, target)

    def _step(self, rows: BeamRows, cache: TreeCache) -> list[Result]:
        """One forward over the beams and drafts of all rows, which stand in the first slots."""
        started = time.perf_counter()
        slots, forest = np.arange(rows.active), rows.forest
        lengths = rows.length[slots]
        first = forest.counts[slots].copy()
        there = rows.likelihoods[slots] > -np.inf
        ids = forest.add(rows.above[slots], rows.leaf[slots], there)
        keys = self._seeds.keys(rows.active_requests)
        drafts = self._drafts_of(rows, slots, keys, ids)
        drafted = time.perf_counter()
        level = forest.level(lengths, first, self.target.vocabulary - 1)
        rows.queries[slots] += np.diff(level.starts)
        logits = self.target.extend(cache, level).float()
        walk = Descent(rows, slots, keys, ids, rows.likelihoods[slots])
        for depth in range(len(drafts) + 1):
            given = drafts[depth] if depth < len(drafts) else None
            found = self._layer(rows, walk, gather_logits(logits, level, walk.ids, walk.going), given)
            walk.follow(found, given)
            if not len(walk.going):
                break
        self._commit(rows, cache, slots, walk)
        ended = time.perf_counter()
        rows.add_step_time(1e3 * (drafted - started), 1e3 * (ended - started))
        self.clock_s += ended - started
        results = self._conclude(rows, cache, slots, walk)
        return results if self.clock_s < self._next_timeout_s else results + self._timed_out(rows)

    def _drafts_of(self, rows: BeamRows, slots: np.ndarray, keys: np.ndarray,
                   ids: np.ndarray) -> list[BeamDrafts]:
        """A step's layers of drafts; its last layer is the target's own, up to the row's limit."""
        if self._drafter is None:
            return []
        written = rows.written[slots]
        room = np.minimum(rows.max_length[slots] - written - 1, self._drafter.fits(written))
        layers = np.where(rows.drafted[slots], np.clip(room, 0, self.beams.layers), 0)
        drafts, sound = self._drafter.grow(
            self.beams, rows.forest, rows.likelihoods[slots], ids, rows.length[slots], layers, keys, written,
            self._ending(self._drafter.columns), rows.min_length[slots] - written)
        rows.drafted[slots] &= sound & (self._drafter.fits(written) > 0)
        return drafts

    def _layer(
        self, rows: BeamRows, walk: Descent, logits: torch.Tensor, given: BeamDrafts | None
    ) -> LayerOutput:
        """The layer behind the beams of the walk's rows, by logits (A, B, V)."""
        slots, device = walk.slots[walk.going], logits.device
        written = rows.written[slots]
        ends = self._ending(logits.shape[-1])
        banned = forbidden_ends(ends, rows.min_length[slots] > written)
        limit = torch.from_numpy(written + 1 >= rows.max_length[slots]).to(device)
        ends = ends | limit[:, None]
        likelihoods = torch.from_numpy(walk.likelihoods[walk.going]).to(device)
        none = torch.full((len(slots), self.beams.draft_width if self._drafter else 0), NONE, device=device)
        going = torch.from_numpy(walk.going).to(device)
        drafts, q = (none, None) if given is None else (given.pairs[going], given.q)
        if self.beams.deterministic:
            found = LayerInput(likelihoods, logits, banned, ends, drafts, None, None, None)
            return search_layer(self.beams, found, len(self._eos()))
        keys, zeros = walk.keys[walk.going], np.zeros(len(slots), np.int64)
        numbers = (torch.from_numpy(uniforms(keys, written, purpose, zeros, count)).to(device)
                   for purpose, count in ((VERIFY, drafts.shape[1]), (RESIDUAL, self.beams.width)))
        q = None if q is None else q[going]
        return sample_layer(self.beams, LayerInput(likelihoods, logits, banned, ends, drafts, q, *numbers))

    def _eos(self) -> list[int]:
        return [token for token in self.rules.eos if token < self.target.vocabulary]

    def _ending(self, columns: int | None = None) -> torch.Tensor:
        """bool (V,): tokens that end a text."""
        if self._ends is None or columns not in (None, len(self._ends)):
            self._ends = torch.zeros(columns or self.target.vocabulary, dtype=torch.bool,
                                     device=self.target.device)
            self._ends[[token for token in self._eos() if token < len(self._ends)]] = True
        return self._ends

    def _commit(self, rows: BeamRows, cache: TreeCache, slots: np.ndarray, walk: Descent) -> None:
        """What goes on takes its place in the rows and in both caches."""
        if self.beams.single_cache:
            best = walk.out_likelihoods.argmax(-1)[:, None]
            others = np.arange(self.beams.width) != best
            walk.out_likelihoods[others] = -np.inf
        there = walk.out_likelihoods > -np.inf
        before = rows.length[slots] - 1
        pruned = rows.forest.prune(walk.out_above, there, rows.drafted[slots])
        self.target.commit(cache, before, pruned.paths, pruned.counts)
        if self._drafter:
            self._drafter.keep(before, pruned.paths, np.where(rows.drafted[slots], pruned.of_draft, 0))
        for slot in slots[pruned.shared > 0]:
            rows.extend(slot, pruned.text[slot, : pruned.shared[slot]])
        rows.above[slots], rows.leaf[slots] = walk.out_above, walk.out_leaf
        rows.likelihoods[slots] = walk.out_likelihoods
        rows.stepped(slots, walk.layers, len(rows.used) / len(slots))
        rows.seen[slots] += walk.seen

    def _conclude(self, rows: BeamRows, cache: TreeCache, slots: np.ndarray, walk: Descent) -> list[Result]:
        results = []
        for place in np.flatnonzero(walk.over):
            slot = slots[place]
            if walk.unsound[place]:
                cache.clear(slot)
                results.append(rows.finish(slot, "error", _NONFINITE))
            else:
                results.append(rows.conclude(slot, self._is_eos))
        return results

    def _prefill(self, rows: BeamRows, cache: TreeCache, slots: np.ndarray,
                 prefix: Prefix | None) -> list[Result]:
        """Prompts of newly admitted rows, and the first layer of each, which is the target's own."""
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
                shown = ids[reads, : lengths[reads].max()]
                rows.drafted[slots[reads]] = self._drafter.read_prompts(slots[reads], shown, lengths[reads])
        keys = self._seeds.keys_of(rows.requests[slot].id for slot in slots)
        walk = Descent(rows, slots, keys, text_parents(len(slots), 1), np.zeros((len(slots), 1)))
        walk.follow(self._layer(rows, walk, logits[:, None], None), None)
        rows.above[slots], rows.leaf[slots] = walk.out_above, walk.out_leaf
        rows.likelihoods[slots] = walk.out_likelihoods
        rows.stepped(slots, walk.layers, 0.0)
        rows.seen[slots] += walk.seen
        seconds = time.perf_counter() - started
        self.clock_s += seconds
        rows.own_ms[slots, 1] += 1e3 * seconds / len(slots)
        return self._conclude(rows, cache, slots, walk)
