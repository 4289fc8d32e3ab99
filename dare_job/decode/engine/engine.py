"""Continuous batching: schedule, draft, one forward of the target, verify, commit, emit."""

import math
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
import torch

from dare_job.decode.engine import generation_config, prefill
from dare_job.decode.engine.admission import Admission, admit
from dare_job.decode.engine.draft_budget import DraftBudget
from dare_job.decode.engine.logits_processor import TreeLogitsProcessor
from dare_job.decode.engine.prefill import ReuseEstimator
from dare_job.decode.engine.request_scheduler import RequestScheduler
from dare_job.decode.engine.rows import EOS, NON_FINITE, Rows, StepPlan
from dare_job.decode.model.cache import TreeCache
from dare_job.decode.model.cuda_graphs.inputs import round_up_columns
from dare_job.decode.model.prefix_cache import Prefix
from dare_job.decode.model.target import Target
from dare_job.decode.model.tree import Tree, build
from dare_job.decode.request import Drafter, Request, Result
from dare_job.decode.settings import EngineSettings
from dare_job.decode.verify import rules, verifier
from dare_job.decode.verify.penalty import NO_PENALTY, PenaltyContext
from dare_job.decode.verify.result import VerificationResult, longest_accepted
from pools.tree import DraftBatch, empty


