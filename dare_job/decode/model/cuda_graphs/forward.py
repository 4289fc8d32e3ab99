"""The target's forward pass over trees in static shapes: on CUDA, recorded as graphs and replayed.

A row's queries write their keys and values directly after the row's text. So whatever changes between steps
(lengths, trees) is data in ``Inputs``, never a shape. The argmax is computed in the graph; a strict step
waits only for one small copy to the host. The same code also runs on a CPU, where it is tested with and
without a substitute for the four recording functions; shapes that follow the trees are faster there
(``Target.forward``).
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from dare_job.decode.model import masks, tree_attention
from dare_job.decode.model.cache import TreeCache
from dare_job.decode.model.cuda_graphs.fusion import fused
from dare_job.decode.model.cuda_graphs.inputs import Bucket, Inputs
from dare_job.decode.model.tree import PaddedLayout, Tree

_MAX_GRAPHS = 128  # per cache; the least recently used one is dropped
_LOG = logging.getLogger("dare_job")
T = TypeVar("T")


@dataclass(frozen=True)
class StaticOutput:
    """Result of a forward pass on the device, valid until the next one.

    Attributes
    ----------
    logits : float (T, V)
    argmax : int64 (2, T)
        Argmax, and whether its logit is finite.
    """

    logits: torch.Tensor
    argmax: torch.Tensor


@dataclass
class _RecordedBucket:
    inputs: Inputs
    output: StaticOutput | None = None
    graph: torch.cuda.CUDAGraph | None = None


class StaticForward:
    """Forward passes of one model in static shapes.

    Parameters
    ----------
    model : Module
    traits : Traits
    record : bool
        Record CUDA graphs.
    fuse : bool
        Compile chains of small operations (``fusion``).
    """

    def __init__(self, model: torch.nn.Module, traits, record: bool, fuse: bool):
        self._model, self._traits = model, traits
        self._record, self._fuse = record, fuse

    @torch.inference_mode()
    def __call__(self, cache: TreeCache, tree: Tree, lengths: np.ndarray) -> StaticOutput | None:
        """Run the model over the trees of the first R slots.

        Parameters
        ----------
        tree : Tree
            With tensors on the CPU.
        lengths : int64 (R,)
            Tokens before each root.

        Returns
        -------
        StaticOutput or None
            Without padding. None, after a warning, if the model cannot be recorded.
        """
        bucket = Bucket.of(tree, lengths, cache.slots)
        cache.reserve(bucket.columns)
        recorded = cache.graphs.pop(bucket, None)  # inserted again at the end: the order of last use
        fresh = recorded is None
        if fresh:
            recorded = _RecordedBucket(Inputs(bucket, cache.device))
        recorded.inputs.fill(tree, lengths)
        if not self._record:
            output = self._run(bucket, recorded.inputs, cache)
        else:
            if fresh and not self._try_record(bucket, recorded, cache):
                return None
            recorded.graph.replay()
            output = recorded.output
        cache.graphs[bucket] = recorded
        if len(cache.graphs) > _MAX_GRAPHS:
            del cache.graphs[next(iter(cache.graphs))]
        total = len(tree.tokens)
        return StaticOutput(output.logits[:total], output.argmax[:, :total])

    def _try_record(self, bucket: Bucket, recorded: _RecordedBucket, cache: TreeCache) -> bool:
        """Record a bucket's graph, first with compiled parts, then without; return whether that succeeded.

        All graphs of a cache share memory.
        """
        if cache.graph_pool is None:
            cache.graph_pool = graph_pool()
        while True:
            try:
                with fused(self._model) if self._fuse else nullcontext():
                    self._record_one(bucket, recorded, cache)
                return True
            except torch.OutOfMemoryError:  # not a property of the model
                raise
            except (RuntimeError, TypeError, ValueError) as error:
                _LOG.warning("%s cannot be recorded as a CUDA graph%s (%s): continuing without, slower",
                             type(self._model).__name__, " with compiled parts" if self._fuse else "",
                             str(error).strip().split("\n")[0])
            if not self._fuse:
                return False
            self._fuse = False

    def _record_one(self, bucket: Bucket, recorded: _RecordedBucket, cache: TreeCache) -> None:
        """Run twice, then record.

        In the first run, libraries allocate and compile. In the second, an operation that waits for the
        device raises an error; within a recording, it would leave torch in an undefined state.
        """
        def run() -> StaticOutput:
            return self._run(bucket, recorded.inputs, cache)

        with side_stream():
            run()
            with forbid_synchronization():
                run()
        recorded.graph, recorded.output = record_graph(run, cache.graph_pool)

    def _run(self, bucket: Bucket, inputs: Inputs, cache: TreeCache) -> StaticOutput:
        """Run what a graph contains. No shape in it depends on the values of the inputs."""
        layout = _layout(bucket, inputs)
        before = inputs.lengths[inputs.rows]
        cache.begin_static(bucket.rows, bucket.columns, inputs.rows, before + inputs.offsets)
        mask = masks.tree(self._traits, layout, inputs.ancestors, inputs.depths, inputs.lengths,
                          bucket.columns, self._model.dtype)
        logits = tree_attention.run_packed(
            layout, self._model, input_ids=inputs.tokens[None], position_ids=(before + inputs.depths)[None],
            attention_mask=mask, past_key_values=cache, use_cache=True).logits[0]
        peaks, argmax = logits.max(-1)
        if self._record:
            logits = _copy_to_shared(cache, logits)
        return StaticOutput(logits, torch.stack((argmax, peaks.isfinite().long())))


def _copy_to_shared(cache: TreeCache, logits: torch.Tensor) -> torch.Tensor:
    """Copy logits to a buffer that all graphs of a cache share; one buffer per graph would take gigabytes.

    The buffer grows in the runs before a recording, never within one.
    """
    if cache.graph_logits is None or len(cache.graph_logits) < len(logits):
        cache.graph_logits = torch.empty_like(logits)
    return cache.graph_logits[: len(logits)].copy_(logits)


def _layout(bucket: Bucket, inputs: Inputs) -> PaddedLayout:
    offsets = torch.arange(bucket.width, device=inputs.starts.device)
    queries = inputs.starts[:, None] + torch.where(offsets < inputs.counts[:, None], offsets, 0)
    if bucket.uniform:  # including padding queries
        queries = torch.arange(bucket.queries, device=inputs.starts.device)
    return PaddedLayout(bucket.rows, bucket.width, queries.flatten(), inputs.places, bucket.uniform,
                        fold=True)


def graph_pool():
    """Return memory that graphs can share."""
    return torch.cuda.graph_pool_handle()


@contextmanager
def side_stream() -> Iterator[None]:
    """Run on a separate stream, as CUDA requires of runs before a recording."""
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        yield
    current.wait_stream(side)


@contextmanager
def forbid_synchronization() -> Iterator[None]:
    """Forbid operations that wait for the device while the block runs.

    Raises
    ------
    RuntimeError
        An operation waits for the device.
    """
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def record_graph(run: Callable[[], T], pool) -> tuple[torch.cuda.CUDAGraph, T]:
    """Record a CUDA graph; return it and the result of ``run``, tensors that each replay overwrites."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        return graph, run()
