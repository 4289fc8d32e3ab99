"""The target's forward over trees in fixed shapes: on CUDA recorded as a graph for each, then replayed.

A row's queries write their keys and values directly behind the row's own text, so that what moves from step
to step (lengths, trees) is data in ``Inputs`` and never a shape. First choices are taken in the graph; one
small copy to the host is all that a strict step waits for. The same code runs on a CPU, where it is tested,
with recordings of another kind and without any; shapes that follow the trees are faster there
(``Target.forward``).
"""

import logging
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from dare_job.decode.model import attention, masks
from dare_job.decode.model.cache import TreeCache
from dare_job.decode.model.cuda_graphs import recording
from dare_job.decode.model.cuda_graphs.fusion import fused
from dare_job.decode.model.cuda_graphs.inputs import Bucket, Inputs
from dare_job.decode.model.tree import PaddedLayout, Tree

_MAX_GRAPHS = 128  # graphs of one cache: the one not used for longest goes

_LOG = logging.getLogger("dare_job")


@dataclass(frozen=True)
class StaticOutput:
    """A forward's result on the device, valid until the next one.

    logits  (T, V)
    first   int64 (2, T): first choices, and whether their logits are numbers
    """

    logits: torch.Tensor
    first: torch.Tensor


@dataclass
class _Program:
    inputs: Inputs
    answer: StaticOutput | None = None
    graph: torch.cuda.CUDAGraph | None = None


class StaticForward:
    """Forwards of one model. ``record``: as CUDA graphs; ``fuse``: with its small operations compiled."""

    def __init__(self, model: torch.nn.Module, traits, record: bool, fuse: bool):
        self._model, self._traits = model, traits
        self._record, self._fuse = record, fuse

    @torch.inference_mode()
    def __call__(self, cache: TreeCache, tree: Tree, lengths: np.ndarray) -> StaticOutput | None:
        """tree with its tensors on the CPU, lengths (R,) before each root; padding is in no answer.

        None, and a line in the log, where the model cannot be recorded.
        """
        shape = Bucket.of(tree, lengths, cache.slots)
        cache.reserve(shape.columns)
        program = cache.programs.pop(shape, None)  # the one used last stands last
        fresh = program is None
        if fresh:
            program = _Program(Inputs(shape, cache.device))
        program.inputs.fill(tree, lengths)
        if not self._record:
            answer = self._run(shape, program.inputs, cache)
        else:
            if fresh and not self._recorded(shape, program, cache):
                return None
            program.graph.replay()
            answer = program.answer
        cache.programs[shape] = program
        if len(cache.programs) > _MAX_GRAPHS:
            del cache.programs[next(iter(cache.programs))]
        total = len(tree.tokens)
        return StaticOutput(answer.logits[:total], answer.first[:, :total])

    def _recorded(self, shape: Bucket, program: _Program, cache: TreeCache) -> bool:
        """Record a bucket's graph, if need be without compiled parts; False where that fails.

        All graphs of a cache share their memory.
        """
        if cache.pool is None:
            cache.pool = recording.graph_pool()
        while True:
            try:
                with fused(self._model) if self._fuse else nullcontext():
                    self._record_one(shape, program, cache)
                return True
            except torch.OutOfMemoryError:  # says nothing of the model
                raise
            except (RuntimeError, TypeError, ValueError) as error:
                _LOG.warning("%s cannot be recorded as a CUDA graph%s (%s): it runs without, slower",
                             type(self._model).__name__, " with compiled parts" if self._fuse else "",
                             str(error).strip().split("\n")[0])
            if not self._fuse:
                return False
            self._fuse = False

    def _record_one(self, shape: Bucket, program: _Program, cache: TreeCache) -> None:
        """Two runs before the recording: in the first, libraries allocate and compile; in the second, what
        waits for the device is an error, which within a recording would leave torch's state in disorder.
        """
        def run() -> StaticOutput:
            return self._run(shape, program.inputs, cache)

        with recording.side_stream():
            run()
            with recording.forbid_synchronization():
                run()
        program.graph, program.answer = recording.record(run, cache.pool)

    def _run(self, shape: Bucket, inputs: Inputs, cache: TreeCache) -> StaticOutput:
        """Everything that a graph holds; no shape in it depends on the inputs' content."""
        layout = _layout(shape, inputs)
        before = inputs.lengths[inputs.numbers]
        cache.begin_static(shape.rows, shape.columns, inputs.numbers, before + inputs.offsets)
        mask = masks.tree(self._traits, layout, inputs.ancestors, inputs.depths, inputs.lengths,
                          shape.columns, self._model.dtype)
        logits = attention.run_packed(layout, self._model, input_ids=inputs.tokens[None],
                                  position_ids=(before + inputs.depths)[None], attention_mask=mask,
                                  past_key_values=cache, use_cache=True).logits[0]
        peaks, choices = logits.max(-1)
        if self._record:
            logits = _shared(cache, logits)
        return StaticOutput(logits, torch.stack((choices, peaks.isfinite().long())))


def _shared(cache: TreeCache, logits: torch.Tensor) -> torch.Tensor:
    """The logits in a buffer that all graphs of a cache write to: one of each would take gigabytes.

    It grows in the runs before a recording, never within one.
    """
    if cache.logits is None or len(cache.logits) < len(logits):
        cache.logits = torch.empty_like(logits)
    return cache.logits[: len(logits)].copy_(logits)


def _layout(shape: Bucket, inputs: Inputs) -> PaddedLayout:
    offsets = torch.arange(shape.width, device=inputs.starts.device)
    queries = inputs.starts[:, None] + torch.where(offsets < inputs.counts[:, None], offsets, 0)
    if shape.even:  # padding included
        queries = torch.arange(shape.queries, device=inputs.starts.device)
    return PaddedLayout(shape.rows, shape.width, queries.flatten(), inputs.places, shape.even, fold=True)
