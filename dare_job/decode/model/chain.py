"""Models with recurrent or convolutional states, which verify chains of draft tokens.

The branches of a tree cannot share a state, so a row's drafts are one path. The state after each of its
tokens is recorded, and the one after the last accepted token is kept.
"""

import inspect
import logging
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel, cache_utils

from dare_job.decode.model import griffin, masks, recurrence, selfcheck, support, tree_attention
from dare_job.decode.model.cache import entry_bytes
from dare_job.decode.model.prefix_cache import NoPrefixes
from dare_job.decode.model.prepacked import PrepackedLayers
from dare_job.decode.model.state_cache import StateCache, StateShapes
from dare_job.decode.model.support import DraftError
from dare_job.decode.model.target import Target
from dare_job.decode.model.tree import Tree, in_order, without_gradients

_LOG = logging.getLogger("dare_job")
_LAYERS = tuple(getattr(cache_utils, name) for name in (
    "DynamicLayer", "DynamicSlidingWindowLayer", "DynamicIndexedLayer", "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer", "LinearAttentionAndSlidingWindowAttentionLayer", "DummyLayer",
) if hasattr(cache_utils, name))  # transformers 5.17 has no DummyLayer
_NO_MASKS = dict.fromkeys(support.STATES)
_STATE_BYTES = 2**28  # of recurrent states, recorded by a forward pass over previous texts


