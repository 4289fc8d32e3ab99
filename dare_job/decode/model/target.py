"""The target model: loading, and forward passes over prompts and token trees."""

import inspect
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedModel

from dare_job.decode.model import alibi, loading, masks, selfcheck, support, tree_attention
from dare_job.decode.model.cache import TreeCache, entry_bytes
from dare_job.decode.model.llama_forward import LlamaForward
from dare_job.decode.model.masks import Level
from dare_job.decode.model.merged import MergedProjections
from dare_job.decode.model.paged.attention import READS_PAGES
from dare_job.decode.model.paged.forward import Epilogue, PagedForward
from dare_job.decode.model.paged.inputs import receive, round_up_queries
from dare_job.decode.model.paged.pool import PagedCache, affordable_pages
from dare_job.decode.model.prefix_cache import Prefix, PrefixCache
from dare_job.decode.model.prepacked import PrepackedLayers
from dare_job.decode.model.support import INDEXED
from dare_job.decode.model.tree import PaddedLayout, Tree, in_order, without_gradients


class Target:
    """A causal language model whose cache holds rows of different lengths.

    Parameters
    ----------
    model : PreTrainedModel
        A loaded transformers model.
    check : bool
        Compare a small tree with forward passes of the unchanged model (``selfcheck``).
    paged : bool, optional
        Keep keys and values in pages, and run trees in static shapes. None: on CUDA, recorded as graphs.

    Attributes
    ----------
    traits : Traits
        Mask kinds, sliding window and context of the architecture.
    vocabulary : int
        Tokens with an embedding; a prompt may have no others.
    fused : bool
        Whether the model runs ``tree_attention.tree_sdpa`` rather than its own attention.
    packed : bool
        Whether trees of different sizes run without padding (``PaddedLayout``).
    llama, linear_layers : LlamaForward, and PrepackedLayers or MergedProjections, optional
        Faster passes of Llama-like models on a CPU; of others, prepacked weights, or merged ones on CUDA.
    supports_logits_to_keep : bool
        Whether the model can compute the logits of selected columns only.
    paged : PagedForward, optional
        Forward passes over pages. None: shapes follow the trees.
    prefix_cache : PrefixCache
        Keys and values of common prompt prefixes.
    spare_cache : TreeCache or PagedCache, optional
        Cache of the last run.
    drafts : {"tree", "chain", "none"}
        What a forward pass can verify.
    max_prefill_tokens : int
        Prompt tokens of one forward pass; a single prompt may be longer.
    page_limit : int, optional
        Maximum number of pages of a cache (``share_memory``). None: what fits into the free memory.

    Raises
    ------
    ModelError
        The architecture is not supported (DraftError: ``undrafted.any_target`` may support it).
    """

    drafts = "tree"
    max_prefill_tokens = 4096
    page_limit: int | None = None
    fused = packed = False
    llama: LlamaForward | None = None
    linear_layers: PrepackedLayers | MergedProjections | None = None
    paged: PagedForward | None = None
    spare_cache: TreeCache | PagedCache | None = None

    def __init__(self, model: PreTrainedModel, check: bool = True, paged: bool | None = None):
        self.model = model.eval()
        self.traits = support.traits(model)
        self.vocabulary = model.get_input_embeddings().weight.shape[0]
        self.dtype, self.device = model.dtype, model.device
        self._shapes = selfcheck.cache_shapes(model)
        self._original_attention = tree_attention.original_name(model)
        self._alibi_forward = alibi.by_position(model) if support.uses_alibi(model) else None
        own_attention = self._alibi_forward is not None or INDEXED in self.traits.kinds
        self.fused = not own_attention and tree_attention.enable(model)
        self.prefix_cache = PrefixCache()
        self.supports_logits_to_keep = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.packed = self.fused and self.traits.packs and selfcheck.supports_packed(self)
        cuda = self.device.type == "cuda"
        if self.packed and self.traits.window is None:
            self.llama = selfcheck.llama_forward(self)
        if self.llama is None:
            self.linear_layers = (MergedProjections if cuda else PrepackedLayers)(model)
        if cuda:  # cuDNN's attention builds a plan for each new shape
            torch.backends.cuda.enable_cudnn_sdp(False)
        if self.packed and (cuda if paged is None else paged):
            selfcheck.enable_paged(self, PagedForward(
                model, self.traits, cuda, cuda and self.dtype != torch.float32, self.supports_logits_to_keep))
        if check:
            selfcheck.check_logits(self)

    @classmethod
    def load(cls, path: str | Path, dtype: str = "float32", device: str = "auto",
             trust_remote_code: bool = False, check: bool = True,
             make: Callable[..., "Target"] | None = None) -> "Target":
        """Load a model.

        Parameters
        ----------
        path : str or Path
            Local folder or hub name.
        dtype : {"float32", "bfloat16", "float16"}
        device : {"auto", "cpu", "cuda"}
        trust_remote_code, check : bool
            ``check`` as in the constructor.
        make : callable, optional
            Makes the target of the loaded model and ``check``. None: the constructor.

        Raises
        ------
        ModelError
            The folder, a file or a weight is missing or damaged, or the model is not supported.
        ConfigError
            The device is not available.
        """
        place = loading.device(device)
        if place.type == "cuda" and dtype == "float32":
            torch.backends.cuda.matmul.allow_tf32 = False
        return (make or cls)(loading.load(path, dtype, trust_remote_code, place), check)

    @property
    def generation_config(self) -> GenerationConfig:
        """Generation config of the loaded model."""
        return self.model.generation_config

    @property
    def logit_columns(self) -> int:
        """Number of logits: the head may be wider than the embedding, and its weights released."""
        head = self.model.get_output_embeddings()
        return self.vocabulary if head is None else getattr(head, "out_features", len(head.weight))

    @property
    def weight_bytes(self) -> int:
        """Bytes of the model's weights, shared ones counted once, without prepacked copies."""
        return sum(weight.nbytes for weight in (*self.model.parameters(), *self.model.buffers()))

    @property
    def cache_bytes(self) -> tuple[int, int]:
        """Bytes of a token's keys and values, and of a row beside them."""
        return entry_bytes(filter(None, self._shapes), self.dtype), 0

    @property
    def round_up(self) -> Callable[[int], int] | None:
        """Queries that a forward pass over trees computes for so many; None: exactly as many."""
        return round_up_queries if self.paged is not None else None

    def acquire_cache(self, slots: int) -> TreeCache | PagedCache:
        """Return ``spare_cache`` with its recorded graphs if it has this many slots, else a new cache."""
        cache, self.spare_cache = self.spare_cache, None
        if cache is not None and cache.slots == slots:
            return cache
        del cache  # frees its memory first
        return self.new_cache(slots)

    def new_cache(self, slots: int) -> TreeCache | PagedCache:
        """Return an empty cache for this many rows."""
        if self.paged is not None:
            limit = self.page_limit or affordable_pages(self.device, self.cache_bytes[0])
            return PagedCache(self._shapes, slots, self.dtype, self.device, limit, not READS_PAGES)
        return TreeCache(self._shapes, slots, self.dtype, self.device)

    def release_weights(self) -> None:
        """Free weights that forward passes do not need; ``model`` then works in ``as_transformers`` only."""
        if self.llama:
            self.llama.release()

    @contextmanager
    def as_transformers(self):
        """Run ``model`` with its original attention and linear layers, for comparison."""
        linear = self.llama.restored() if self.llama else self.linear_layers.off()
        with tree_attention.original(self.model, self._original_attention), linear:
            yield self.model

    @without_gradients
    def prefill(self, cache: TreeCache, slots: np.ndarray, ids: np.ndarray, lengths: np.ndarray,
                submitted: np.ndarray | None = None, prefix: Prefix | None = None) -> torch.Tensor:
        """Read prompts, and tokens to verify after them, into the cache.

        Parameters
        ----------
        slots : int64 (F,)
        ids : int64 (F, P)
            Padded on the right.
        lengths : int64 (F,)
            Tokens of each prompt.
        submitted : int64 (F,), optional
            Tokens to verify after each prompt. None: none.
        prefix : Prefix, optional
            Cached prefix of all prompts, which are longer. Its tokens are not read again.

        Returns
        -------
        float (T, V)
            Logits of each row's last prompt token and of its submitted tokens, row after row.
        """
        rows, longest = ids.shape
        if self.paged is not None:
            return self.paged.prompts(cache, slots, ids, lengths, submitted, prefix.entries if prefix else ())
        if self.traits.max_columns is not None and longest > self.traits.max_columns:
            if rows > 1:
                return self._prefill_alone(cache, slots, ids, lengths, submitted, prefix)
            prefix = prefix if prefix and len(prefix) <= self.traits.max_columns else None
        start, entries = (len(prefix), prefix.entries) if prefix else (0, ())
        cache.begin_prompts(torch.from_numpy(slots).to(self.device), longest, entries)
        causal = self.fused and not start and (self.traits.window is None or self.traits.window >= longest)
        mask = None if causal else masks.prompt(self.traits, rows, start, longest, self.dtype, self.device)
        positions = torch.arange(start, longest, device=self.device).expand(rows, -1)
        counts = np.ones(rows, np.int64) if submitted is None else submitted + 1
        row = np.repeat(np.arange(rows), counts)
        wanted = (lengths - start - 1 - np.cumsum(counts) + counts)[row] + np.arange(len(row))  # (T,) columns
        uncached = torch.from_numpy(ids[:, start:]).to(self.device)
        if self.llama is not None:
            kept = torch.from_numpy(row * (longest - start) + wanted)
            return self._forward(uncached, positions, mask, cache, logits_to_keep=kept)[0]
        needed, columns = np.unique(wanted, return_inverse=True)
        needed = torch.from_numpy(needed).to(self.device)
        options = {"logits_to_keep": needed} if self.supports_logits_to_keep else {}
        logits = self._forward(uncached, positions, mask, cache, **options)
        return logits[torch.from_numpy(row), torch.from_numpy(columns if options else wanted)]

    def _prefill_alone(self, cache: TreeCache, slots: np.ndarray, ids: np.ndarray, lengths: np.ndarray,
                       submitted: np.ndarray | None, prefix: Prefix | None) -> torch.Tensor:
        """Run ``prefill`` row by row; see ``_read_root``."""
        ends = lengths if submitted is None else lengths + submitted
        rows = [slice(row, row + 1) for row in range(len(slots))]
        return torch.cat([self.prefill(cache, slots[row], ids[row, : ends[row][0]], lengths[row],
                                       None if submitted is None else submitted[row], prefix)
                          for row in rows])

    @without_gradients
    def forward(self, cache: TreeCache, tree: Tree, lengths: np.ndarray) -> torch.Tensor:
        """Run the target over the trees of the first R rows.

        Parameters
        ----------
        cache : TreeCache
        tree : Tree
            On the target's device.
        lengths : int64 (R,)
            Tokens before each row's root. Under ``traits.max_columns``, a row with drafts must leave as many
            columns as the widest row has queries, and a row without drafts one.

        Returns
        -------
        float (T, V)
            Logits of every node.
        """
        if self.paged is not None:
            level = masks.level_of_trees(tree.on_cpu, lengths)
            return self.paged.level(cache, level)[: len(tree)].clone()
        if self.traits.max_columns is not None and lengths.max() + tree.width > self.traits.max_columns:
            return self._forward_in_parts(cache, tree, lengths)
        layout = None if tree.uniform else PaddedLayout.of(tree, lengths)
        cache.begin_trees(tree, lengths, None if self.packed else layout)
        positions, mask = masks.tree_anywhere(self.traits, tree, layout, lengths, cache.column, self.dtype,
                                              self.fused)
        return self._read(cache, tree, layout, positions, mask)

    def _forward_in_parts(self, cache: TreeCache, tree: Tree, lengths: np.ndarray) -> torch.Tensor:
        """Run ``forward`` as several passes if the longest row and the widest tree exceed ``max_columns``.

        The first pass has the rows with enough columns for the widest tree, the second the others' roots.
        Each row that is longer than ``max_columns`` follows alone.
        """
        limit, parts = self.traits.max_columns, []
        late, beyond = lengths + tree.width > limit, lengths >= limit
        for rows in (~late, late & ~beyond):
            if rows.any():
                queries = np.flatnonzero(np.repeat(rows, np.diff(tree.starts)))
                parts.append((queries, self.extend(cache, masks.level_of_trees(tree, lengths, rows))))
        parts += [(tree.starts[row : row + 1], self._read_root(cache, tree, row, int(lengths[row])))
                  for row in np.flatnonzero(beyond)]
        return in_order(parts)

    def _read_root(self, cache: TreeCache, tree: Tree, row: int, length: int) -> torch.Tensor:
        """Return the root's logits (1, V) from a forward pass with the columns that ``generate`` has.

        Which of several tokens with equal scores an index selects may depend on the number of columns.
        """
        cache.begin_equal(slice(row, row + 1), length, length + 1)
        mask = masks.prompt(self.traits, 1, length, length + 1, self.dtype, self.device)
        start = int(tree.starts[row])
        positions = torch.full((1, 1), length, device=self.device)
        return self._forward(tree.tokens[start : start + 1][None], positions, mask, cache)[0]

    def _read(self, cache: TreeCache, tree: Tree, layout: PaddedLayout | None, positions: torch.Tensor,
              mask, **options) -> torch.Tensor:
        """Run a forward pass that the cache is prepared for; return logits (T, V).

        ``options`` of the model's forward function apply to packed queries only.
        """
        shape = len(tree.starts) - 1, tree.width
        if layout is None:
            return self._forward(tree.tokens.view(shape), positions.view(shape), mask, cache).flatten(0, 1)
        if self.packed:
            ids, positions = tree.tokens.unsqueeze(0), positions.unsqueeze(0)
            logits = tree_attention.run_packed(layout, self._forward, ids, positions, mask, cache, **options)
            return logits.squeeze(0)
        tokens, positions = (x[layout.queries].view(shape) for x in (tree.tokens, positions))
        return layout.unpad(self._forward(tokens, positions, mask, cache))

    @without_gradients
    def extend(self, cache: TreeCache, level: Level, wanted: np.ndarray | None = None) -> torch.Tensor:
        """Run the target over one level of trees, after nodes that earlier passes read.

        Parameters
        ----------
        cache : TreeCache
        level : Level
        wanted : int64 (W,), optional
            Nodes whose logits are returned, ascending. None: all.

        Returns
        -------
        float (T, V) or (W, V)
        """
        if self.paged is not None:
            logits = self.paged.level(cache, level)[: len(level.tokens)]
            return logits.clone() if wanted is None else logits[cache.on_device(wanted)]
        tree = level.queries().to(self.device)
        partial = wanted is not None and len(wanted) < len(tree)
        few_logits = partial and self.packed and self.supports_logits_to_keep
        layout = None if tree.uniform and not few_logits else PaddedLayout.of(tree, level.before)
        cache.begin_trees(tree, level.before, None if self.packed else layout)
        columns = cache.column + tree.width
        positions, mask = masks.level_masks(self.traits, level, tree.width, columns, self.dtype,
                                            self.device)
        if not partial:
            return self._read(cache, tree, layout, positions, mask)
        wanted = torch.from_numpy(wanted).to(self.device)
        if few_logits:
            return self._read(cache, tree, layout, positions, mask, logits_to_keep=wanted)
        return self._read(cache, tree, layout, positions, mask)[wanted]

    def verified(self, cache: PagedCache, tree: Tree, lengths: np.ndarray, epilogue: Epilogue,
                 strict: np.ndarray | None = None) -> np.ndarray:
        """Run ``forward`` for what verification needs of the logits; waits once; only with ``paged``.

        Parameters
        ----------
        cache, tree, lengths
            As in ``forward``, with the tree on the CPU.
        epilogue : callable
            As in ``PagedForward.level``; returns int32 (N, T).
        strict : bool (T,), optional
            As in ``Inputs``.

        Returns
        -------
        int32 (N, T)
        """
        output = self.paged.level(cache, masks.level_of_trees(tree, lengths), epilogue, tree.host[1], strict)
        return receive(output)[:, : len(tree)]

    def commit(self, cache: TreeCache, lengths: np.ndarray, paths: np.ndarray, counts: np.ndarray) -> None:
        """Move the cache entries of the accepted nodes directly after each row's root.

        Parameters
        ----------
        cache : TreeCache
        lengths : int64 (R,)
            As in ``forward``.
        paths : int64 (R, D)
            Queries of the accepted path, root first.
        counts : int64 (R,)
            Accepted nodes after the root.
        """
        if paths.shape[1] > 1:  # roots are in place already
            cache.compact(lengths, paths, counts)

    def max_submitted(self, prompt: int) -> int | None:
        """Maximum tokens of all rows together that a pass can verify after prompts of this length.

        None: unlimited.
        """
        return None

    def commit_prefill(self, cache: TreeCache, counts: np.ndarray) -> None:
        """Keep ``counts`` (F,) tokens after each of the prompts that were read last: they are in place."""

    def _forward(self, ids, positions, mask, cache, **options) -> torch.Tensor:
        if self.llama is not None:
            return self.llama(ids, positions, mask, cache, **options)
        return (self._alibi_forward or self.model)(input_ids=ids, position_ids=positions, attention_mask=mask,
                                                   past_key_values=cache, use_cache=True, **options).logits
