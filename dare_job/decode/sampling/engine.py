"""The sampling engine: generates texts with the target model's own distribution, whatever drafts them."""

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
from dare_job.decode.engine.stop_strings import NO_STOP, StopStrings
from dare_job.decode.model.cache import TreeCache
from dare_job.decode.model.target import Target
from dare_job.decode.model.tree import Tree, build
from dare_job.decode.request import Drafter
from dare_job.decode.sampling import nonfinite, tree_verification
from dare_job.decode.sampling.compiled import warp_parameters
from dare_job.decode.sampling.distributions import check_count, distribution_for
from dare_job.decode.sampling.drafts import SampledDrafts
from dare_job.decode.sampling.random_streams import DRAFT, VERIFY, RowKeys, RowUniforms
from dare_job.decode.sampling.rules import rule_for
from dare_job.decode.sampling.warp import Constraint
from dare_job.decode.settings import EngineSettings, Warp
from dare_job.decode.verify.penalty import NO_PENALTY, PenaltyContext
from dare_job.decode.verify.result import VerificationResult
from dare_job.errors import ConfigError, ModelError
from pools.tree import DraftBatch


@dataclass(frozen=True)
class Sampling:
    """How to sample.

    Attributes
    ----------
    warp
        Temperature and truncation, of target and draft model alike. Without a repetition penalty, that of the
        settings applies, else that of the model's generation config.
    seed
        Decides a row's text together with the row's key (``Request.random_key``).
    distribution
        Of a draft model's candidates; retrieval drafts are deterministic and need none.
    rule
        Verification rule, one of ``rules.RULES``, or "traversal" of whole trees.
    """

    warp: Warp = field(default_factory=Warp)
    seed: int = 0
    distribution: str = "without_replacement"
    rule: str = "rrs"

    def require(self, widths: Sequence[int]) -> None:
        """Check the rule for trees whose levels have these numbers of candidates per node.

        Raises
        ------
        ConfigError
            The rule is not exact for one of them.
        """
        if self.rule == tree_verification.TRAVERSAL:
            if self.distribution == "iid" and max(widths) > 1:
                raise ConfigError(f"rule {self.rule!r} needs distinct siblings, but draft distribution "
                                  f"{self.distribution!r} may sample a token twice: use without_replacement")
            for width in widths:
                check_count(distribution_for(self.distribution), width)
            return
        for width in widths:
            rule_for(self.rule, distribution_for(self.distribution), width)


