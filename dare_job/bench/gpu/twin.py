"""What the engine would make a GPU do, counted on a CPU: ``python -m dare_job.bench.gpu --twin``.

The engine writes made-up texts with a tiny model in the shapes that it would use on a GPU, with draft budgets
from a published latency curve of an H100. A dispatch mode counts its forward passes, their shapes and
padding, and the keys and values that attention reads; a function mode counts the calls of a step that would
wait for the device. Nothing here is a time.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dare_job.bench.gpu import shapes, texts
from dare_job.bench.gpu.task import DEPTH, RecordedTarget
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine.draft_budget import AdaptiveBudget, max_row_nodes
from dare_job.decode.engine.engine import Engine
from dare_job.decode.engine.latency import LatencyCurve, chains
from dare_job.decode.model.paged.forward import argmax_tokens
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.decode.verify import rules
from dare_job.decode.verify.result import longest_accepted
from pools.draft import DraftSettings
from pools.index import Index

BATCHES = (1, 32, 128)
CURVE = Path(__file__).parents[3] / "conf/latency/h100-llama-3.1-8b-vllm.json"
_SHAPE, _VOCABULARY, _SEED = "twin", 512, 0
_PROMPTS, _TEXTS = (100, 600), (64, 192)  # tokens, from and to
_DRAFT_MS = 0.01  # of a row's drafting in a step: the time on this machine would make counts vary


@dataclass(frozen=True)
class Workload:
    """Requests, their texts, and the pool of previous texts."""

    requests: list[Request]
    texts: list[np.ndarray]

    @classmethod
    def made_up(cls, batch: int) -> "Workload":
        """Return eight times as many texts as rows, at least 12, with ragged lengths and prompts."""
        rng, count = np.random.default_rng(_SEED), max(12, 8 * batch)
        recorded = texts.made_up(count, _TEXTS[1], _VOCABULARY, _SEED)
        pool = Index.build(recorded.old)
        new = [text[: rng.integers(*_TEXTS)] for text in recorded.new]
        prompts = [rng.integers(2, _VOCABULARY, rng.integers(*_PROMPTS)).astype(np.int32) for _ in new]
        return cls([Request(number, prompt, (pool,), max_new_tokens=len(text))
                    for number, (prompt, text) in enumerate(zip(prompts, new, strict=True))], new)

    def sha256(self) -> str:
        """Return a hash of prompts and texts."""
        digest = hashlib.sha256()
        for request, text in zip(self.requests, self.texts, strict=True):
            digest.update(request.prompt_ids.tobytes() + text.tobytes())
        return digest.hexdigest()[:16]


@dataclass
class Counts(TorchDispatchMode):
    """Counts the forward passes within.

    Attributes
    ----------
    prompt_passes, tree_passes : int
    prompt_shapes : set of int
        Queries of passes over prompts, which are not recorded.
    tree_shapes : set of tuple
        Shapes of passes over trees, each one graph.
    queries, padding : int
        Queries of passes over trees, and padding among them.
    read, needed : int
        Bytes of keys and values that attention over trees reads, and of those that the rows have.
    """

    prompt_passes: int = 0
    tree_passes: int = 0
    prompt_shapes: set = field(default_factory=set)
    tree_shapes: set = field(default_factory=set)
    queries: int = 0
    padding: int = 0
    read: int = 0
    needed: int = 0

    def __post_init__(self):
        super().__init__()
        self._queries, self._pool = 0, None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result, name = function(*args, **(kwargs or {})), function._schema.name
        if name == "aten::embedding":
            self._queries = args[1].numel()
        elif name == "dare_job::text_attention":
            self._attention(*args)
        elif name == "aten::index_select" and args[0].shape[0] == self._pool:
            self.read += result.nbytes  # keys or values of the trees
        return result

    def _attention(self, query, keys, values, starts, lengths, table, low, scale, causal, *_) -> None:
        total = int(starts[-2])
        token = keys.element_size() * (keys.shape[1:].numel() + values.shape[1:].numel())
        self._pool = None if causal else keys.shape[0]
        if not causal:
            text = int(lengths.sum())
            self.read += token * text
            self.needed += token * (text + total)
        if not self._queries:
            return  # another layer of the same pass
        if causal:
            self.prompt_passes += 1
            self.prompt_shapes.add(self._queries)
        else:
            self.tree_passes += 1
            self.tree_shapes.add((self._queries, table.shape))
            self.queries += self._queries
            self.padding += self._queries - total
        self._queries = 0

    def figures(self) -> dict:
        """Return what ``measure`` reports of a batch size."""
        return {"prompt_passes": self.prompt_passes, "tree_passes": self.tree_passes,
                "eager_shapes": len(self.prompt_shapes), "graphs": len(self.tree_shapes),
                "padded_share": round(self.padding / self.queries, 4),
                "kv_ratio": round(self.read / self.needed, 4)}


class _SteadyBudget(AdaptiveBudget):
    """A draft budget that takes no time of this machine into account."""

    def select(self, drafts, draft_ms: float):
        return super().select(drafts, _DRAFT_MS * drafts.rows)

    def record_step(self, rows: int, nodes: int, ms: float) -> None:
        pass


def passes(batch: int, curve: LatencyCurve) -> dict:
    """Write the texts of a batch size and return the counts.

    Raises
    ------
    RuntimeError
        A text differs from the recorded one.
    """
    workload, nodes = Workload.made_up(batch), max_row_nodes(batch, True)
    target = Target(shapes.large(_SHAPE, torch.device("cpu"), torch.float32), check=False, paged=True)
    settings = EngineSettings(max_new_tokens=None, batch_size=batch, nodes=nodes, depth=DEPTH, score="never")
    recorded = RecordedTarget(target, workload.requests, workload.texts)
    engine = Engine(recorded, settings, RetrievalDrafter(DraftSettings(depth=DEPTH)),
                    draft_budget=_SteadyBudget(curve, nodes, target.round_up))
    with Counts() as counts:
        results = {result.id: result for result in engine.run(workload.requests)}
    if wrong := [number for number, text in enumerate(workload.texts)
                 if not np.array_equal(results[number].token_ids, text)]:
        raise RuntimeError(f"batch {batch}: {len(wrong)} texts differ from the recorded ones")
    steps = sum(result.target_steps for result in results.values())
    accepted = sum(result.accepted_tokens for result in results.values()) / steps
    return {"batch": batch, "workload": workload.sha256(), "texts": len(workload.texts),
            "accepted_per_step": round(accepted, 3), **counts.figures()}


class Waits(TorchFunctionMode):
    """Counts calls that would wait for a GPU if their tensors were on it."""

    _READS = {getattr(torch.Tensor, name) for name in (
        "cpu", "item", "tolist", "nonzero", "unique", "masked_select", "__bool__", "__int__", "__float__",
        "__index__")} | {torch.nonzero, torch.unique, torch.masked_select}

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += function in self._READS
        return function(*args, **(kwargs or {}))


def waits(rows: int = 32, rule: str = "strict") -> int:
    """Return how often a step, forward pass, verification and commit, would wait for the device."""
    target = Target(shapes.large(_SHAPE, torch.device("cpu"), torch.float32), check=False, paged=True)
    tree, lengths = chains(rows, max_row_nodes(rows, True) + 1), np.full(rows, 300)
    cache, paths = target.new_cache(rows), np.tile(np.array([0, 2, 3]), (rows, 1))
    strict = rule == "strict"
    epilogue = argmax_tokens if strict else rules.packed(EngineSettings(rule=rule), (), target.device)
    with Waits() as counter:
        values = target.verified(cache, tree, lengths, epilogue)
        nodes = rules.verify_strict_argmax(tree, *values) if strict else rules.unpacked(values)
        longest_accepted(tree, nodes)
        target.commit(cache, lengths, paths, np.full(rows, 2))
    return counter.count


def measure(batches: Sequence[int] = BATCHES) -> dict:
    """Return the counts of all batch sizes, and the largest of them."""
    curve = LatencyCurve.of(json.loads(CURVE.read_text(encoding="utf-8"))["latency_ms"], str(CURVE))
    rows = []
    for batch in batches:
        rows.append(passes(batch, curve))
        print(json.dumps(rows[-1]), flush=True)
    worst = {name: max(row[name] for row in rows) for name in ("eager_shapes", "padded_share", "kv_ratio")}
    return {"rows": rows, **worst, "syncs_per_strict_step": waits()}