class Engine:
    """Writes texts with a target model, several at once.

    Without a drafter, or with ``settings.nodes`` 0, it drafts nothing, and decodes plainly where requests
    bring no old text either.
    """

    def __init__(self, target: Target, settings: EngineSettings, drafter: Drafter | None = None,
                 reuse_estimator: ReuseEstimator | None = None, draft_budget: DraftBudget | None = None):
        """scoring: what was seen of old text so far, where engines share it.

        draft_budget: gives a step's draft nodes to the rows where they pay; None: every row has
        ``settings.nodes``, whatever its company.

        Raises ModelError when the model's generation config asks for what cannot be honoured.
        """
        self.target, self.settings = target, settings
        self.reuse_estimator = reuse_estimator or ReuseEstimator()
        self.draft_budget = draft_budget if settings.nodes else None
        self.drafter = drafter if settings.nodes else None
        self.rules = generation_config.read_rules(target.generation_config)
        eos = torch.tensor(self.rules.eos, dtype=torch.long, device=target.device)
        self._verify = verifier(settings, eos)
        self._scorer = TreeLogitsProcessor(self.rules, target.vocabulary)
        self._is_eos = np.zeros(max((target.vocabulary, *(e + 1 for e in self.rules.eos))), np.bool_)
        self._is_eos[list(self.rules.eos)] = True
        self.clock_s = 0.0  # all forwards so far, drafting included
        self._due_s = math.inf  # on that clock: no row times out before
        self._rows: Rows | None = None

    @torch.inference_mode()
    def run(self, requests: Iterable[Request]) -> Iterator[Result]:
        """Results in the order in which rows end. A row that cannot be written costs no other row."""
        rows = self._rows = self._new_rows()
        self._due_s = math.inf
        cache = self.target.acquire_cache(self.settings.batch_size)
        scheduler = RequestScheduler(requests, self._admission, self.target, self.settings,
                                     self.reuse_estimator, rows, cache)
        while True:
            if rows.active < self.settings.batch_size:
                yield from self._schedule(scheduler, rows, cache)
            if not rows.active:
                break
            yield from self._step(rows, cache)
        self.target.spare_cache = cache  # not after an error: what stands in it may be no numbers

    def active_ids(self) -> list:
        """Ids of the requests that are decoded right now; may be asked from another thread."""
        return [request.id for request in self._rows.requests if request is not None] if self._rows else []

    def _new_rows(self) -> Rows:
        return Rows(self.settings.batch_size)

    def _move_row(self, rows: Rows, cache: TreeCache, source: int, target: int) -> None:
        """Give a row another slot."""
        cache.copy_slot(source, target, int(rows.length[source]))
        rows.move(source, target)

    def _admission(self, request: Request) -> Admission:
        return admit(request, self.target, self.rules, self.settings, self._is_eos)

    def _step(self, rows: Rows, cache: TreeCache) -> list[Result]:
        """One forward over the trees of all rows, which stand in the first slots."""
        started = time.perf_counter()
        slots = _first_slots(rows.active)
        nodes = self.settings.nodes
        if self.draft_budget:
            nodes = min(self.draft_budget.row_nodes, nodes)
        plan = rows.plan(self.settings.depth, nodes, self.target.traits.max_columns)
        drafts = self._draft(rows, plan)
        drafted = time.perf_counter()
        verdict = self._verified(rows, slots, cache, plan, drafts)
        ending, ends = rows.append(slots, verdict, self._is_eos)
        self.target.commit(cache, plan.before, verdict.paths, verdict.counts)
        ended = time.perf_counter()
        rows.add_step_time(1e3 * (drafted - started), 1e3 * (ended - started))
        self.reuse_estimator.record_step(ended - started, len(slots))
        self.clock_s += ended - started
        if self.draft_budget:
            self.draft_budget.record_step(len(slots), sum(drafts.sizes.tolist()), 1e3 * (ended - drafted))
        results = self._finish(rows, cache, slots, ends) if ending else []
        return results if self.clock_s < self._due_s else results + self._timed_out(rows)

    def _draft(self, rows: Rows, plan: StepPlan) -> DraftBatch:
        """The drafts that this step verifies."""
        count = rows.active
        if self.drafter is None:
            return empty(count)
        least = self.draft_budget.min_score(count) if self.draft_budget else 0.0
        if least is None or not max(plan.budgets.tolist()):
            return empty(count)
        started = time.perf_counter()
        drafts = self.drafter.draft(rows.active_requests, rows.tokens[:count], plan.lengths, plan.budgets,
                                    plan.depths, least)
        if self.draft_budget:
            drafts = self.draft_budget.select(drafts, 1e3 * (time.perf_counter() - started))
        return drafts

    def _verified(self, rows: Rows, slots: np.ndarray, cache: TreeCache, plan: StepPlan,
                  drafts: DraftBatch) -> VerificationResult:
        """One forward over the drafts' trees, and a second one where some scores were no numbers.

        A node's key or value that is no number reaches its whole row through masked entries (0 * nan).
        """
        tree = build(plan.roots, drafts, plan.depths)
        verdict = self._forward(rows, slots, cache, plan.before, tree)
        if verdict.all_finite:
            if self.draft_budget:
                self.draft_budget.observe(tree, verdict)
            return verdict
        for slot in np.flatnonzero(~verdict.tree_finite):
            cache.clear(slot, plan.before[slot])
        return self._verify_finite(rows, slots, cache, plan, drafts, tree, verdict.tree_finite)

    def _verify_finite(self, rows: Rows, slots: np.ndarray, cache: TreeCache, plan: StepPlan,
                        drafts: DraftBatch, tree: Tree, sound: np.ndarray) -> VerificationResult:
        """A forward that shows which rows fail by themselves: it does without the drafts of those that are
        not ``sound``, bool (R,), of whose ``tree`` nothing stands in the cache any more.
        """
        drafts = drafts._replace(sizes=np.where(sound, drafts.sizes, np.int32(0)))
        return self._forward(rows, slots, cache, plan.before, build(plan.roots, drafts, plan.depths))

    def _forward(self, rows: Rows, slots: np.ndarray, cache: TreeCache, before: np.ndarray,
                 tree: Tree) -> VerificationResult:
        if self.target.static is not None and self._needs_argmax_only(rows, slots):
            first = self.target.argmax_tokens(cache, tree, before)
            if first is not None:
                return longest_accepted(tree, rules.verify_strict_argmax(tree, *first))
        on_device = tree.to(self.target.device)
        return self._verify_logits(rows, slots, on_device, self.target.forward(cache, on_device, before))

    def _needs_argmax_only(self, rows: Rows, slots: np.ndarray) -> bool:
        """Whether the first choices of the bare logits are all that these rows' verdicts hang on."""
        by_rule = self.settings.rule == "strict" or (rows.length[slots] >= rows.relaxed_end[slots]).all()
        return by_rule and self._scorer.idle(rows, slots)

    def _verify_logits(self, rows: Rows, slots: np.ndarray, tree: Tree,
                       logits: torch.Tensor) -> VerificationResult:
        """The branch that each row goes on with, by logits (T, V) of the trees."""
        scores, seen = self._process_logits(rows, slots, tree, logits)
        return self._verify(scores, tree, self._strict_nodes(rows, slots, tree), seen)

    def _process_logits(self, rows: Rows, slots: np.ndarray, tree: Tree,
                logits: torch.Tensor) -> tuple[torch.Tensor, PenaltyContext]:
        """float32 (T, V) by the generation config, and what verification has yet to do to them."""
        scores = logits if logits.dtype == torch.float32 else logits.float()
        if self._scorer.idle(rows, slots):
            return scores, NO_PENALTY
        processors = [rows.processors[slot] for slot in slots] if self._scorer.slow else None
        where = _slot_index(slots)
        return self._scorer(scores, tree, rows.tokens[where], rows.length[where], rows.min_length[where],
                            processors)

    def _strict_nodes(self, rows: Rows, slots: np.ndarray, tree: Tree) -> torch.Tensor | None:
        """bool (T,): nodes whose token stands behind its row's guard, by its place in the text whatever the
        step; None: no node.
        """
        if self.settings.rule == "strict" or not tree.depth or not rows.any_relaxed_limit:
            return None
        where = _slot_index(slots)
        behind = rows.length[where] - rows.relaxed_end[where]
        if behind.max() + tree.depth <= 0:
            return None
        behind = np.repeat(behind, np.diff(tree.starts))
        return torch.from_numpy(behind + tree.host[2] > 0).to(self.target.device)

    def _finish(self, rows: Rows, cache: TreeCache, slots: np.ndarray, ends: np.ndarray) -> list[Result]:
        """Take the rows that ended out of their slots; ends (R,) as ``Rows.write`` tells them."""
        results = []
        for place in ends.nonzero()[0].tolist():
            slot, why = slots[place].item(), ends[place]
            if why == NON_FINITE:
                cache.clear(slot)  # for the rows that come after
                results.append(rows.finish(slot, "error", "the model's logits are not finite"))
                continue
            if len(rows.previous[slot]):
                self.reuse_estimator.record_row(*rows.matched_previous(slot))
            results.append(rows.finish(slot, "eos" if why == EOS else "length"))
        return results

    def _timed_out(self, rows: Rows) -> list[Result]:
        """Take rows out of their slots whose forwards took too long."""
        limit, results = self.settings.row_timeout_s, []
        taken = self.clock_s - rows.admitted_s
        for slot in np.flatnonzero(rows.used & (taken >= limit)):
            tokens = int(rows.length[slot] - rows.prompt[slot])
            results.append(rows.finish(slot, "timeout", f"timed out after {taken[slot]:.1f} s with {tokens} "
                                       f"tokens written (decode.row_timeout_s = {limit:g})"))
        self._due_s = rows.admitted_s[rows.used].min(initial=math.inf) + limit
        return results

    def _schedule(self, scheduler: RequestScheduler, rows: Rows, cache: TreeCache) -> Iterator[Result]:
        """Give free slots to waiting requests; where none wait, close the gaps between rows."""
        while len(rows.free()):
            forwards = scheduler.schedule()
            yield from scheduler.failed()
            if not forwards:
                break
            if self.target.static is not None:  # growing later would cost the recorded graphs
                cache.reserve(round_up_columns(int(rows.max_length[rows.used].max()) + self.settings.nodes))
            for slots, prefix in forwards:
                yield from self._prefill(rows, cache, slots, prefix)
        for gap in rows.free():
            last = np.flatnonzero(rows.used)
            if not len(last) or last[-1] < gap:
                return
            self._move_row(rows, cache, last[-1], gap)

    def _prefill(self, rows: Rows, cache: TreeCache, slots: np.ndarray,
                 prefix: Prefix | None) -> list[Result]:
        """Prompts of newly admitted rows with the old text behind them, and what they write.

        What is accepted stands in its place in the cache; the rest is masked until it is written over. Old
        text whose keys or values are no numbers is left out in a second forward, as in ``_verified``.
        """
        started = time.perf_counter()
        if self.settings.row_timeout_s is not None:
            rows.admitted_s[slots] = self.clock_s
            self._due_s = min(self._due_s, self.clock_s + self.settings.row_timeout_s)
        verdict, read = self._verify_prefill(rows, cache, slots, prefix)
        if not verdict.all_finite:
            for slot in slots[~verdict.tree_finite]:
                cache.clear(slot)
                rows.submitted[slot] = 0
            verdict, read = self._verify_prefill(rows, cache, slots, prefix)
        ending, ends = rows.append_prefilled(slots, verdict, self._is_eos)
        seconds = time.perf_counter() - started
        self.reuse_estimator.record_prefill(seconds, read)
        self.clock_s += seconds
        rows.own_ms[slots, 1] += 1e3 * seconds / len(slots)
        return self._finish(rows, cache, slots, ends) if ending else []

    def _verify_prefill(self, rows: Rows, cache: TreeCache, slots: np.ndarray,
                prefix: Prefix | None) -> tuple[VerificationResult, int]:
        """The forward of prompts behind their common prefix; its verdict and the tokens that it read."""
        lengths, offered = rows.length[slots], rows.submitted[slots]
        previous = [rows.previous[slot][:n] for slot, n in zip(slots, offered, strict=True)]
        chains = prefill.chain_drafts(previous)
        ids = prefill.padded_ids(rows.tokens[slots], lengths, chains)
        logits = self.target.prefill(cache, slots, ids, lengths, offered, prefix)
        tree = build(rows.tokens[slots, lengths - 1], chains, offered)
        verdict = self._verify_logits(rows, slots, tree.to(self.target.device), logits)
        return verdict, ids.size - (len(slots) * len(prefix) if prefix else 0)


@lru_cache(maxsize=256)
def _first_slots(count: int) -> np.ndarray:
    """The first so many slots, int64; nobody writes to it."""
    return np.arange(count)


def _slot_index(slots: np.ndarray) -> np.ndarray | slice:
    """An index of these slots: of the first ones a slice, which copies nothing."""
    return slice(len(slots)) if slots is _first_slots(len(slots)) else slots
