"""Accepted tokens a step of drafted trees: texts are written with them, by each rule."""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dare_job.decode.draft.model import ModelDrafter
from dare_job.decode.draft.sampled_tree import TreeShape
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.sampling.engine import Sampling, SamplingEngine
from dare_job.decode.sampling.tree_verification import TRAVERSAL
from dare_job.decode.settings import EngineSettings, Warp
from dare_job.decode.verify.result import VerificationResult
from dare_job.errors import ConfigError, ModelError
from dare_job.evaluate.acceptance.measure import mean
from dare_job.publish.prompted_texts import Row

RULES = (("rrs", "iid"), ("k_seq", "iid"), ("priority", "iid"), ("rrs", "without_replacement"),
         ("traversal", "without_replacement"), ("greedy", "greedy"), ("spechub", "spechub"))
_LOG = logging.getLogger("dare_job")


@dataclass(frozen=True)
class SparseShape:
    """A tree's shape, and how many of its nodes are drafted: the likeliest nodes of each level have children
    while these last.
    """

    shape: TreeShape
    nodes: int

    @classmethod
    def parse(cls, text: str) -> "SparseShape":
        """``4x2x1``, or ``4x2x1:12`` for 12 of its nodes. Raises ConfigError."""
        widths, colon, nodes = text.partition(":")
        shape = TreeShape.parse(widths)
        if colon and not (nodes.isdecimal() and shape.widths[0] <= int(nodes) <= shape.nodes):
            raise ConfigError(f"--trees {text!r}: behind the colon stands how many of the tree's nodes are "
                              f"drafted, from {shape.widths[0]} to {shape.nodes}")
        return cls(shape, int(nodes) if colon else shape.nodes)

    def __str__(self) -> str:
        return str(self.shape) + (f":{self.nodes}" if self.nodes < self.shape.nodes else "")


class SparseDrafter(ModelDrafter):
    """A draft model whose trees have no more than so many nodes."""

    def __init__(self, target: Target, tree: SparseShape, vocabulary: int):
        super().__init__(target, tree.shape, vocabulary)
        self.nodes = tree.nodes

    def sampled(self, requests, context, lengths, budgets, *others):
        return super().sampled(requests, context, lengths, np.minimum(budgets, self.nodes), *others)


class CountingEngine(SamplingEngine):
    """Counts nodes with candidates that verification came to, and those of which a candidate passed."""

    def __init__(self, *args):
        super().__init__(*args)
        self.judged = self.passed = 0

    def _verify_scores(self, rows, slots, tree, scores) -> VerificationResult:
        verdict = super()._verify_scores(rows, slots, tree, scores)
        if self._sampled is not None:
            _, parents, depths, starts = tree.host
            inner = np.zeros(len(parents), np.bool_)
            inner[parents[depths > 0]] = True
            last = starts[:-1] + np.take_along_axis(verdict.paths, verdict.counts[:, None], 1)[:, 0]
            self.passed += int(verdict.counts.sum())
            self.judged += int(verdict.counts.sum() + inner[last].sum())
        return verdict


def measure(target: Target, draft: Target, rows: Sequence[Row], trees: Sequence[SparseShape],
            temperatures: Sequence[float], new_tokens: int, batch: int, seed: int) -> Iterator[dict]:
    """A line for each temperature, tree and rule that can judge it.

    Texts of up to ``new_tokens`` tokens are written for the rows' prompts, ``batch`` together. ``delta``:
    tokens a step, the target's own one among them, over those of the first of ``RULES``.
    """
    for temperature in temperatures:
        for tree in trees:
            plainest = None
            for rule, law in RULES:
                sampling = Sampling(Warp(temperature), seed, law, rule)
                try:
                    sampling.require(tree.shape.widths)
                except ConfigError:
                    continue
                found = _measured(target, draft, rows, tree, sampling, new_tokens, batch)
                _LOG.info("trees: temperature %g, %s, %s of %s: %.3f accepted a step", temperature, tree,
                          rule, law, found["accepted"])
                plainest = plainest or 1 + found["accepted"]
                yield {"temperature": temperature, "tree": str(tree), "rule": rule, "law": law, **found,
                       "delta": (1 + found["accepted"]) / plainest}


def _measured(target: Target, draft: Target, rows: Sequence[Row], tree: SparseShape, sampling: Sampling,
             new_tokens: int, batch: int) -> dict:
    """Tokens accepted a step, the target's own not counted, and the share of judged nodes that accept one."""
    settings = EngineSettings(max_new_tokens=new_tokens, batch_size=batch, nodes=tree.shape.nodes,
                              depth=tree.shape.depth, score="never")
    engine = CountingEngine(target, settings, sampling, SparseDrafter(draft, tree, target.vocabulary))
    results = list(engine.run(Request(row.name, row.prompt.astype(np.int32)) for row in rows))
    if failed := [result for result in results if result.error]:
        raise ModelError(f"text {failed[0].id} could not be written: {failed[0].error}")
    steps = [np.asarray(result.step_tokens[1:], np.int64) - 1 for result in results]
    accepted = np.concatenate(steps)
    if not len(accepted):
        raise ModelError("every text ends with its first token: no tree was drafted; give other --text")
    middle, error = mean(accepted, np.repeat(np.arange(len(steps)), [len(one) for one in steps]))
    return {"accepted": middle, "error": None if math.isnan(error) else error, "steps": len(accepted),
            "node_rate": None if sampling.rule == TRAVERSAL else engine.passed / max(1, engine.judged)}
