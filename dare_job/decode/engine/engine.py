"""Continuous batching: schedule rows and drafts, run the target, verify, commit."""

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch

from dare_job.decode.engine import generation_config, prefill
from dare_job.decode.engine.budget import DraftBudget
from dare_job.decode.engine.chains import best_chains
from dare_job.decode.engine.grammar_drafts import constrain
from dare_job.decode.engine.grammar_masks import forbid, verify_allowed
from dare_job.decode.engine.logits_processor import TreeLogitsProcessor
from dare_job.decode.engine.prefill import ReuseEstimator
from dare_job.decode.engine.request_checks import admit
from dare_job.decode.engine.request_scheduler import RequestScheduler
from dare_job.decode.engine.rows import EOS, LENGTH, LOOP, NON_FINITE, STOP, Rows, StepPlan
from dare_job.decode.engine.stop_strings import NO_STOP, StopStrings
from dare_job.decode.model.cache import TreeCache
from dare_job.decode.model.paged import forward as paged
from dare_job.decode.model.prefix_cache import Prefix
from dare_job.decode.model.target import Target
from dare_job.decode.model.tree import Tree, build
from dare_job.decode.request import Drafter, Request, Result
from dare_job.decode.settings import EngineSettings
from dare_job.decode.verify import plugin, rules, verifier
from dare_job.decode.verify.penalty import NO_PENALTY, PenaltyContext
from dare_job.decode.verify.result import NodeVerification, VerificationResult, longest_accepted
from pools.tree import DraftBatch, empty_drafts

_RECORDING_S = 10.0  # seconds of recording graphs before the first step; others are recorded when needed
_REASONS = {EOS: "eos", STOP: "stop", LENGTH: "length", LOOP: "loop"}


class ForwardOutput(NamedTuple):
    """One forward pass of the target over draft trees.

    Attributes
    ----------
    tree : Tree
        The trees, on the device of the logits.
    logits : float (T, V), optional
        None if the rule was applied on the device.
    nodes : NodeVerification, optional
        What the rule says then, on the host.
    """

    tree: Tree
    logits: torch.Tensor | None
    nodes: NodeVerification | None = None


