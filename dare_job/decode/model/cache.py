"""Preallocated key-value cache with a separate length for each row.

A row's entries are left-aligned in its slot. A forward pass writes the entries of the row's tree directly
after them, whatever the other rows' lengths. Committing moves the accepted entries together, for all layers
at once, so nothing is computed twice.
"""

import weakref
from collections.abc import Iterable, Sequence

import numba
import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from dare_job.decode.model.tree import PaddedLayout, Tree

GROWTH_COLUMNS = 256  # positions
_PACKED = np.empty(0, np.int64)  # places of queries without padding


class Layer(CacheLayerMixin):
    """One layer of a cache, with the interface that transformers expects."""

    is_sliding = False

    def __init__(self, cache: Cache):
        super().__init__()
        self._cache = weakref.ref(cache)  # no circle, so that memory is free at once

    def lazy_initialization(self, key_states, value_states):
        """Do nothing: the cache is allocated as a whole."""

    def update(self, key_states, value_states, *args, **kwargs):
        raise NotImplementedError("update a layer through the cache's own method")

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        return self._cache().column

    def get_max_length(self) -> int:
        return -1


class Parts:
    """Keys, values and index keys of all layers: parts with consecutive numbers, grouped by shape.

    Attributes
    ----------
    of_layer : list of int
        Part of each layer's keys; its values are the next one.
    of_index : dict of int to int
        Part of the index keys, by layer.
    kinds : list of (int, int)
        The distinct shapes: heads and dimension.
    groups : list of list of int
        Parts of each shape.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...] | None]):
        """``shapes`` as in ``TreeCache``."""
        counts = np.cumsum([0, *(0 if shape is None else len(shape) - 1 for shape in shapes)])
        self.of_layer: list[int] = counts[:-1].tolist()
        self.of_index = {layer: first + 2 for layer, (first, shape) in enumerate(
            zip(self.of_layer, shapes, strict=True)) if shape is not None and len(shape) > 3}
        parts = [part for heads, *dims in filter(None, shapes)
                 for part in zip((heads, heads, 1), dims, strict=False)]
        self.kinds = list(dict.fromkeys(parts))
        self.groups = [[i for i, part in enumerate(parts) if part == kind] for kind in self.kinds]

    def in_order(self, groups: Sequence[Sequence]) -> Sequence:
        """Return the values of each group's parts, ordered by part."""
        if len(groups) == 1:
            return groups[0]
        by_part = {part: value for parts, group in zip(self.groups, groups, strict=True)
                   for part, value in zip(parts, group, strict=True)}
        return [by_part[part] for part in range(len(by_part))]


