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
from dare_job.decode.model.recurrence import After, StateRecorder
from dare_job.decode.model.tree import PaddedLayout, Tree

Place = tuple[int, int]  # layer, and number of the state in the layer


class StateShapes(NamedTuple):
    """What a model keeps for each row.

    Attributes
    ----------
    entries : list of tuple of int, or None
        Shapes of each layer's keys and values, as of ``TreeCache``.
    convolutions, recurrences : dict of Place to (1, ...)
        States of other layers, or of the same ones, as from a forward pass.
    """

    entries: list[tuple[int, ...] | None]
    convolutions: dict[Place, torch.Tensor]
    recurrences: dict[Place, torch.Tensor]


class _Pass(NamedTuple):
    """A forward pass whose states are not committed yet.

    Attributes
    ----------
    slots : slice or int64 (R,)
    rows : int64 (R,)
        Places of the rows among those to be committed.
    tokens : int
        After how many tokens of each row its text may end.
    work : dict of tuple to (R, ...)
        Copies of the states before. A forward pass over one token changes them.
    windows : dict of tuple to (R, ..., K + tokens - 1)
        Inputs of convolutions, of which the first K are the state after the first of these tokens.
    after : dict of tuple to callable
        ``StateRecorder.after`` of recurrences.
    """

    slots: slice | torch.Tensor
    rows: np.ndarray
    tokens: int
    work: dict[tuple, torch.Tensor]
    windows: dict[tuple, torch.Tensor]
    after: dict[tuple, After]


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
        states = {"conv": shapes.convolutions, "recurrent": shapes.recurrences}
        self._states = {(kind, *place): state.new_zeros((slots, *state.shape[1:]))
                        for kind, of_kind in states.items() for place, state in of_kind.items()}
        self._prompts = np.empty(0, np.int64), 0  # rows of the next prompts, and tokens of each
        self._continues = False  # whether the next forward pass continues texts
        self._passes: list[_Pass] = []
        self._pass: _Pass | None = None  # the last one; None: over prompts, without tokens after them

    def begin(self) -> None:
        """Forget passes that were not committed."""
        self._passes = []

    def begin_trees(self, tree: Tree, lengths: np.ndarray, layout: PaddedLayout | None = None) -> None:
        """Prepare a forward pass over the chains of the first R slots, as ``TreeCache.begin_trees``, after
        ``lengths`` int64 (R,) tokens of each.
        """
        super().begin_trees(tree, lengths, layout)
        self._begin_pass(slice(len(lengths)), np.arange(len(lengths)), tree.width)

    def begin_rows(self, slots: slice | torch.Tensor, rows: np.ndarray, length: int, width: int) -> None:
        """Prepare a forward pass over ``width`` tokens of rows in these slots, after ``length`` tokens.

        Parameters
        ----------
        slots : slice or int64 (R,)
        rows : int64 (R,)
            Places of the rows among those to be committed.
        """
        self.begin_equal(slots, length, length + width)
        self._set_indexed_positions(length, len(rows))
        self._begin_pass(slots, rows, width)

    def expect_prompts(self, rows: np.ndarray, tokens: int) -> None:
        """Set the length of the prompts in the next ``begin_prompts``; ``rows`` is as in ``begin_rows``.

        Tokens of the forward pass that come later are drafts, whose states are recorded.
        """
        self._prompts = rows, tokens

    def begin_prompts(self, slots: torch.Tensor, longest: int, prefix: Sequence[torch.Tensor] = ()) -> None:
        """Prepare a forward pass over prompts in slots int64 (R,), and drafts after them, from empty states.

        ``longest`` is the number of tokens of the longest row.
        """
        super().begin_prompts(slots, longest, prefix)
        rows, tokens = self._prompts
        self._set_indexed_positions(0, len(rows))
        self._continues, self._pass, self.recorder.prompt = False, None, tokens
        if longest > tokens:
            self._pass = _Pass(slots, rows, longest - tokens + 1, {}, {}, {})
            self._passes.append(self._pass)

    def _begin_pass(self, slots: slice | torch.Tensor, rows: np.ndarray, width: int) -> None:
        work = {place: state[slots].clone() for place, state in self._states.items()}
        self._pass = _Pass(slots, rows, width, work, {}, {})
        self._passes.append(self._pass)
        self._continues, self.recorder.prompt = True, 0

    def _set_indexed_positions(self, length: int, rows: int) -> None:
        """Set the positions that Qwen4-exp reads with its index keys, at its first layer that has them."""
        for layer in list(self._kinds.of_index)[:1]:
            positions = torch.arange(length, device=self.device).expand(3, rows, -1) if length else None
            self.layers[layer].indexer_position_ids = positions

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.column

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.column + query_length, 0

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return self._continues

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return self._pass.work.get(("conv", layer_idx, state_idx)) if self._continues else None

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        place = "recurrent", layer_idx, state_idx
        self.recorder.before = state = self._pass.work.get(place) if self._continues else None
        return state

    def update_conv_state(self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0,
                          **kwargs) -> torch.Tensor:
        """Add inputs (R, ..., W) of a convolution; return them after the K that are stored, (R, ..., K + W),
        or, in a prompt, padded on the left to at least K.
        """
        place = "conv", layer_idx, state_idx
        kernel, current = self._states[place].shape[-1], self._pass
        if self._continues:
            inputs = torch.cat((current.work[place], conv_states), -1)
            if current.tokens == 1:
                current.work[place].copy_(inputs[..., -kernel:])
            current.windows[place] = inputs[..., 1:]
            return inputs
        conv_states = pad(conv_states, (max(0, kernel - conv_states.shape[-1]), 0))
        if current is None:
            self._states[place][self._slots] = conv_states[..., -kernel:]
        else:
            wanted = kernel + current.tokens - 1
            padded = pad(conv_states, (max(0, wanted - conv_states.shape[-1]), 0))
            current.windows[place] = padded[..., -wanted:]
        return conv_states

    def update_recurrent_state(self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0,
                               **kwargs) -> torch.Tensor:
        """Store the states (R, ...) after the last token; after several tokens, all that were recorded."""
        place = "recurrent", layer_idx, state_idx
        if self._pass is None:
            self._states[place][self._slots] = recurrent_states.to(self._states[place].dtype)
        elif self._pass.tokens == 1:
            self._pass.work[place].copy_(recurrent_states)
        elif self.recorder.after is not None:
            self._pass.after[place], self.recorder.after = self.recorder.after, None
        return recurrent_states

    def commit_states(self, counts: np.ndarray) -> None:
        """Store each row's state after its root, or its prompt, and its ``counts`` int64 (R,) accepted
        drafts.
        """
        for done in self._passes:
            if done.tokens == 1:
                for place, state in done.work.items():
                    self._states[place][done.slots] = state
                continue
            for place, inputs in done.windows.items():
                state = self._states[place]
                state[done.slots] = _windows(inputs, counts[done.rows], state.shape[-1])
            for place, after in done.after.items():
                self._states[place][done.slots] = after(counts[done.rows]).to(self._states[place].dtype)
        self._passes, self._pass = [], None

    @property
    def records(self) -> bool:
        """Whether the next forward pass has to record the states after several tokens."""
        return self._pass is not None and self._pass.tokens > 1

    @property
    def complete(self) -> bool:
        """Whether the last forward pass recorded the states of all layers."""
        return {*self._pass.windows, *self._pass.after} == self._states.keys()

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


def _windows(inputs: torch.Tensor, counts: np.ndarray, width: int) -> torch.Tensor:
    """Return ``width`` inputs of (R, ..., W) from each row's count on, (R, ..., width)."""
    first = counts[0].item()
    if (counts == first).all():
        return inputs[..., first : first + width]
    columns = torch.from_numpy(counts[:, None] + np.arange(width)).to(inputs.device)
    columns = columns.view(len(counts), *[1] * (inputs.dim() - 2), -1)
    return inputs.gather(-1, columns.expand(*inputs.shape[:-1], -1))
