"""Accepted tokens per step of drafted trees, measured by generating texts with each rule."""

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
    """A tree shape and its drafted nodes; the likeliest nodes of a level get children while nodes last."""

    shape: TreeShape
    nodes: int

    @classmethod
    def parse(cls, text: str) -> "SparseShape":
        """Parse ``4x2x1``, or ``4x2x1:12`` for 12 of its nodes.

        Raises
        ------
        ConfigError
            The text is not such a shape.
        """
        widths, colon, nodes = text.partition(":")
        shape = TreeShape.parse(widths)
        if colon and not (nodes.isdecimal() and shape.widths[0] <= int(nodes) <= shape.nodes):
            raise ConfigError(f"--trees {text!r}: the number of drafted nodes, after the colon, must be from "
                              f"{shape.widths[0]} to {shape.nodes}")
        return cls(shape, int(nodes) if colon else shape.nodes)

    def __str__(self) -> str:
        return str(self.shape) + (f":{self.nodes}" if self.nodes < self.shape.nodes else "")


class SparseDrafter(ModelDrafter):
    """A draft model whose trees have at most this many nodes."""

    def __init__(self, target: Target, tree: SparseShape, vocabulary: int):
        super().__init__(target, tree.shape, vocabulary)
        self.nodes = tree.nodes

    def sampled(self, requests, context, lengths, budgets, *others):
        return super().sampled(requests, context, lengths, np.minimum(budgets, self.nodes), *others)


class CountingEngine(SamplingEngine):
    """Counts the verified nodes with candidates, and those of which a candidate was accepted."""

    def __init__(self, *args):
        super().__init__(*args)
        self.verified = self.accepted = 0

    def _verify_scores(self, rows, slots, tree, scores) -> VerificationResult:
        result = super()._verify_scores(rows, slots, tree, scores)
        if self._sampled is not None:
            _, parents, depths, starts = tree.host
            inner = np.zeros(len(parents), np.bool_)
            inner[parents[depths > 0]] = True
            last = starts[:-1] + np.take_along_axis(result.paths, result.counts[:, None], 1)[:, 0]
            self.accepted += int(result.counts.sum())
            self.verified += int(result.counts.sum() + inner[last].sum())
        return result


def measure(target: Target, draft: Target, rows: Sequence[Row], trees: Sequence[SparseShape],
            temperatures: Sequence[float], new_tokens: int, batch: int, seed: int) -> Iterator[dict]:
    """Yield a record for each temperature, tree and rule that is exact for the tree.

    Texts of up to ``new_tokens`` tokens are generated for the rows' prompts, ``batch`` at a time. ``delta``
    is the tokens per step, the target's own included, relative to the first of ``RULES``.

    Raises
    ------
    ModelError
        A text cannot be generated, or no tree is drafted.
    """
    for temperature in temperatures:
        for tree in trees:
            baseline = None
            for rule, distribution in RULES:
                sampling = Sampling(Warp(temperature), seed, distribution, rule)
                try:
                    sampling.require(tree.shape.widths)
                except ConfigError:
                    continue
                measured = _measured(target, draft, rows, tree, sampling, new_tokens, batch)
                _LOG.info("trees: temperature %g, %s, %s of %s: %.3f accepted per step", temperature, tree,
                          rule, distribution, measured["accepted"])
                baseline = baseline or 1 + measured["accepted"]
                yield {"temperature": temperature, "tree": str(tree), "rule": rule,
                       "distribution": distribution, **measured,
                       "delta": (1 + measured["accepted"]) / baseline}


def _measured(target: Target, draft: Target, rows: Sequence[Row], tree: SparseShape, sampling: Sampling,
              new_tokens: int, batch: int) -> dict:
    """Return accepted tokens per step, without the target's own, and the share of verified nodes with one."""
    settings = EngineSettings(max_new_tokens=new_tokens, batch_size=batch, nodes=tree.shape.nodes,
                              depth=tree.shape.depth, score="never")
    engine = CountingEngine(target, settings, sampling, SparseDrafter(draft, tree, target.vocabulary))
    results = list(engine.run(Request(row.name, row.prompt.astype(np.int32)) for row in rows))
    if failed := [result for result in results if result.error]:
        raise ModelError(f"text {failed[0].id} could not be generated: {failed[0].error}")
    steps = [np.asarray(result.step_tokens[1:], np.int64) - 1 for result in results]
    accepted = np.concatenate(steps)
    if not len(accepted):
        raise ModelError("no tree was drafted, since every text ends with its first token: choose another "
                         "--text")
    average, error = mean(accepted, np.repeat(np.arange(len(steps)), [len(row_steps) for row_steps in steps]))
    return {"accepted": average, "error": None if math.isnan(error) else error, "steps": len(accepted),
            "node_rate": None if sampling.rule == TRAVERSAL else engine.accepted / max(1, engine.verified)}
