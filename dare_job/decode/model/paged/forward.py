"""The target's forward passes over pages: trees and levels in static shapes, prompts packed without padding.

Whatever changes between steps (lengths, trees, pages) is data in ``Inputs``, never a shape, so on CUDA passes
over trees are recorded as graphs and replayed. What verification needs of the logits is computed in the
graph; a step waits only for one small copy to the host. The same code also runs on a CPU, where it is tested
with and without a substitute for the recording; shapes that follow the trees are faster there
(``Target.forward``).
"""

import logging
import re
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from dare_job.decode.model import failures
from dare_job.decode.model.masks import Level
from dare_job.decode.model.paged import recording
from dare_job.decode.model.paged.attention import SplitAttention, over_pages
from dare_job.decode.model.paged.fusion import fused
from dare_job.decode.model.paged.inputs import Bucket, Inputs, round_up_queries, round_up_tree
from dare_job.decode.model.paged.pool import PagedCache
from dare_job.decode.model.support import CHUNKED, SLIDING

_PROMPT_SIZES = (256, 512, 768, 1024, 1536, 2048)  # to which the tokens of a pass over prompts are rounded up
PROMPT_TOKENS = _PROMPT_SIZES[-1]
_MAX_GRAPHS = 128  # per cache; the least recently used one is dropped
_MAX_PREPARED = 1024  # queries of the largest shape that is recorded before it is needed
_UNRECORDABLE = re.compile(r"captur|Triton Error")  # errors of the device that a recording causes
_LOG = logging.getLogger("dare_job")
Epilogue = Callable[[torch.Tensor, Inputs], torch.Tensor]