class SamplingEngine(Engine):
    """Generates texts that are samples of the target model's distribution after warping.

    A row's text depends on the seed, its key, prompt, model and drafts, not on the batch: its number of draft
    nodes is ``settings.nodes``, or none because of its own length (``Traits.max_columns``), and its uniforms
    are its own.
    """

    rule_on_device = False  # it needs the logits

    def __init__(self, target: Target, settings: EngineSettings, sampling: Sampling,
                 drafter: Drafter | None = None, reuse_estimator: ReuseEstimator | None = None,
                 stop: StopStrings = NO_STOP, numbers: np.ndarray | None = None):
        """Set up the engine. The drafter samples candidates (``sampled``) or returns deterministic drafts.

        Raises
        ------
        ConfigError
            Verification is relaxed, the rule is not exact for the drafter's tree shape, or the model verifies
            chains and the drafter's tree is none.
        ModelError
            The repetition penalty of the model's generation config is out of range.
        """
        if settings.rule != "strict":
            raise ConfigError(f"verify.rule = {settings.rule!r} would change the sampled distribution; with "
                              "sampling, use verify.rule = strict")
        if settings.score == "auto":  # depends on other rows, and a row's text must not
            settings = replace(settings, score="never")
        super().__init__(target, settings, drafter, reuse_estimator, stop=stop, numbers=numbers)
        self._visits_one_path = False
        self.sampling, self._row_keys = sampling, RowKeys(sampling.seed)
        if drafter is not None and hasattr(drafter, "sampled"):
            if target.drafts == "chain" and max(drafter.shape.widths) > 1:
                raise ConfigError(f"drafter.tree = {drafter.shape}: {type(target.model).__name__} keeps "
                                  "states and verifies chains; use a tree of width 1, for example 1x1x1x1")
            sampling.require(drafter.shape.widths)
            drafter.vocabulary = target.logit_columns
            drafter.shape.require(settings.nodes)
        self._warp = sampling.warp
        if sampling.warp.repetition_penalty == 1.0:
            try:
                self._warp = replace(sampling.warp, repetition_penalty=self.generation_rules.penalty)
            except ConfigError as error:
                reason = str(error).removeprefix("sample.")
                raise ModelError(f"generation_config.{reason}: set decode.repetition_penalty") from error
        config = copy.deepcopy(self.generation_rules.config)
        config.repetition_penalty = None  # warping applies it
        self.generation_rules = replace(self.generation_rules, config=config, penalty=1.0)
        self._processor = TreeLogitsProcessor(self.generation_rules, target.vocabulary)
        self._stamps = np.zeros(target.vocabulary + 1, np.int64)
        on_cpu = target.device.type == "cpu" and not self._warp.logit_bias
        self._compiled = warp_parameters(self._warp) if on_cpu else None
        self._sampled: SampledDrafts | None = None  # of the current forward pass
        self._keys = self._row_keys.keys_of(())

    def _draft(self, rows: Rows, plan: StepPlan) -> DraftBatch:
        self._sampled, self._keys = None, self._row_keys.keys(rows.active_requests)
        if not hasattr(self.drafter, "sampled") or not plan.budgets.any():
            return super()._draft(rows, plan)
        uniforms = RowUniforms(self._keys, plan.lengths, DRAFT)
        self._sampled = self.drafter.sampled(
            rows.active_requests, rows.tokens[: rows.active], plan.lengths, plan.budgets, plan.depths,
            self.sampling.distribution, self._warp, uniforms, self._constraint(rows))
        return self._sampled.drafts

    def _constraint(self, rows: Rows) -> Constraint | None:
        """Forbid drafting an end-of-text token before a row's minimum length."""
        eos = self._eos
        if not rows.any_min_length or not eos:
            return None
        min_lengths = rows.min_length[: rows.active]

        def constrain(logits: torch.Tensor, rows_of: np.ndarray, lengths: np.ndarray) -> torch.Tensor:
            too_short = torch.from_numpy(lengths < min_lengths[rows_of]).to(logits.device)
            logits = logits.clone()
            logits[:, eos] = logits[:, eos].masked_fill(too_short[:, None], -torch.inf)
            return logits

        return constrain

    def _verify_prefill(self, rows: Rows, cache, slots: np.ndarray, prefix) -> tuple[VerificationResult, int]:
        self._sampled = None  # previous text is a deterministic draft
        self._keys = self._row_keys.keys_of(rows.requests[slot].random_key for slot in slots)
        return super()._verify_prefill(rows, cache, slots, prefix)

    def _verify_again(self, rows: Rows, slots: np.ndarray, cache: TreeCache, plan: StepPlan,
                      drafts: DraftBatch, tree: Tree, tree_finite: np.ndarray) -> VerificationResult:
        """Verify the sampled trees as they were sampled, although some nodes are non-finite.

        The forward pass leaves out only these nodes. A search over forward passes with fewer nodes finds
        them.
        """
        if self._sampled is None:
            return super()._verify_again(rows, slots, cache, plan, drafts, tree, tree_finite)

        def forward(keep: np.ndarray) -> tuple[Tree, torch.Tensor]:
            subtree = build(plan.roots, nonfinite.select_nodes(drafts, keep), plan.depths)
            subtree = subtree.to(self.target.device)
            logits = self.target.forward(cache, subtree, plan.before)
            return subtree, self._process_logits(rows, slots, subtree, logits)[0]

        def is_finite(keep: np.ndarray) -> np.ndarray:
            subtree, scores = forward(keep)
            roots = torch.from_numpy(subtree.starts[:-1]).to(scores.device)
            finite = (self._probabilities(rows, slots, subtree, scores)[roots].sum(-1) > 0).cpu().numpy()
            for slot in np.flatnonzero(~finite):
                cache.clear(slot, plan.before[slot])
            return finite

        keep = nonfinite.finite_nodes(drafts, ~tree_finite, is_finite)
        present = nonfinite.kept_queries(tree, keep)
        subtree, scores = forward(keep)
        full = scores.new_full((len(tree), scores.shape[1]), torch.nan)
        full[torch.from_numpy(present).to(scores.device)] = scores
        result = self._verify_scores(rows, slots, tree.to(scores.device), full)
        return nonfinite.restrict_to_queries(result, tree, present)

    def _verify_logits(self, rows: Rows, slots: np.ndarray, tree: Tree,
                       logits: torch.Tensor) -> VerificationResult:
        return self._verify_scores(rows, slots, tree, self._process_logits(rows, slots, tree, logits)[0])

    def _verify_scores(self, rows: Rows, slots: np.ndarray, tree: Tree,
                       scores: torch.Tensor) -> VerificationResult:
        uniforms = RowUniforms(self._keys, rows.length[slots], VERIFY)
        if self._sampled is None and self._compiled:
            context = self._penalty_context(rows, slots, scores)
            return tree_verification.verify_deterministic_on_cpu(tree, scores, self._compiled, context,
                                                                 uniforms)
        p = self._probabilities(rows, slots, tree, scores)
        if self._sampled is None:
            return tree_verification.verify_deterministic(tree, p, uniforms)
        return tree_verification.verify_sampled(tree, self._sampled, p, self.sampling.rule, uniforms)

    def _probabilities(self, rows: Rows, slots: np.ndarray, tree: Tree,
                       scores: torch.Tensor) -> tree_verification.Probabilities:
        return tree_verification.Probabilities(scores, self._warp, partial(_query_texts, rows, slots, tree))

    def _penalty_context(self, rows: Rows, slots: np.ndarray, scores: torch.Tensor) -> PenaltyContext:
        """Return the tokens of each row's text, to which compiled code applies the repetition penalty."""
        if self._warp.repetition_penalty == 1.0:
            return NO_PENALTY
        if len(self._stamps) <= scores.shape[1]:  # the output head may be wider than the embedding
            self._stamps = np.zeros(scores.shape[1] + 1, np.int64)
        return PenaltyContext(rows.tokens[slots], rows.length[slots], self._stamps,
                              self._warp.repetition_penalty)


def _query_texts(rows: Rows, slots: np.ndarray, tree: Tree, queries: torch.Tensor) -> torch.Tensor:
    """Return the text int64 (M, L) that ends with each query, padded with -1."""
    tokens, parents, depths, starts = tree.host
    nodes = queries.cpu().numpy()
    rows_of = np.searchsorted(starts, nodes, side="right") - 1
    lengths = rows.length[slots][rows_of]
    longest = int(lengths.max(initial=0))
    texts = rows.tokens[slots[rows_of], :longest].astype(np.int64)
    out = np.full((len(nodes), longest + tree.depth), -1, np.int64)
    out[:, :longest] = np.where(np.arange(longest) < lengths[:, None], texts, -1)
    for place in range(tree.depth):
        out[:, longest + place] = np.where(depths[nodes] > 0, tokens[nodes], -1)
        nodes = parents[nodes]
    return torch.from_numpy(out).to(queries.device)