class TreeCache(Cache):
    """Key-value cache of S slots.

    Keys and values are stored in stacks (parts, S, heads, capacity, dim), one for each distinct shape. A
    layer's keys, its values and, if it has them, its index keys are parts with consecutive numbers.

    Parameters
    ----------
    shapes : list of (int, int, int), or None
        Heads, key dimension and value dimension of each layer; None for a layer without keys of its own. A
        fourth number is the dimension of index keys, of one head, by which a layer selects what it sees.
    slots : int
    dtype : torch.dtype
    device : torch.device or str
    """

    def __init__(self, shapes: list[tuple[int, ...] | None], slots: int, dtype: torch.dtype, device):
        super().__init__(layers=[Layer(self) for _ in shapes])
        self.slots = slots
        self.capacity = 0
        self.column = 0  # of the next forward pass: where new entries of its longest row begin
        self.device = torch.device(device)
        self._slots: slice | torch.Tensor | None = None  # of the next forward pass, if rows are equally long
        self._layout: PaddedLayout | None = None  # of padded rows
        self._lines: list[torch.Tensor] | None = None  # by part: where static forward passes write
        # On a CPU: lengths and starts of the trees, and places of their queries if rows are padded; None: a
        # single row, which is written as a slice.
        self._trees: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        self._kinds = Parts(shapes)
        self._stacks = [torch.zeros((len(group), slots, heads, 0, dim), dtype=dtype, device=device)
                        for group, (heads, dim) in zip(self._kinds.groups, self._kinds.kinds, strict=True)]
        self._first: tuple[int, list[torch.Tensor]] = (-1, [])  # slots, and that part of each stack
        self._arrays: list[np.ndarray] = []  # on a CPU: the stacks' memory
        self._parts: Sequence[np.ndarray] = ()  # the same by part
        # By part, for the next forward pass: where it writes, and everything it reads.
        self._written: Sequence[torch.Tensor | np.ndarray] = ()
        self._read: Sequence[torch.Tensor] = ()

    def begin_trees(self, tree: Tree, lengths: np.ndarray, layout: PaddedLayout | None = None) -> None:
        """Prepare a forward pass over the trees of the first R slots.

        Parameters
        ----------
        tree : Tree
        lengths : int64 (R,)
            Entries before each root.
        layout : PaddedLayout, optional
            Of padded rows. None: packed or uniform rows.
        """
        rows, self.column = len(lengths), max(lengths.tolist())  # faster than numpy on few rows
        end = self.column + tree.width
        if self.device.type != "cpu":
            before = torch.from_numpy(lengths - tree.starts[:-1]).to(self.device)[tree.rows]
            written = before + torch.arange(len(tree), device=self.device)
            self._begin_lines(rows, end, tree.rows, written, layout)
            return
        self.reserve(end)
        self._slots = self._lines = self._trees = None
        if self._first[0] != rows:
            self._first = rows, [stack.narrow(1, 0, rows) for stack in self._stacks]
        stacks = self._first[1]
        if rows == 1:
            self._written = self._kinds.in_order([stack.narrow(3, self.column, tree.width).unbind(0)
                                                  for stack in stacks])
        else:
            self._trees = lengths, tree.starts, _PACKED if layout is None else layout.places.numpy()
            self._written = self._parts
        # narrow takes a fifth of the time of a slice
        self._read = self._kinds.in_order([stack.narrow(3, 0, end).unbind(0) for stack in stacks])

    def begin_prompts(self, slots: torch.Tensor, longest: int, prefix: Sequence[torch.Tensor] = ()) -> None:
        """Prepare a forward pass over the prompts of slots (F,), padded to ``longest``.

        Parameters
        ----------
        prefix
            ``entries`` of the prompts' common prefix, which the forward pass leaves out.
        """
        self.begin_equal(slots, prefix[0].shape[2] if prefix else 0, longest)
        for stack, entries in zip(self._stacks, prefix, strict=False):
            stack[:, slots, :, : self.column] = entries[:, None]

    def begin_equal(self, slots: slice | torch.Tensor, start: int, end: int) -> None:
        """Prepare a forward pass over tokens ``start`` to ``end`` of rows in these slots."""
        self.reserve(end)
        self._slots, self._lines, self.column = slots, None, start
        self._written = self._kinds.in_order([stack[:, :, :, start:end].unbind(0) for stack in self._stacks])
        self._read = self._kinds.in_order([stack[:, :, :, :end].unbind(0) for stack in self._stacks])

    def entries(self, slot: int, length: int) -> list[torch.Tensor]:
        """Return a copy of a slot's first entries, (parts, heads, length, dim) of each stack."""
        return [stack[:, slot, :, :length].clone() for stack in self._stacks]

    def _begin_lines(self, rows: int, columns: int, slots: torch.Tensor, written: torch.Tensor,
                     layout: PaddedLayout | None) -> None:
        """Prepare a forward pass that reads ``columns`` of the first ``rows`` slots.

        ``slots`` and ``written`` int64 (T,): slot and column of each query's entries.
        """
        self.reserve(columns)
        self._slots, self._layout = None, layout
        heads = [stack.shape[2] for stack in self._stacks]
        lines = {count: ((slots[:, None] * count + torch.arange(count, device=self.device)) * self.capacity
                         + written[:, None]).flatten() for count in dict.fromkeys(heads)}  # (T * heads,)
        self._lines = self._kinds.in_order([[lines[count]] * len(group)
                                            for group, count in zip(self._kinds.groups, heads, strict=True)])
        self._written = self._kinds.in_order([stack.flatten(1, 3).unbind(0) for stack in self._stacks])
        self._read = self._kinds.in_order([stack[:, :rows, :, :columns].unbind(0) for stack in self._stacks])

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        """Store (R, heads, Q, dim), or packed (1, heads, T, dim); return all keys and values to be read."""
        part = self._kinds.of_layer[layer_idx]
        return self._update(part, part + 1, key_states, value_states)

    def update_indexer(self, states: torch.Tensor, layer_idx: int) -> torch.Tensor:
        """Store index keys (R, Q, dim) of a layer; return all that are to be read."""
        part = self._kinds.of_index[layer_idx]
        return self._update(part, part, states[:, None], states[:, None])[0].squeeze(1)

    def _update(self, part: int, second: int, key_states: torch.Tensor, value_states: torch.Tensor):
        keys, values = self._read[part], self._read[second]
        if self._slots is not None:
            self._written[part][self._slots] = key_states
            self._written[second][self._slots] = value_states
            if not self.column:  # no cached prefix
                return key_states, value_states
            return keys[self._slots], values[self._slots]
        if self._lines is None:
            new_keys, new_values = self._written[part], self._written[second]
            if self._trees is None:
                new_keys.copy_(key_states)
                new_values.copy_(value_states)
            else:
                _store(new_keys, new_values, _by_query(key_states), _by_query(value_states), *self._trees)
            return keys, values
        for index, states in ((part, key_states), (second, value_states)):
            by_query = states.transpose(1, 2).flatten(0, 1)  # (R * Q or T, heads, dim)
            if self._layout is not None:
                by_query = by_query.index_select(0, self._layout.places)
            self._written[index].index_copy_(0, self._lines[index], by_query.flatten(0, 1))
        return keys, values

    def compact(self, lengths: np.ndarray, paths: np.ndarray, counts: np.ndarray) -> None:
        """Move the entries of accepted paths directly after each row's root.

        Paths ascend, so no entry is overwritten before it is moved.

        Parameters
        ----------
        lengths : (R,)
            Number of entries before the root.
        paths : (R, D)
            Root first.
        counts : (R,)
            Number of accepted nodes.
        """
        if self.device.type == "cpu":
            for stack in self._arrays:
                _move(stack, lengths, paths, counts)
            return
        depths = np.arange(paths.shape[1])
        rows, depth = np.nonzero((depths <= counts[:, None]) & (paths != depths))
        if not len(rows):
            return
        places = np.stack((rows, lengths[rows] + paths[rows, depth], lengths[rows] + depth))
        row, source, target = torch.from_numpy(places).to(self.device)
        for stack in self._stacks:
            stack[:, row, :, target] = stack[:, row, :, source]

    def move_slot(self, source: int, target: int, length: int) -> None:
        """Move a row with ``length`` entries to a free slot."""
        self.copy_slots([source], [target], length)

    def hold(self, slot: int, columns: int) -> bool:
        """Return True: a slot grows when a forward pass needs it (``PagedCache.hold``)."""
        return True

    def release(self, slot: int) -> None:
        """Do nothing: the next row of the slot overwrites its entries."""

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` entries of slots ``sources`` (M,) to ``targets`` (M,) at once."""
        old, new = (torch.as_tensor(slots, device=self.device) for slots in (sources, targets))
        for stack in self._stacks:
            stack[:, new, :, :length] = stack[:, old, :, :length]

    def clear(self, slot: int, start: int = 0) -> None:
        """Zero a slot from ``start`` on: non-finite entries affect results even if masked (0 * NaN)."""
        for stack in self._stacks:
            stack[:, slot, :, start:] = 0

    def reserve(self, capacity: int) -> None:
        """Grow each slot to at least this many columns."""
        if capacity <= self.capacity:
            return
        self.capacity = -(-capacity // GROWTH_COLUMNS) * GROWTH_COLUMNS
        for index, old in enumerate(self._stacks):
            new = old.new_zeros((*old.shape[:3], self.capacity, old.shape[4]))
            new[:, :, :, : old.shape[3]] = old
            self._stacks[index] = new
        self._first = (-1, [])
        if self.device.type == "cpu":
            self._arrays = [host_array(stack) for stack in self._stacks]
            self._parts = self._kinds.in_order([tuple(stack) for stack in self._arrays])


def host_array(states: torch.Tensor) -> np.ndarray:
    """Return a CPU tensor's memory in its shape; 2-byte types as int16: numpy and numba lack bfloat16."""
    return (states.view(torch.int16) if states.element_size() == 2 else states).numpy()


def _by_query(states: torch.Tensor) -> np.ndarray:
    """Return (R, heads, Q, dim) as (R * Q, heads, dim); no copy for most models."""
    array = np.ascontiguousarray(host_array(states).transpose(0, 2, 1, 3))
    return array.reshape(-1, *array.shape[2:])


@numba.njit
def _copy(source, target):
    """Copy one vector. Written so that it compiles to vector instructions, in a seventh of the time."""
    for d in range(len(target)):
        target[d] = source[d]


@numba.njit(cache=True)
def _store(keys, values, new_keys, new_values, lengths, starts, places):
    """Write new entries (N, heads, dim) of trees after each row's entries (slots, heads, capacity, dim).

    Parameters
    ----------
    places : (T,)
        Index of each query among the N entries; empty if they are the same.
    """
    for r in range(len(lengths)):
        for t in range(starts[r], starts[r + 1]):
            column, place = lengths[r] + t - starts[r], places[t] if len(places) else t
            for head in range(keys.shape[1]):
                _copy(new_keys[place, head], keys[r, head, column])
                _copy(new_values[place, head], values[r, head, column])


@numba.njit(cache=True)
def _move(stack, lengths, paths, counts):
    """Compact a stack (parts, slots, heads, capacity, dim)."""
    parts, _, heads, _, _ = stack.shape
    for part in range(parts):
        for r in range(len(lengths)):
            for head in range(heads):
                lines = stack[part, r, head]
                for k in range(1, counts[r] + 1):
                    source, target = lengths[r] + paths[r, k], lengths[r] + k
                    if source != target:
                        _copy(lines[source], lines[target])


def entry_bytes(shapes: Iterable[tuple[int, ...]], dtype: torch.dtype) -> int:
    """Return the bytes of one token in layers with these heads, key, value and index key dimensions."""
    return dtype.itemsize * sum(heads * (keys + values) + sum(index)
                                for heads, keys, values, *index in shapes)
