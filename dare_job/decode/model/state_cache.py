"""Cache of models with recurrent or convolutional states: one state per slot beside the keys and values.

A forward pass works on a copy of the states and records the state after each token of a chain. Committing
stores the state after the last accepted token, so nothing is read twice and rejected drafts leave no trace.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad

from dare_job.decode.model.cache import TreeCache
from dare_job.decode.model.recurrence import StateRecorder
from dare_job.decode.model.tree import PaddedLayout, Tree

Place = tuple[int, int]  # layer, and number of the state in the layer


class StateShapes(NamedTuple):
    """What a model keeps for each row.

    Attributes
    ----------
    attention : list of int
        Layers with keys and values.
    entries : list of (int, int, int)
        Heads, key dimension and value dimension of these layers.
    convolutions, recurrences : dict of Place to float (1, ...)
        States of other layers, or of the same ones, as from a forward pass.
    """

    attention: list[int]
    entries: list[tuple[int, int, int]]
    convolutions: dict[Place, torch.Tensor]
    recurrences: dict[Place, torch.Tensor]


class StateCache(TreeCache):
    """A ``TreeCache`` with the states of S slots.

    Parameters
    ----------
    shapes : StateShapes
    slots : int
    dtype : torch.dtype
        Of keys and values.
    device : torch.device

    Attributes
    ----------
    recorder : StateRecorder
        Of the recurrent layers.
    """

    def __init__(self, shapes: StateShapes, slots: int, dtype: torch.dtype, device):
        super().__init__(shapes.entries, slots, dtype, device)
        self.recorder = StateRecorder()
        self._attention = {layer: at for at, layer in enumerate(shapes.attention)}
        self._kinds = {"conv": shapes.convolutions, "recurrent": shapes.recurrences}
        self._states = {(kind, *place): state.new_zeros((slots, *state.shape[1:]))
                        for kind, states in self._kinds.items() for place, state in states.items()}
        self._width = 0  # queries of the widest row in the next forward pass; 0: prompts
        # Copies that the next forward pass of single tokens changes, or reads if rows have several.
        self._work: dict[tuple, torch.Tensor] = {}
        # After a forward pass of several tokens: convolution inputs (R, C, K + W), states (W, R, ...).
        self._read_inputs: dict[tuple, torch.Tensor] = {}
        self._after: dict[tuple, list[torch.Tensor]] = {}

    def begin_trees(self, tree: Tree, lengths: np.ndarray, layout: PaddedLayout | None = None) -> None:
        """Prepare a forward pass over the chains of the first R slots, as ``TreeCache.begin_trees``."""
        super().begin_trees(tree, lengths, layout)
        rows, self._width = len(lengths), tree.width
        self._work = {place: state[:rows].clone() for place, state in self._states.items()}
        self._read_inputs, self._after = {}, {}

    def begin_prompts(self, slots: torch.Tensor, longest: int, prefix: Sequence[torch.Tensor] = ()) -> None:
        """Prepare a forward pass over prompts of equal length, which start from empty states."""
        super().begin_prompts(slots, longest, prefix)
        self._width = 0

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        """As ``TreeCache.update``."""
        return super().update(key_states, value_states, self._attention[layer_idx], *args, **kwargs)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.column

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.column + query_length, 0

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return bool(self._width)

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return self._work.get(("conv", layer_idx, state_idx)) if self._width else None

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        self.recorder.before = state = (
            self._work.get(("recurrent", layer_idx, state_idx)) if self._width else None)
        return state

    def update_conv_state(self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0,
                          **kwargs) -> torch.Tensor:
        """Add inputs (R, C, W) of a convolution; return them after the earlier ones that it sees."""
        place = "conv", layer_idx, state_idx
        if not self._width:
            state = self._states[place]
            conv_states = pad(conv_states, (max(0, state.shape[2] - conv_states.shape[2]), 0))
            state[self._slots] = conv_states[..., -state.shape[2]:]
            return conv_states
        inputs = torch.cat((self._work[place], conv_states), -1)
        self._read_inputs[place] = inputs
        return inputs

    def update_recurrent_state(self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0,
                               **kwargs) -> torch.Tensor:
        """Store the state after the last token; after several tokens, all states that were recorded."""
        place = "recurrent", layer_idx, state_idx
        if not self._width:
            self._states[place][self._slots] = recurrent_states.to(self._states[place].dtype)
        elif self._width == 1:
            self._work[place].copy_(recurrent_states)
        elif self.recorder.after:  # empty: the recurrence ran in another form than by token
            self._after[place], self.recorder.after = self.recorder.after, []
        return recurrent_states

    def commit_states(self, counts: np.ndarray) -> None:
        """Store each row's state after its root and its ``counts`` (R,) accepted drafts."""
        rows = len(counts)
        if self._width == 1:
            for place, state in self._work.items():
                self._states[place][:rows] = state
            return
        row, count = torch.arange(rows, device=self.device), torch.from_numpy(counts).to(self.device)
        for place, inputs in self._read_inputs.items():
            state = self._states[place]
            columns = count[:, None] + 1 + torch.arange(state.shape[2], device=self.device)  # (R, K)
            state[:rows] = inputs.gather(2, columns[:, None].expand(-1, inputs.shape[1], -1))
        for place, states in self._after.items():
            self._states[place][:rows] = torch.stack(states)[count, row]
        self._work, self._read_inputs, self._after = {}, {}, {}

    @property
    def complete(self) -> bool:
        """Whether the last forward pass recorded the states of all layers."""
        places = {*self._read_inputs, *self._after}
        return self._width == 1 or places == self._states.keys()

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """As ``TreeCache.copy_slots``, with the states."""
        super().copy_slots(sources, targets, length)
        for state in self._states.values():
            state[targets] = state[sources]

    def clear(self, slot: int, start: int = 0) -> None:
        """As ``TreeCache.clear``; without a ``start``, the states are cleared too."""
        super().clear(slot, start)
        if not start:
            for state in self._states.values():
                state[slot] = 0