class ChainTarget(Target):
    """A causal language model whose layers keep states.

    Parameters
    ----------
    model : PreTrainedModel
        A loaded transformers model.
    check : bool
        Compare chains with forward passes of the unchanged model.

    Attributes
    ----------
    grouped : bool
        Whether only rows of equal length share a forward pass: where the model's code derives distances from
        columns of the cache.

    Raises
    ------
    DraftError
        The model's states cannot be restored, or it gives other logits over a chain.
    ModelError
        The model is not causal, or its logits are NaN.
    """

    drafts = "chain"

    def __init__(self, model: PreTrainedModel, check: bool = True):
        self.model = model.eval()
        self.traits = support.chain_traits(model)
        self.vocabulary = model.get_input_embeddings().weight.shape[0]
        self.dtype, self.device = model.dtype, model.device
        arguments = inspect.signature(model.forward).parameters
        self.supports_logits_to_keep = "logits_to_keep" in arguments
        self._cache_name = "cache_params" if "cache_params" in arguments else "past_key_values"
        self._has_positions = "position_ids" in arguments
        self._has_griffin = griffin.enable(model)
        self._shapes = _state_shapes(model, self._cache_name)
        self._has_attention = any(self._shapes.entries)
        self._original_attention = tree_attention.original_name(model)
        # Indexes read the mask, which ``tree_sdpa`` does not always have.
        if self._has_attention and not any(len(shape or ()) > 3 for shape in self._shapes.entries):
            self.fused = tree_attention.enable(model)
        self._recurrences = recurrence.find(model)
        self.prefix_cache, self.linear_layers = NoPrefixes(), PrepackedLayers(model)
        self.grouped = not support.pads(model)
        if check:
            self._check()

    def _check(self) -> None:
        try:
            selfcheck.check_chains(self)
        except DraftError:
            if self.grouped:
                raise
            self.grouped = True
            selfcheck.check_chains(self)

    @property
    def cache_bytes(self) -> tuple[int, int]:
        """Bytes of one token's keys and values, and of a row's states."""
        entries = entry_bytes(filter(None, self._shapes.entries), self.dtype)
        return entries, sum(state.nbytes for state in self._states)

    @property
    def _states(self) -> list[torch.Tensor]:
        """States of a row."""
        return [*self._shapes.convolutions.values(), *self._shapes.recurrences.values()]

    def max_submitted(self, prompt: int) -> int:
        """As ``Target.max_submitted``, by the bytes of the states that are recorded.

        It is 0 if the prompt is shorter than a state of token ids, whose padding only the model knows.
        """
        ids = [state.shape[-1] for state in self._states if not state.is_floating_point()]
        recorded = any(recurrence.records for recurrence in self._recurrences)
        recurrent = sum(state.nbytes for state in self._shapes.recurrences.values()) if recorded else 0
        return 0 if prompt < max(ids, default=0) else _STATE_BYTES // max(1, recurrent)

    def new_cache(self, slots: int) -> StateCache:
        """Return an empty cache for this many rows."""
        return StateCache(self._shapes, slots, self.dtype, self.device)

    @contextmanager
    def as_transformers(self):
        """Run ``model`` with its original layers, for comparison."""
        with super().as_transformers(), griffin.off(self.model) if self._has_griffin else nullcontext():
            yield self.model

    def prefill(self, cache: StateCache, slots: np.ndarray, ids: np.ndarray, lengths: np.ndarray,
                submitted: np.ndarray | None = None, prefix=None) -> torch.Tensor:
        """Read prompts, and tokens to verify after them, as ``Target.prefill``.

        There is a forward pass for each length of prompts, because padding changes states. States are kept by
        ``commit_prefill``.

        Parameters
        ----------
        slots, lengths : int64 (R,)
            Slot of each row, and number of its prompt's tokens.
        ids : int64 (R, W)
            Prompts and submitted tokens, padded on the right.
        submitted : int64 (R,), optional
            Number of tokens to verify after each prompt.

        Returns
        -------
        (T, V)
            Logits of each row's last prompt token and its submitted tokens, row by row.
        """
        counts = (np.zeros_like(lengths) if submitted is None else submitted) + 1
        ends, parts = np.cumsum(counts), []
        cache.begin()
        for length in np.unique(lengths):
            rows = np.flatnonzero(lengths == length)
            cache.expect_prompts(rows, length.item())
            longest = length + counts[rows].max() - 1
            part = super().prefill(cache, slots[rows], ids[rows, :longest], lengths[rows], counts[rows] - 1)
            places = np.concatenate([np.arange(ends[row] - counts[row], ends[row]) for row in rows])
            parts.append((places, part))
        return in_order(parts)

    def commit_prefill(self, cache: StateCache, counts: np.ndarray) -> None:
        """Keep the states after prompts and ``counts`` int64 (R,) accepted tokens of each, as
        ``Target.commit_prefill``.
        """
        cache.commit_states(counts)

    def forward(self, cache: StateCache, tree: Tree, lengths: np.ndarray) -> torch.Tensor:
        """Run the model over the chains of the first R rows, after ``lengths`` int64 (R,) tokens of each.

        Returns
        -------
        (T, V)
            Logits of the T nodes of ``tree``, as of ``Target.forward``.

        Raises
        ------
        DraftError
            The model's code gives no state after each token of a chain.
        """
        assert tree.depth == tree.width - 1, "a row has more than one path of drafts"
        cache.begin()
        if not self.grouped:
            return super().forward(cache, tree, lengths)
        return in_order([self._read_rows(cache, tree, np.flatnonzero(lengths == length), length.item())
                         for length in np.unique(lengths)])

    @without_gradients
    def _read_rows(self, cache: StateCache, tree: Tree, rows: np.ndarray,
                   length: int) -> tuple[np.ndarray, torch.Tensor]:
        """Run the model over the chains of some rows after ``length`` tokens; return their queries int64 (T,)
        and logits (T, V). Shorter chains are padded with their root.
        """
        starts, counts = tree.starts[rows], np.diff(tree.starts)[rows]
        columns = np.arange(counts.max())
        valid = columns < counts[:, None]
        queries = np.where(valid, starts[:, None] + columns, starts[:, None])
        width, count = len(columns), len(rows)
        first = rows[0].item()
        together = rows[-1] - first == count - 1
        slots = slice(first, first + count) if together else torch.from_numpy(rows).to(self.device)
        cache.begin_rows(slots, rows, length, width)
        mask = None
        if not self.fused or width > 1 or self.traits.window is not None:
            mask = masks.prompt(self.traits, count, length, length + width, self.dtype, self.device)
        positions = torch.arange(length, length + width, device=self.device).expand(count, -1)
        ids = torch.from_numpy(tree.on_cpu.host[0][queries]).to(self.device)
        logits = self._forward(ids, positions, mask, cache)
        return queries[valid], logits[torch.from_numpy(valid).to(self.device)]

    def commit(self, cache: StateCache, lengths: np.ndarray, paths: np.ndarray, counts: np.ndarray) -> None:
        """Keep the states after ``counts`` int64 (R,) accepted nodes of each row, as ``Target.commit``.

        The entries of a chain are in place, so ``lengths`` and ``paths`` have no effect.
        """
        cache.commit_states(counts)

    def _forward(self, ids, positions, mask, cache, **options) -> torch.Tensor:
        options[self._cache_name] = cache
        if self._has_positions:
            options["position_ids"] = positions
        if self._has_attention:
            options["attention_mask"] = {**_NO_MASKS, **mask} if isinstance(mask, dict) else mask
        if not cache.records:
            return self.model(input_ids=ids, use_cache=True, **options).logits
        with recurrence.by_token(self._recurrences, cache.recorder):
            logits = self.model(input_ids=ids, use_cache=True, **options).logits
        if not cache.complete:
            raise DraftError(type(self.model).__name__, "its code gives no state after each token of a chain")
        return logits


def _state_shapes(model: PreTrainedModel, cache_name: str) -> StateShapes:
    """Return the entries and states of a model's layers, by a forward pass.

    Raises
    ------
    DraftError
        The model has no states, or other layers beside them.
    """
    name, cache = type(model).__name__, DynamicCache(config=model.config.get_text_config(decoder=True))
    ids = torch.zeros((1, 2), dtype=torch.long, device=model.device)
    try:
        with torch.inference_mode():
            model(input_ids=ids, use_cache=True, **{cache_name: cache})
    except selfcheck.MODEL_ERRORS as error:
        _LOG.debug("the cache of %s: %s", name, error)
        raise DraftError(name, "it does not run with the usual cache of states") from error
    if other := {type(layer).__name__ for layer in cache.layers if type(layer) not in _LAYERS}:
        raise DraftError(name, f"its cache has layers of type {', '.join(sorted(other))}")
    states = [{(at, number): state for at, layer in enumerate(cache.layers)
               for number, state in getattr(layer, kind, {}).items() if state is not None}
              for kind in ("conv_states", "recurrent_states")]
    if not any(states):
        raise DraftError(name, "its layers keep no state in their cache")
    return StateShapes([selfcheck.entry_shape(layer) for layer in cache.layers], *states)
