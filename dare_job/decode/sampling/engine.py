"""The engine that samples: texts of the target's own law, whatever drafts them."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from dare_job.decode.engine.engine import Engine
from dare_job.decode.engine.logits_processor import TreeLogitsProcessor
from dare_job.decode.engine.prefill import ReuseEstimator
from dare_job.decode.engine.rows import Rows, StepPlan
from dare_job.decode.model.cache import TreeCache
from dare_job.decode.model.target import Target
from dare_job.decode.model.tree import Tree, build
from dare_job.decode.request import Drafter
from dare_job.decode.sampling import nonfinite, tree_verification
from dare_job.decode.sampling.compiled import warp_parameters
from dare_job.decode.sampling.distributions import check_count, distribution_for
from dare_job.decode.sampling.drafts import SampledDrafts
from dare_job.decode.sampling.random_streams import DRAFT, VERIFY, RowKeys, RowUniforms
from dare_job.decode.sampling.rules import RULES, rule_for
from dare_job.decode.sampling.warp import Constraint
from dare_job.decode.settings import EngineSettings, Warp
from dare_job.decode.verify.penalty import NO_PENALTY, PenaltyContext
from dare_job.decode.verify.result import VerificationResult
from dare_job.errors import ConfigError, ModelError
from pools.tree import DraftBatch

KNOWN_RULES = *RULES, tree_verification.TRAVERSAL
_REPEATING = ("iid",)  # laws that may draw a token twice


@dataclass(frozen=True)
class Sampling:
    """warp  what is sampled: temperature and so on, of target and draft alike
    seed  with a row's key (``Request.random_key``) it decides the row's text
    model_penalty  the repetition penalty of the model's generation config holds, where warp has none
    law   how a draft model's candidates are drawn; drafts of retrieval have no law, and no rule is asked
    rule  verifies them: one of ``sampling.RULES``, or "traversal" of whole trees

    Raises ConfigError where the rule is not exact for the law.
    """

    warp: Warp = field(default_factory=Warp)
    seed: int = 0
    law: str = "without_replacement"
    rule: str = "rrs"
    model_penalty: bool = True

    def __post_init__(self):
        distribution_for(self.law)
        if self.rule not in KNOWN_RULES:
            raise ConfigError(f"no verification rule {self.rule!r}: use {', '.join(KNOWN_RULES)}")

    def require(self, widths: Sequence[int]) -> None:
        """ConfigError where the rule cannot judge as many candidates of the law as a tree's levels have."""
        if self.rule == tree_verification.TRAVERSAL:
            if distribution_for(self.law).name in _REPEATING and max(widths) > 1:
                raise ConfigError(f"rule {self.rule!r} judges a tree whose siblings differ, and draft law "
                                  f"{self.law!r} may draw a token twice: use without_replacement")
            for width in widths:
                check_count(distribution_for(self.law), width)
            return
        for width in widths:
            rule_for(self.rule, distribution_for(self.law), width)