def whole_logits(logits: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    """Return logits (T, V) as they are."""
    return logits


def argmax_tokens(logits: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    """Return int32 (2, T): argmax, and whether its logit is finite."""
    peaks, argmax = logits.max(-1)
    return torch.stack((argmax, peaks.isfinite())).int()


@dataclass
class _Recorded:
    inputs: Inputs
    output: torch.Tensor | None = None
    graph: torch.cuda.CUDAGraph | None = None


class PagedForward:
    """Forward passes of one model over a ``PagedCache``.

    Parameters
    ----------
    model : Module
    traits : Traits
    record : bool
        Record CUDA graphs.
    fuse : bool
        Compile chains of small operations (``fusion``).
    keep_logits : bool
        Whether the model can compute the logits of selected queries only.
    """

    def __init__(self, model: torch.nn.Module, traits, record: bool, fuse: bool, keep_logits: bool = False):
        self._model, self._traits, self._keep_logits = model, traits, keep_logits
        self._record, self._fuse = record, fuse

    @property
    def records(self) -> bool:
        """Whether passes are recorded: a model that cannot be recorded runs without."""
        return self._record

    @torch.inference_mode()
    def level(self, cache: PagedCache, level: Level, epilogue: Epilogue = whole_logits,
              parents: np.ndarray | None = None, strict: np.ndarray | None = None) -> torch.Tensor:
        """Run the model over nodes that continue the texts in the first R slots.

        Parameters
        ----------
        epilogue : callable
            What is returned of the logits of all queries; a function that is the same for many calls.
        parents, strict : int64 (T,) and bool (T,), optional
            For the epilogue, as in ``Inputs``.

        Returns
        -------
        Tensor
            On the device, with padding, valid until the next pass.
        """
        cache.require(np.arange(len(level.lengths)), level.lengths + level.first + np.diff(level.starts))
        bucket = Bucket.of(level, self._traits, cache.table.shape[1])
        recorded = self._find(cache, self._fixed(bucket, cache), epilogue)
        recorded.inputs.fill(level, cache, parents, strict)
        if recorded.graph is None:
            return self._run(recorded.inputs, cache, epilogue)
        recorded.graph.replay()
        return recorded.output

    def prepare(self, cache: PagedCache, nodes: int, epilogue: Epilogue, seconds: float) -> None:
        """Record the shapes of steps with up to ``nodes`` draft nodes per row, once.

        ``seconds``: limit of the time after the first shape, for which parts of the model are compiled.
        """
        pages, end = cache.table.shape[1], None
        wanted = epilogue, pages, nodes, cache.fixed_nodes  # engines with other settings may share the cache
        if not self._record or wanted in cache.prepared:
            return
        cache.prepared.add(wanted)
        if cache.fixed_nodes is not None:
            self._find(cache, self._fixed(Bucket(1, 1, 1, pages, False), cache), epilogue)
            return
        for bucket in step_shapes(cache.slots, nodes, pages)[: _MAX_GRAPHS // 2]:
            if not self._record or end is not None and time.perf_counter() > end:
                return
            try:
                if (bucket, epilogue) not in cache.graphs:
                    self._add(cache, bucket, epilogue)
                    end = end or time.perf_counter() + seconds
            except RuntimeError as error:
                if not failures.is_out_of_memory(error):
                    raise

    @torch.inference_mode()
    def prompts(self, cache: PagedCache, slots: np.ndarray, ids: np.ndarray, lengths: np.ndarray,
                submitted: np.ndarray | None, prefix: Sequence[torch.Tensor]) -> torch.Tensor:
        """Read prompts, and tokens to verify after them, as ``Target.prefill``; ``prefix``: its entries."""
        start = prefix[0].shape[2] if prefix else 0
        ends = lengths if submitted is None else lengths + submitted
        cache.require(slots, ends)
        if prefix:
            cache.write(slots, prefix, ids[0, :start])
        counts = ends - start
        rows = np.repeat(np.arange(len(slots)), counts)
        columns = start + np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        tokens, wanted = ids[rows, columns], columns >= lengths[rows] - 1
        parts = [slice(begin, begin + PROMPT_TOKENS) for begin in range(0, len(rows), PROMPT_TOKENS)]
        packed = tokens, rows, columns, wanted
        return torch.cat([self._prompt_part(cache, slots, *(values[part] for values in packed))
                          for part in parts])

    def _prompt_part(self, cache: PagedCache, slots: np.ndarray, tokens: np.ndarray, rows: np.ndarray,
                     columns: np.ndarray, wanted: np.ndarray) -> torch.Tensor:
        """Run the model over tokens (T,) of some rows; return the logits of those that are wanted."""
        total = len(tokens)
        fixed = cache.fixed_nodes is not None
        padded = PROMPT_TOKENS if fixed else next(size for size in _PROMPT_SIZES if size >= total)
        distinct, first, counts = np.unique(rows, return_index=True, return_counts=True)
        slot = slots[distinct]
        places = np.zeros((4, padded), np.int64)  # tokens, positions, lines, first visible column
        places[:3, :total] = tokens, columns, cache.places(slots[rows], columns)
        places[0, total:] = tokens[0]
        chunked = CHUNKED in self._traits.kinds
        if chunked:
            places[3, :total] = columns // self._traits.window * self._traits.window
        starts = np.concatenate((first, [total, padded])).astype(np.int32)
        used = np.concatenate((columns[first] + counts, [0])).astype(np.int32)
        ids, positions, lines, low = cache.on_device(places)
        split = SplitAttention(
            cache.on_device(starts), cache.on_device(used), cache.on_device(cache.table[[*slot, -1]]),
            {kind: torch.zeros((1, 1, 1, 1), dtype=self._model.dtype, device=cache.device)
             for kind in self._traits.kinds},
            {CHUNKED: low} if chunked else {}, dict.fromkeys((SLIDING, CHUNKED), self._traits.window or 0),
            padded if fixed else int(max(counts.max(), padded - total)))
        chosen = np.flatnonzero(wanted)
        options = {}
        if self._keep_logits and not fixed:  # a padded number of them, so that few shapes occur
            kept = np.zeros(round_up_queries(max(len(chosen), 1)), np.int64)
            kept[: len(chosen)] = chosen
            options["logits_to_keep"] = cache.on_device(kept)
        cache.begin(lines)
        logits = self._logits(ids, positions, split, cache, **options)
        return logits[: len(chosen)] if options else logits[cache.on_device(chosen)]

    def _fixed(self, bucket: Bucket, cache: PagedCache) -> Bucket:
        """Return the bucket of ``cache.fixed_nodes``, if it is set and holds this one; else this one."""
        if cache.fixed_nodes is None:
            return bucket
        width = round_up_tree(cache.fixed_nodes + 1)
        largest = Bucket(round_up_queries(cache.slots * (cache.fixed_nodes + 1)), width, width, bucket.pages,
                         self._traits.window is not None)
        return largest if largest.holds(bucket) else bucket

    def _find(self, cache: PagedCache, bucket: Bucket, epilogue: Epilogue) -> _Recorded:
        """Return a recorded shape: this one, or a slightly larger one, or this one after recording it."""
        key = bucket, epilogue
        if key not in cache.graphs and self._record and cache.fixed_nodes is None:
            larger = [known for known, other in cache.graphs if other is epilogue and known.serves(bucket)]
            if larger:
                key = min(larger, key=lambda known: (known.scores, known.queries)), epilogue
        if key not in cache.graphs:
            return self._add(cache, bucket, epilogue)
        recorded = cache.graphs[key] = cache.graphs.pop(key)  # the order of last use
        return recorded

    def _add(self, cache: PagedCache, bucket: Bucket, epilogue: Epilogue) -> _Recorded:
        recorded = _Recorded(Inputs(bucket, self._traits, cache.slots, cache.device))
        if self._record:
            self._try_record(recorded, cache, epilogue)
        cache.graphs[bucket, epilogue] = recorded
        if len(cache.graphs) > _MAX_GRAPHS:
            del cache.graphs[next(iter(cache.graphs))]
        return recorded

    def _try_record(self, recorded: _Recorded, cache: PagedCache, epilogue: Epilogue) -> None:
        """Record a graph, first with compiled parts, then without; if both fail, record no more graphs.

        All graphs of a cache share memory.
        """
        if cache.graph_pool is None:
            cache.graph_pool = recording.graph_pool()
        while self._record:
            try:
                with fused(self._model) if self._fuse else nullcontext():
                    self._record_one(recorded, cache, epilogue)
                return
            except (RuntimeError, TypeError, ValueError) as error:
                if failures.is_out_of_memory(error) or (
                        failures.is_device_failure(error) and not _UNRECORDABLE.search(str(error))):
                    raise  # not a property of the model
                _LOG.warning("%s cannot be recorded as a CUDA graph%s (%s): continuing without, slower",
                             type(self._model).__name__, " with compiled parts" if self._fuse else "",
                             str(error).strip().split("\n")[0])
            self._record, self._fuse = self._fuse, False

    def _record_one(self, recorded: _Recorded, cache: PagedCache, epilogue: Epilogue) -> None:
        """Run twice, then record. The inputs are zeros: everything is padding.

        In the first run, libraries allocate and compile. In the second, an operation that waits for the
        device raises an error; within a recording, it would leave torch in an undefined state.
        """
        def run() -> torch.Tensor:
            return self._run(recorded.inputs, cache, epilogue)

        with recording.side_stream():
            run()
            with recording.forbid_synchronization():
                run()
        recorded.graph, recorded.output = recording.record_graph(run, cache.graph_pool)

    def _run(self, inputs: Inputs, cache: PagedCache, epilogue: Epilogue) -> torch.Tensor:
        """Run what a graph contains. No shape in it depends on the values of the inputs."""
        cache.begin(inputs.lines)
        split = inputs.split(self._model.dtype)
        output = epilogue(self._logits(inputs.tokens, inputs.positions, split, cache), inputs)
        return _copy_to_shared(cache, output) if self._record and epilogue is whole_logits else output

    def _logits(self, tokens: torch.Tensor, positions: torch.Tensor, split: SplitAttention, cache: PagedCache,
                **options) -> torch.Tensor:
        """Return logits (T, V) of packed queries (T,)."""
        mask = split.masks if len(split.masks) > 1 else next(iter(split.masks.values()))
        with over_pages(split):
            return self._model(input_ids=tokens[None], position_ids=positions[None], attention_mask=mask,
                               past_key_values=cache, use_cache=True, **options).logits[0]


def step_shapes(slots: int, nodes: int, pages: int) -> list[Bucket]:
    """Return the shapes of steps with up to ``nodes`` draft nodes per row, the widest and largest first."""
    widths, shapes = [1], []
    while widths[-1] <= nodes:
        widths.append(round_up_tree(widths[-1] + 1))
    for narrower, width in reversed(list(zip((0, *widths), widths, strict=False))):
        counts = ladder(min(slots * min(width, nodes + 1), _MAX_PREPARED))
        shapes += [Bucket(count, width, width, pages, False) for count in counts if count > narrower]
    return shapes


def ladder(end: int) -> list[int]:
    """Return the query counts of shapes up to ``end``, descending: graphs share the memory of the first."""
    counts, count = [], 1
    while count < end:
        counts.append(round_up_queries(count))
        count = counts[-1] + 1
    return [round_up_queries(end), *reversed(counts)] if not counts or counts[-1] < end else counts[::-1]


def _copy_to_shared(cache: PagedCache, logits: torch.Tensor) -> torch.Tensor:
    """Copy logits to a buffer that all graphs of a cache share; one buffer per graph would take gigabytes.

    The buffer grows in the runs before a recording, never within one.
    """
    if cache.graph_logits is None or len(cache.graph_logits) < len(logits):
        cache.graph_logits = torch.empty_like(logits)
    return cache.graph_logits[: len(logits)].copy_(logits)
