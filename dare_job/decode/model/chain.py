"""Models with recurrent or convolutional states, which verify chains of draft tokens.

The branches of a tree cannot share a state, so a row's drafts are one path. The state after each of its
tokens is recorded, and the one after the last accepted token is kept.
"""

import inspect

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import (
    DummyLayer,
    DynamicLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

from dare_job.decode.model import recurrence, selfcheck, support, tree_attention
from dare_job.decode.model.cache import entry_bytes
from dare_job.decode.model.prefix_cache import NoPrefixes
from dare_job.decode.model.prepacked import PrepackedLayers
from dare_job.decode.model.state_cache import StateCache, StateShapes
from dare_job.decode.model.support import DraftError
from dare_job.decode.model.target import Target
from dare_job.decode.model.tree import Tree

_LAYERS = DynamicLayer, LinearAttentionLayer, LinearAttentionAndFullAttentionLayer, DummyLayer


class ChainTarget(Target):
    """A causal language model whose layers keep states.

    Parameters
    ----------
    model : PreTrainedModel
        A loaded transformers model.
    check : bool
        Compare chains with forward passes of the unchanged model.

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
        self._shapes = _state_shapes(model, self._cache_name)
        self._original_attention = tree_attention.original_name(model)
        if self._shapes.attention:
            self.fused = tree_attention.enable(model)
        self._recurrences = recurrence.find(model)
        self.prefix_cache, self.prepacked = NoPrefixes(), PrepackedLayers(model)
        if check:
            selfcheck.check_chains(self)

    @property
    def cache_bytes(self) -> tuple[int, int]:
        """Bytes of one token's keys and values, and of a row's states."""
        states = (*self._shapes.convolutions.values(), *self._shapes.recurrences.values())
        return entry_bytes(self._shapes.entries, self.dtype), sum(state.nbytes for state in states)

    def new_cache(self, slots: int) -> StateCache:
        """Return an empty cache for this many rows."""
        return StateCache(self._shapes, slots, self.dtype, self.device)

    def prefill(self, cache: StateCache, slots: np.ndarray, ids: np.ndarray, lengths: np.ndarray,
                submitted: np.ndarray | None = None, prefix=None) -> torch.Tensor:
        """Read prompts, as ``Target.prefill``, in a forward pass for each length: padding changes states.

        Nothing is submitted after them.
        """
        logits = None
        for length in np.unique(lengths):
            rows = np.flatnonzero(lengths == length)
            part = super().prefill(cache, slots[rows], ids[rows, :length], lengths[rows])
            logits = part.new_empty((len(slots), part.shape[1])) if logits is None else logits
            logits[torch.from_numpy(rows).to(part.device)] = part
        return logits

    def forward(self, cache: StateCache, tree: Tree, lengths: np.ndarray) -> torch.Tensor:
        """Run the model over the chains of the first R rows, as ``Target.forward``."""
        assert tree.depth == tree.width - 1, "a row has more than one path of drafts"
        return super().forward(cache, tree, lengths)

    def commit(self, cache: StateCache, lengths: np.ndarray, paths: np.ndarray, counts: np.ndarray) -> None:
        """Keep the states after the accepted nodes, as ``Target.commit``; a chain's entries are in place."""
        cache.commit_states(counts)

    def _forward(self, ids, positions, mask, cache, **options) -> torch.Tensor:
        options[self._cache_name] = cache
        if self._has_positions:
            options["position_ids"] = positions
        if self._shapes.attention:
            options["attention_mask"] = mask
        if ids.shape[1] == 1 or not cache.has_previous_state():
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
        raise DraftError(name, f"it does not run with a cache ({error})") from error
    if other := {type(layer).__name__ for layer in cache.layers if type(layer) not in _LAYERS}:
        raise DraftError(name, f"its cache has layers of type {', '.join(sorted(other))}")
    attention = [at for at, layer in enumerate(cache.layers) if getattr(layer, "keys", None) is not None]
    keys = [(cache.layers[at].keys, cache.layers[at].values) for at in attention]
    states = [{(at, number): state for at, layer in enumerate(cache.layers)
               for number, state in getattr(layer, kind, {}).items() if state is not None}
              for kind in ("conv_states", "recurrent_states")]
    if not any(states):
        raise DraftError(name, "its layers keep no state in their cache")
    entries = [(key.shape[1], key.shape[3], value.shape[3]) for key, value in keys]
    return StateShapes(attention, entries, *states)
