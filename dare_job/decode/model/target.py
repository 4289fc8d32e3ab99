"""The target model: loading, and its forwards over prompts and token trees."""

import inspect
from contextlib import contextmanager
from functools import wraps
from pathlib import Path

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedModel

from dare_job.decode.model import attention, loading, masks, selfcheck, support
from dare_job.decode.model import masks as model_masks
from dare_job.decode.model.cache import TreeCache
from dare_job.decode.model.cuda_graphs.forward import StaticForward
from dare_job.decode.model.masks import Level
from dare_job.decode.model.prefix_cache import Prefix, PrefixCache
from dare_job.decode.model.prepacked import PrepackedLayers
from dare_job.decode.model.tree import PaddedLayout, Tree


def _without_gradients(method):
    """``torch.inference_mode``, entered where the caller has not: it takes as long as a part of a step."""
    entering = torch.inference_mode()(method)

    @wraps(method)
    def call(*args, **kwargs):
        return (method if torch.is_inference_mode_enabled() else entering)(*args, **kwargs)

    return call


class Target:
    """A causal language model whose cache holds rows of different lengths.

    model        the transformers model, in evaluation mode
    traits       ``support.Traits``: mask kinds, window, context
    vocabulary   tokens that have an embedding; a prompt may hold no other
    fused        whether it runs our attention, or must keep its own
    in_line      whether uneven trees go through it without padding (``layout``)
    packing      its linear layers on a CPU
    keeps_logits whether it computes logits for chosen columns alone
    static       its forwards over trees in fixed shapes, on a GPU; None: shapes follow the trees
    prefixes     what prompts of late began with, read once
    """

    def __init__(self, model: PreTrainedModel, check: bool = True, static: bool | None = None):
        """Wrap a loaded model. Raises ModelError naming an architecture that is not supported.

        ``check`` compares one small tree with plain forwards of the same model, whatever its name says.
        ``static``: forwards of fixed shape; None: on CUDA, where they are recorded as graphs.
        """
        self.model = model.eval()
        self.traits = support.traits(model)
        self.vocabulary = model.get_input_embeddings().weight.shape[0]
        self.dtype, self.device = model.dtype, model.device
        self._shapes = selfcheck.cache_shapes(model)
        self._original_attention = attention.original_name(model)
        self.fused = attention.enable(model)
        self.prepacked = PrepackedLayers(model)
        self.prefix_cache = PrefixCache()
        self.supports_logits_to_keep = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.static: StaticForward | None = None
        self.spare_cache: TreeCache | None = None
        self.packed = self.fused and selfcheck.supports_packed(self)
        cuda = self.device.type == "cuda"
        if self.packed and (cuda if static is None else static):
            selfcheck.enable_static(self, StaticForward(model, self.traits, record=cuda,
                                                    fuse=cuda and self.dtype != torch.float32))
        if check:
            selfcheck.check_logits(self)

    @classmethod
    def load(cls, path: str | Path, dtype: str = "float32", device: str = "auto",
             trust_remote_code: bool = False, check: bool = True) -> "Target":
        """Load a local folder or a hub name.

        dtype   "float32", "bfloat16" or "float16"; device "auto", "cpu" or "cuda".
        Raises ModelError: the folder, a weight file or a weight is missing or damaged, it is no causal
        language model, or the architecture is not supported; ConfigError: the device is not there.
        """
        place = loading.device(device)
        model = loading.load(path, dtype, trust_remote_code)
        if place.type == "cuda" and dtype == "float32":
            torch.backends.cuda.matmul.allow_tf32 = False
        return cls(model.to(place), check)

    @property
    def generation_config(self) -> GenerationConfig:
        return self.model.generation_config

    def acquire_cache(self, slots: int) -> TreeCache:
        """The cache that the last engine left in ``spare``, with the graphs that were recorded for it, where
        it has as many slots; else a new one.
        """
        cache, self.spare_cache = self.spare_cache, None
        return cache if cache is not None and cache.slots == slots else self.new_cache(slots)

    def new_cache(self, slots: int) -> TreeCache:
        """An empty cache for this many rows."""
        return TreeCache(self._shapes, slots, self.dtype, self.device)

    @contextmanager
    def as_transformers(self):
        """Context in which ``.model`` runs as transformers loaded it, for comparison."""
        with attention.original(self.model, self._original_attention), self.prepacked.off():
            yield self.model

    @_without_gradients
    def prefill(self, cache: TreeCache, slots: np.ndarray, ids: np.ndarray, lengths: np.ndarray,
                scored: np.ndarray | None = None, prefix: Prefix | None = None) -> torch.Tensor:
        """Prompts, and what is to be scored behind them, into the cache.

        slots (F,), ids int64 (F, P) padded on the right, lengths (F,) of the prompts, scored (F,) tokens
        behind them (None: none) -> logits (T, V): of each row's last prompt token and its scored ones, row
        after row. All prompts begin with the ``prefix`` and are longer; its tokens are not read again.
        """
        rows, longest = ids.shape
        start, entries = (len(prefix), prefix.entries) if prefix else (0, ())
        cache.begin_prompts(torch.from_numpy(slots).to(self.device), longest, entries)
        plain = self.fused and not start and (self.traits.window is None or self.traits.window >= longest)
        mask = None if plain else masks.prompt(self.traits, rows, start, longest, self.dtype, self.device)
        positions = torch.arange(start, longest, device=self.device).expand(rows, -1)
        counts = np.ones(rows, np.int64) if scored is None else scored + 1
        row = np.repeat(np.arange(rows), counts)
        wanted = (lengths - start - 1 - np.cumsum(counts) + counts)[row] + np.arange(len(row))  # (T,) columns
        kept, columns = np.unique(wanted, return_inverse=True)
        keep = {}
        if self.supports_logits_to_keep:
            keep["logits_to_keep"] = torch.from_numpy(kept).to(self.device)
        rest = torch.from_numpy(ids[:, start:]).to(self.device)
        logits = self._forward(rest, positions, mask, cache, **keep)
        if rows == 1 and keep:  # all that was computed is wanted
            return logits[0]
        return logits[torch.from_numpy(row), torch.from_numpy(columns if keep else wanted)]

    @_without_gradients
    def forward(self, cache: TreeCache, tree: Tree, lengths: np.ndarray) -> torch.Tensor:
        """Logits (T, V) of every node of the trees of the first R rows.

        tree on the target's device; lengths int64 (R,): tokens before each row's root. Of
        ``traits.max_columns`` a row with drafts must leave as many as the widest row has queries, another
        row one.
        """
        answer = self._answer(cache, tree, lengths)
        if answer is not None:
            return answer.logits
        if self.traits.max_columns is not None and lengths.max() + tree.width > self.traits.max_columns:
            return self._in_turns(cache, tree, lengths)
        layout = None if tree.uniform else PaddedLayout.of(tree)
        cache.begin_trees(tree, lengths, None if self.packed else layout)
        positions, mask = self._positions_and_mask(tree, layout, lengths, cache.column)
        return self._read(cache, tree, layout, positions, mask)

    def _in_turns(self, cache: TreeCache, tree: Tree, lengths: np.ndarray) -> torch.Tensor:
        """The same in two forwards where one would read more columns than there are, as far as the longest
        row with the widest tree: of the rows that have columns for such a tree, and of the others' roots.
        """
        late, logits = lengths + tree.width > self.traits.max_columns, None
        for rows in (~late, late):
            if rows.any():
                queries = torch.from_numpy(np.repeat(rows, np.diff(tree.starts))).to(self.device)
                found = self.extend(cache, model_masks.level_of_trees(tree, lengths, rows))
                logits = found.new_empty((len(tree), found.shape[1])) if logits is None else logits
                logits[queries] = found
        return logits

    def _read(self, cache: TreeCache, tree: Tree, layout: PaddedLayout | None, positions: torch.Tensor,
              mask, **options) -> torch.Tensor:
        """Logits (T, V) of the queries of a forward that the cache is ready for.

        options: of the model's forward, for queries in line
        """
        shape = len(tree.starts) - 1, tree.width
        if layout is None:
            return self._forward(tree.tokens.view(shape), positions.view(shape), mask, cache).flatten(0, 1)
        if self.packed:
            in_line = tree.tokens.unsqueeze(0), positions.unsqueeze(0)
            return attention.run_packed(layout, self._forward, *in_line, mask, cache, **options).squeeze(0)
        tokens, positions = (x[layout.queries].view(shape) for x in (tree.tokens, positions))
        return layout.unpad(self._forward(tokens, positions, mask, cache))

    @_without_gradients
    def extend(self, cache: TreeCache, level: Level, wanted: np.ndarray | None = None) -> torch.Tensor:
        """Logits (T, V) of nodes behind a text and nodes that earlier forwards read.

        wanted  int64 (W,), ascending: of these nodes alone (W, V); None: of all
        """
        tree = level.queries().to(self.device)
        few = wanted is not None and len(wanted) < len(tree)
        keep = few and self.packed and self.supports_logits_to_keep
        layout = None if tree.uniform and not keep else PaddedLayout.of(tree)
        cache.begin_trees(tree, level.before, None if self.packed else layout)
        columns = cache.column + tree.width
        positions, mask = model_masks.level(
            self.traits, level, tree.width, columns, self.dtype, self.device
        )
        if not few:
            return self._read(cache, tree, layout, positions, mask)
        wanted = torch.from_numpy(wanted).to(self.device)
        if keep:
            return self._read(cache, tree, layout, positions, mask, logits_to_keep=wanted)
        return self._read(cache, tree, layout, positions, mask)[wanted]

    def _positions_and_mask(self, tree: Tree, layout: PaddedLayout | None, lengths: np.ndarray, longest: int):
        """int64 (T,), and the mask; None where every row sees every column."""
        if self.fused and tree.width == 1 and self.traits.window is None and lengths.min() == longest:
            return torch.from_numpy(lengths).to(self.device), None
        columns = longest + tree.width
        if self.device.type == "cpu":
            return masks.tree_on_cpu(self.traits, tree, lengths, columns, self.dtype)
        before = torch.from_numpy(lengths).to(self.device)
        positions = tree.depths + (before if tree.width == 1 else before[tree.rows])
        return positions, masks.tree(self.traits, layout, tree.ancestors, tree.depths, before, columns,
                                     self.dtype)

    def argmax_tokens(self, cache: TreeCache, tree: Tree, lengths: np.ndarray) -> tuple | None:
        """The same forward where nothing but first choices is wanted: one wait for the device.

        Arguments as in ``forward``, the tree on the CPU -> (int64 (T,), bool (T,): its logit is a number), on
        the host. None, and nothing done, where the forward is not of fixed shape.
        """
        answer = self._answer(cache, tree, lengths)
        if answer is None:
            return None
        choices, finite = answer.argmax.cpu().numpy()
        return choices, finite.astype(np.bool_)

    def _answer(self, cache: TreeCache, tree: Tree, lengths: np.ndarray):
        """A static forward's; None where there is none, or it turns out that there cannot be."""
        if self.static is None:
            return None
        answer = self.static(cache, tree.on_cpu, lengths)
        if answer is None:
            self.static = None
        return answer

    def commit(self, cache: TreeCache, lengths: np.ndarray, paths: np.ndarray, counts: np.ndarray) -> None:
        """Put the accepted nodes of each row behind its root.

        lengths (R,) as in ``forward``; paths (R, D) queries, the root first; counts (R,): those behind it.
        """
        if paths.shape[1] == 1:  # roots stand where they belong
            return
        if self.device.type == "cpu":
            cache.compact(lengths, paths, counts)
            return
        offsets = np.arange(paths.shape[1])
        targets = lengths[:, None] + offsets
        sources = np.where(offsets <= counts[:, None], lengths[:, None] + paths, targets)
        rows = np.flatnonzero((sources != targets).any(1))
        if len(rows):
            cache.move_entries(rows, sources[rows], targets[rows])

    def _forward(self, ids, positions, mask, cache, **options) -> torch.Tensor:
        return self.model(input_ids=ids, position_ids=positions, attention_mask=mask, past_key_values=cache,
                          use_cache=True, **options).logits