class Engine:
    """Generates texts with a target model, several rows at once.

    Without a drafter, or with ``settings.nodes`` 0, rows have no draft nodes. Decoding is then autoregressive
    unless requests bring a previous text. If the target verifies chains (``ChainTarget``), each row has the
    best path of its drafts. If it has no drafts (``UndraftedTarget``), the drafter is not used, the prefill
    verifies no previous text, and rows are admitted when no other row is being decoded.

    Parameters
    ----------
    target : Target
    settings : EngineSettings
    drafter : Drafter, optional
    reuse_estimator : ReuseEstimator, optional
        Statistics of previous texts, to be shared between engines of the same model.
    draft_budget : DraftBudget, optional
        Distributes the draft nodes of a step among its rows. None: each row has ``settings.nodes``,
        independent of the batch composition.
    stop : StopStrings
        Strings that end a text.
    numbers : bool (V,), optional
        The number tokens (``loops.number_tokens``): rows that loop end. None: they go on.
    verify_plugin : Verifier, optional
        Verifies in place of ``settings.rule``.

    Raises
    ------
    ModelError
        The model's generation config sets a field that the engine does not support.
    """

    rule_on_device = True  # whether a forward pass over pages may apply the rule itself

    def __init__(self, target: Target, settings: EngineSettings, drafter: Drafter | None = None,
                 reuse_estimator: ReuseEstimator | None = None, draft_budget: DraftBudget | None = None,
                 stop: StopStrings = NO_STOP, numbers: np.ndarray | None = None,
                 verify_plugin: plugin.Verifier | None = None):
        if target.drafts == "none":
            settings = replace(settings, nodes=0, score="never")
        self.target, self.settings, self._numbers = target, settings, numbers
        self._admit_below = 1 if target.drafts == "none" else settings.batch_size  # active rows
        self.reuse_estimator = reuse_estimator or ReuseEstimator()
        self.draft_budget = draft_budget if settings.nodes else None
        self.drafter = drafter if settings.nodes else None
        self.stop = stop
        self.generation_rules = generation_config.read_rules(target.generation_config,
                                                             settings.repetition_penalty)
        eos = list(self.generation_rules.eos)
        self._eos_ids = torch.tensor(eos, dtype=torch.long, device=target.device)
        self._verifier, self._verify_plugin = verifier(settings, self._eos_ids), verify_plugin
        self._is_strict = verify_plugin.lossless if verify_plugin else settings.rule == "strict"
        self._visits_one_path = self._is_strict and verify_plugin is None and target.device.type == "cpu"
        self.rule_on_device = self.rule_on_device and verify_plugin is None
        self._rule = rules.packed(settings, tuple(eos), target.device)
        self._processor = TreeLogitsProcessor(self.generation_rules, target.vocabulary, verify_plugin is None)
        self._is_eos = np.zeros(max((target.vocabulary, *(token + 1 for token in eos))), np.bool_)
        self._is_eos[eos] = True
        self._eos = [token for token in eos if token < target.vocabulary]
        self.clock_s = 0.0  # seconds of all forward passes so far, drafting included
        self._next_timeout_s = math.inf  # on that clock: no row times out earlier
        self._rows: Rows | None = None

    @torch.inference_mode()
    def run(self, requests: Iterable[Request]) -> Iterator[Result]:
        """Yield results in the order in which rows finish. A row that fails does not affect other rows."""
        rows = self._rows = self._new_rows()
        self._next_timeout_s = math.inf
        cache = self.target.acquire_cache(self.settings.batch_size)
        if self.target.paged is not None:
            cache.fixed_nodes = self.settings.nodes if self.settings.one_shape else None
        admission = partial(admit, target=self.target, rules=self.generation_rules, settings=self.settings,
                            is_eos=self._is_eos)
        scheduler = RequestScheduler(requests, admission, self.target, self.settings, self.reuse_estimator,
                                     rows, cache)
        while True:
            if rows.active < self.settings.batch_size:
                yield from self._schedule(scheduler, rows, cache)
            if not rows.active:
                break
            yield from self._step(rows, cache)
        self.target.spare_cache = cache  # not after an error: entries may be non-finite

    def active_ids(self) -> list:
        """Return the ids of the requests that are being decoded. Safe to call from another thread."""
        return [request.id for request in self._rows.requests if request is not None] if self._rows else []

    def unfinished(self) -> dict[str, float]:
        """Return ``Rows.unfinished`` of the rows being decoded. Safe to call from another thread."""
        return self._rows.unfinished() if self._rows else {}

    def _new_rows(self) -> Rows:
        return Rows(self.settings.batch_size, self.stop, self._numbers)

    def _move_row(self, rows: Rows, cache: TreeCache, source: int, target: int) -> None:
        """Move a row to another slot."""
        cache.move_slot(source, target, int(rows.length[source]))
        rows.move(source, target)

    def _step(self, rows: Rows, cache: TreeCache) -> list[Result]:
        """Decode one step of all rows, which are in the first slots: schedule, forward, verify, commit."""
        started = time.perf_counter()
        slots, plan = _first_slots(rows.active), self._plan(rows)
        drafts = self._draft(rows, plan)
        scheduled = time.perf_counter()

        tree = build(plan.roots, drafts, plan.depths)
        output = self._forward(rows, slots, cache, plan.before, tree)
        result = self._verify(rows, slots, output)
        del output  # frees the logits
        if not result.all_finite:
            result = self._verify_finite(rows, slots, cache, plan, drafts, tree, result.tree_finite)
        elif self.draft_budget:
            self.draft_budget.observe(tree, result)

        ending, ends = rows.append(slots, result, self._is_eos)
        self.target.commit(cache, plan.before, result.paths, result.counts)
        committed = time.perf_counter()
        self._record_times(rows, drafts, scheduled - started, committed - scheduled)
        finished = self._finish(rows, cache, slots, ends) if ending else []
        return finished if self.clock_s < self._next_timeout_s else finished + self._timed_out(rows, cache)

    def _plan(self, rows: Rows) -> StepPlan:
        nodes = self.settings.nodes
        nodes = min(self.draft_budget.row_nodes, nodes) if self.draft_budget else nodes
        return rows.plan(self.settings.depth, nodes, self.target.traits.max_columns)

    def _draft(self, rows: Rows, plan: StepPlan) -> DraftBatch:
        """Return the drafts that this step verifies."""
        count = rows.active
        if self.drafter is None:
            return empty_drafts(count)
        min_score = self.draft_budget.min_score(count) if self.draft_budget else 0.0
        paused = min_score is None  # forced tokens are drafted all the same
        if paused and not rows.any_grammar or not max(plan.budgets.tolist()):
            return empty_drafts(count)
        started = time.perf_counter()
        drafts = empty_drafts(count) if paused else self.drafter.draft(
            rows.active_requests, rows.tokens[:count], plan.lengths, plan.budgets, plan.depths, min_score)
        if rows.any_grammar:
            drafts = constrain(drafts, rows.parsers(_first_slots(count)), plan.budgets, plan.depths)
        if self.target.drafts == "chain":
            drafts = best_chains(drafts)
        if self.draft_budget and not paused:
            drafts = self.draft_budget.select(drafts, 1e3 * (time.perf_counter() - started))
        return drafts

    def _forward(self, rows: Rows, slots: np.ndarray, cache: TreeCache, before: np.ndarray,
                 tree: Tree) -> ForwardOutput:
        if self.rule_on_device and self.target.paged is not None and self._processor.idle(rows, slots):
            return self._verified_on_device(rows, slots, cache, before, tree)
        on_device = tree.to(self.target.device)
        return ForwardOutput(on_device, self.target.forward(cache, on_device, before))

    def _verify(self, rows: Rows, slots: np.ndarray, output: ForwardOutput) -> VerificationResult:
        if output.nodes is not None:
            return longest_accepted(output.tree, output.nodes)
        return self._verify_logits(rows, slots, output.tree, output.logits)

    def _verify_finite(self, rows: Rows, slots: np.ndarray, cache: TreeCache, plan: StepPlan,
                       drafts: DraftBatch, tree: Tree, tree_finite: np.ndarray) -> VerificationResult:
        """Verify again after some scores were non-finite; ``tree_finite`` bool (R,): the rows without any.

        A non-finite key or value affects its whole row even through masked entries (0 * NaN), so the cache
        entries of those rows' trees are cleared first.
        """
        for slot in np.flatnonzero(~tree_finite):
            cache.clear(slot, plan.before[slot])
        return self._verify_again(rows, slots, cache, plan, drafts, tree, tree_finite)

    def _verify_again(self, rows: Rows, slots: np.ndarray, cache: TreeCache, plan: StepPlan,
                      drafts: DraftBatch, tree: Tree, tree_finite: np.ndarray) -> VerificationResult:
        """Repeat the forward pass, without drafts in the rows whose scores were not all finite."""
        drafts = drafts._replace(sizes=np.where(tree_finite, drafts.sizes, np.int32(0)))
        tree = build(plan.roots, drafts, plan.depths)
        return self._verify(rows, slots, self._forward(rows, slots, cache, plan.before, tree))

    def _verified_on_device(self, rows: Rows, slots: np.ndarray, cache, before: np.ndarray,
                            tree: Tree) -> ForwardOutput:
        """Run a forward pass that applies the rule on the device to the unprocessed logits."""
        if self.settings.rule == "strict" or (rows.length[slots] >= rows.relaxed_end[slots]).all():
            values = self.target.verified(cache, tree, before, paged.argmax_tokens)
            nodes = rules.verify_strict_argmax(tree, *values)
        else:
            values = self.target.verified(cache, tree, before, self._rule,
                                          self._strict_on_host(rows, slots, tree))
            nodes = rules.unpacked(values)
        return ForwardOutput(tree, None, nodes)

    def _verify_logits(self, rows: Rows, slots: np.ndarray, tree: Tree,
                       logits: torch.Tensor) -> VerificationResult:
        """Verify the rows' trees by their logits (T, V)."""
        scores, penalty = self._process_logits(rows, slots, tree, logits)
        parsers = rows.parsers(slots) if rows.any_grammar and self._visits_one_path else ()
        if any(parsers):
            return longest_accepted(tree, verify_allowed(scores, tree, parsers, penalty))
        strict = self._strict_nodes(rows, slots, tree)
        if self._verify_plugin is None:
            return self._verifier(scores, tree, strict, penalty)
        index = _slot_index(slots)
        context = rows.tokens[index], rows.length[index], rows.prompt[index]
        return plugin.verify(self._verify_plugin, scores, tree, strict, self._eos_ids, context)

    def _process_logits(self, rows: Rows, slots: np.ndarray, tree: Tree,
                        logits: torch.Tensor) -> tuple[torch.Tensor, PenaltyContext]:
        """Return scores float32 (T, V) by the generation config, and the penalty for verification."""
        scores = logits if logits.dtype == torch.float32 else logits.float()
        if self._processor.idle(rows, slots):
            return scores, NO_PENALTY
        processors = [rows.processors[slot] for slot in slots] if self._processor.slow else None
        index = _slot_index(slots)
        scores, penalty = self._processor(scores, tree, rows.tokens[index], rows.length[index],
                                          rows.min_length[index], processors)
        if rows.any_grammar and not self._visits_one_path:  # last, as in generate; else verification does
            forbid(scores, tree, rows.parsers(slots))
        return scores, penalty

    def _strict_nodes(self, rows: Rows, slots: np.ndarray, tree: Tree) -> torch.Tensor | None:
        """Return the nodes, bool (T,), past the length limit of relaxed verification; None if there are none.

        The limit applies to positions in the text, so the text does not depend on how steps divide it.
        """
        strict = self._strict_on_host(rows, slots, tree)
        return None if strict is None else torch.from_numpy(strict).to(self.target.device)

    def _strict_on_host(self, rows: Rows, slots: np.ndarray, tree: Tree) -> np.ndarray | None:
        if self._is_strict or not tree.depth or not rows.any_relaxed_limit:
            return None
        index = _slot_index(slots)
        past_limit = rows.length[index] - rows.relaxed_end[index]
        if past_limit.max() + tree.depth <= 0:
            return None
        past_limit = np.repeat(past_limit, np.diff(tree.starts))
        return past_limit + tree.host[2] > 0

    def _record_times(self, rows: Rows, drafts: DraftBatch, schedule_s: float, forward_s: float) -> None:
        step_s, count, nodes = schedule_s + forward_s, rows.active, sum(drafts.sizes.tolist())
        rows.add_step_time(1e3 * schedule_s, 1e3 * step_s)
        self.reuse_estimator.record_step(step_s, count, nodes)
        self.clock_s += step_s
        if self.draft_budget:
            self.draft_budget.record_step(count, nodes, 1e3 * forward_s)

    def _finish(self, rows: Rows, cache: TreeCache, slots: np.ndarray, ends: np.ndarray) -> list[Result]:
        """Free the slots of rows that ended; ``ends`` (R,) as from ``Rows.append``."""
        results = []
        for place in ends.nonzero()[0].tolist():
            slot, reason = slots[place].item(), ends[place]
            if reason == NON_FINITE:
                cache.clear(slot)  # non-finite entries would affect later rows of the slot
            cache.release(slot)
            if reason == NON_FINITE:
                results.append(rows.finish(slot, "error", rows.non_finite_reason(slot)))
                continue
            if len(rows.previous[slot]):
                self.reuse_estimator.record_row(*rows.matched_previous(slot))
            results.append(rows.finish(slot, _REASONS[reason]))
        return results

    def _timed_out(self, rows: Rows, cache: TreeCache) -> list[Result]:
        """Free the slots of rows that exceeded ``row_timeout_s``."""
        limit, results = self.settings.row_timeout_s, []
        elapsed = self.clock_s - rows.admitted_s
        for slot in np.flatnonzero(rows.used & (elapsed >= limit)):
            tokens = int(rows.length[slot] - rows.prompt[slot])
            cache.release(slot)
            results.append(rows.finish(slot, "timeout", (
                f"timed out after {elapsed[slot]:.1f} s with {tokens} tokens generated "
                f"(decode.row_timeout_s = {limit:g})")))
        self._next_timeout_s = rows.admitted_s[rows.used].min(initial=math.inf) + limit
        return results

    def _schedule(self, scheduler: RequestScheduler, rows: Rows, cache: TreeCache) -> Iterator[Result]:
        """Fill free slots with waiting requests. If none are waiting, move rows to close the gaps."""
        while rows.active < self._admit_below and not scheduler.waits():
            forwards = scheduler.schedule()
            yield from scheduler.failed()
            if not forwards:
                break
            if self.target.paged is not None:  # the pages are there now
                self.target.paged.prepare(cache, self.settings.nodes, self._epilogue(), _RECORDING_S)
            for slots, prefix in forwards:
                yield from self._prefill(rows, cache, slots, prefix)
        for gap in rows.free():
            last = np.flatnonzero(rows.used)
            if not len(last) or last[-1] < gap:
                return
            self._move_row(rows, cache, last[-1], gap)

    def _epilogue(self) -> paged.Epilogue:
        """Return what most steps compute of the logits on the device."""
        if self._processor.always or not self.rule_on_device:
            return paged.whole_logits
        return paged.argmax_tokens if self.settings.rule == "strict" else self._rule

    def _prefill(self, rows: Rows, cache: TreeCache, slots: np.ndarray,
                 prefix: Prefix | None) -> list[Result]:
        """Read the prompts of newly admitted rows, verify their previous texts, and commit both.

        Accepted tokens are already in place in the cache; rejected ones stay masked until overwritten.
        Previous text with non-finite keys or values is left out in a second forward pass.
        """
        started = time.perf_counter()
        if self.settings.row_timeout_s is not None:
            rows.admitted_s[slots] = self.clock_s
            self._next_timeout_s = min(self._next_timeout_s, self.clock_s + self.settings.row_timeout_s)
        result, cost = self._verify_prefill(rows, cache, slots, prefix)
        if not result.all_finite:
            for slot in slots[~result.tree_finite]:
                cache.clear(slot)
                rows.submitted[slot] = 0
            result, cost = self._verify_prefill(rows, cache, slots, prefix)
        self.target.commit_prefill(cache, result.counts)
        ending, ends = rows.append_prefilled(slots, result, self._is_eos)
        seconds = time.perf_counter() - started
        self.reuse_estimator.record_prefill(seconds, cost)
        self.clock_s += seconds
        rows.add_prompt_time(slots, seconds)
        return self._finish(rows, cache, slots, ends) if ending else []

    def _verify_prefill(self, rows: Rows, cache: TreeCache, slots: np.ndarray,
                        prefix: Prefix | None) -> tuple[VerificationResult, float]:
        """Run one forward pass over prompts and previous texts; return its result and its cost in tokens."""
        lengths, submitted = rows.length[slots], rows.submitted[slots]
        previous = [rows.previous[slot][:n] for slot, n in zip(slots, submitted, strict=True)]
        chains = prefill.chain_drafts(previous)
        ids = prefill.padded_ids(rows.tokens[slots], lengths, chains)
        logits = self.target.prefill(cache, slots, ids, lengths, submitted, prefix)
        tree = build(rows.tokens[slots, lengths - 1], chains, submitted)
        result = self._verify_logits(rows, slots, tree.to(self.target.device), logits)
        cost = ids.size if self.target.paged is None else int((lengths + submitted).sum())
        cost += (self.target.traits.logit_cost - 1) * int(submitted.sum())
        return result, cost - (len(slots) * len(prefix) if prefix else 0)


@lru_cache(maxsize=256)
def _first_slots(count: int) -> np.ndarray:
    """Return the first ``count`` slots, int64; read only."""
    return np.arange(count)


def _slot_index(slots: np.ndarray) -> np.ndarray | slice:
    """Return an index for these slots: a slice, which avoids a copy, if they are the first ones."""
    return slice(len(slots)) if slots is _first_slots(len(slots)) else slots