class SamplingEngine(Engine):
    """Writes texts that are samples of the target model's distribution after warping.

    A row's text hangs on the seed, its key, its prompt, model and drafts, and not on what shares its batch:
    it has ``settings.nodes``, or none by its own length alone (``Traits.columns``), whatever its company, and
    random numbers of its own.
    """

    def __init__(self, target: Target, settings: EngineSettings, sampling: Sampling,
                 drafter: Drafter | None = None, reuse_estimator: ReuseEstimator | None = None):
        """drafter: one whose ``sampled`` draws candidates by a law, or one whose drafts hold no chance."""
        if settings.rule != "strict":
            raise ConfigError(f"verify.rule = {settings.rule!r}: what is sampled has the model's own "
                              "law, and relaxed rules change it; use verify.rule = strict")
        if settings.score == "auto":  # by what other rows have seen: a row's text would hang on its company
            settings = replace(settings, score="never")
        super().__init__(target, settings, drafter, reuse_estimator)
        self.sampling, self._seeds = sampling, RowKeys(sampling.seed)
        if drafter is not None and hasattr(drafter, "sampled"):
            sampling.require(drafter.shape.widths)
            drafter.vocabulary = _logit_columns(target)
            drafter.shape.require(settings.nodes)
        self._warp = sampling.warp
        if sampling.model_penalty and sampling.warp.repetition_penalty == 1.0:
            try:
                self._warp = replace(sampling.warp, repetition_penalty=self.rules.penalty)
            except ConfigError as error:
                raise ModelError(f"generation_config.{error}: set sample.repetition_penalty") from error
        config = copy.deepcopy(self.rules.config)
        config.repetition_penalty = None  # warping has it
        self.rules = replace(self.rules, config=config, penalty=1.0)
        self._processor = TreeLogitsProcessor(self.rules, target.vocabulary)
        self._stamps = np.zeros(target.vocabulary + 1, np.int64)
        self._compiled = (
            None if self._warp.logit_bias or target.device.type != "cpu" else warp_parameters(self._warp)
        )
        self._drawn: SampledDrafts | None = None  # of the forward under way, and its rows' keys
        self._keys = self._seeds.keys_of(())

    def _draft(self, rows: Rows, plan: StepPlan) -> DraftBatch:
        self._drawn, self._keys = None, self._seeds.keys(rows.active_requests)
        if not hasattr(self.drafter, "sampled") or not plan.budgets.any():
            return super()._draft(rows, plan)
        draws = RowUniforms(self._keys, plan.lengths, DRAFT)
        self._drawn = self.drafter.sampled(
            rows.active_requests, rows.tokens[: rows.active], plan.lengths, plan.budgets, plan.depths,
            self.sampling.law, self._warp, draws, self._constraint(rows))
        return self._drawn.drafts

    def _constraint(self, rows: Rows) -> Constraint | None:
        """Forbids drafts of an end of text before a row's least length."""
        ends = [token for token in self.rules.eos if token < self.target.vocabulary]
        if not rows.any_min_length or not ends:
            return None
        least = rows.min_length[: rows.active]

        def constrain(logits: torch.Tensor, of: np.ndarray, before: np.ndarray) -> torch.Tensor:
            early = torch.from_numpy(before < least[of]).to(logits.device)
            logits = logits.clone()
            logits[:, ends] = logits[:, ends].masked_fill(early[:, None], -torch.inf)
            return logits

        return constrain

    def _verify_prefill(self, rows: Rows, cache, slots: np.ndarray, prefix) -> tuple[VerificationResult, int]:
        self._drawn = None  # what is offered of old text was not drawn
        self._keys = self._seeds.keys_of(rows.requests[slot].random_key for slot in slots)
        return super()._verify_prefill(rows, cache, slots, prefix)

    def _needs_argmax_only(self, rows: Rows, slots: np.ndarray) -> bool:
        return False

    def _verify_again(self, rows: Rows, slots: np.ndarray, cache: TreeCache, plan: StepPlan,
                      drafts: DraftBatch, tree: Tree, sound: np.ndarray) -> VerificationResult:
        """What was drawn is judged as it was drawn, nodes without numbers among it: the forward does without
        these alone. Which they are is seen by leaving out others.
        """
        if self._drawn is None:
            return super()._verify_again(rows, slots, cache, plan, drafts, tree, sound)

        def forward(keep: np.ndarray) -> tuple[Tree, torch.Tensor]:
            some = build(plan.roots, nonfinite.select_nodes(drafts, keep), plan.depths).to(self.target.device)
            logits = self.target.forward(cache, some, plan.before)
            return some, self._process_logits(rows, slots, some, logits)[0]

        def has_numbers(keep: np.ndarray) -> np.ndarray:
            some, scores = forward(keep)
            roots = torch.from_numpy(some.starts[:-1]).to(scores.device)
            found = (self._p(rows, slots, some, scores)[roots].sum(-1) > 0).cpu().numpy()
            for slot in np.flatnonzero(~found):
                cache.clear(slot, plan.before[slot])
            return found

        keep = nonfinite.finite_nodes(drafts, ~sound, has_numbers)
        there = nonfinite.kept_queries(tree, keep)
        some, scores = forward(keep)
        whole = scores.new_full((len(tree), scores.shape[1]), torch.nan)
        whole[torch.from_numpy(there).to(scores.device)] = scores
        return nonfinite.restrict_to_queries(
            self._judged(rows, slots, tree.to(scores.device), whole), tree, there
        )

    def _verify_logits(self, rows: Rows, slots: np.ndarray, tree: Tree,
                       logits: torch.Tensor) -> VerificationResult:
        return self._judged(rows, slots, tree, self._process_logits(rows, slots, tree, logits)[0])

    def _judged(self, rows: Rows, slots: np.ndarray, tree: Tree, scores: torch.Tensor) -> VerificationResult:
        numbers = RowUniforms(self._keys, rows.length[slots], VERIFY)
        if self._drawn is None and self._compiled:
            return tree_verification.verify_deterministic_on_cpu(
                tree, scores, self._compiled, self._seen(rows, slots, scores), numbers
            )
        p = self._p(rows, slots, tree, scores)
        if self._drawn is None:
            return tree_verification.verify_deterministic(tree, p, numbers)
        return tree_verification.verify_sampled(tree, self._drawn, p, self.sampling.rule, numbers)

    def _p(
        self, rows: Rows, slots: np.ndarray, tree: Tree, scores: torch.Tensor
    ) -> tree_verification.Probabilities:
        return tree_verification.Probabilities(scores, self._warp, partial(_query_texts, rows, slots, tree))

    def _seen(self, rows: Rows, slots: np.ndarray, scores: torch.Tensor) -> PenaltyContext:
        """Of the penalty, which compiled code applies to the nodes that it reads."""
        if self._warp.repetition_penalty == 1.0:
            return NO_PENALTY
        if len(self._stamps) <= scores.shape[1]:  # a head that is wider than the embedding
            self._stamps = np.zeros(scores.shape[1] + 1, np.int64)
        return PenaltyContext(rows.tokens[slots], rows.length[slots], self._stamps,
                              self._warp.repetition_penalty)


def _logit_columns(target: Target) -> int:
    """Tokens that have a logit: the head may be wider than the embedding."""
    head = target.model.get_output_embeddings()
    return target.vocabulary if head is None else head.weight.shape[0]


def _query_texts(rows: Rows, slots: np.ndarray, tree: Tree, queries: torch.Tensor) -> torch.Tensor:
    """int64 (M, L): the text that ends with each query, padded with -1."""
    tokens, parents, depths, starts = tree.host
    nodes = queries.cpu().numpy()
    of = np.searchsorted(starts, nodes, side="right") - 1
    lengths = rows.length[slots][of]
    longest = int(lengths.max(initial=0))
    known = rows.tokens[slots[of], :longest].astype(np.int64)
    found = np.full((len(nodes), longest + tree.depth), -1, np.int64)
    found[:, :longest] = np.where(np.arange(longest) < lengths[:, None], known, -1)
    for place in range(tree.depth):
        found[:, longest + place] = np.where(depths[nodes] > 0, tokens[nodes], -1)
        nodes = parents[nodes]
    return torch.from_numpy(found).to(queries.device)
