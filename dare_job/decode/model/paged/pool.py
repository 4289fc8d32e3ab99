"""Key-value cache in pages: the keys and values of all rows in one pool, and a table of each row's pages.

A row has as many pages as its own text needs, and moves to another slot without a copy. Rows that start from
the same cached prefix share the pages that it fills, which are written once and counted by their users.
Entries are token-major, (tokens, heads, dim), as flash attention reads them.
"""

from collections.abc import Sequence

import numpy as np
import torch
from transformers.cache_utils import Cache

from dare_job.decode.model.cache import Layer, Parts
from dare_job.decode.model.tree import without_gradients

PAGE = 256  # tokens of a page: flash attention takes multiples of this number
_SPARE = 0  # page that padding is written to; nothing is read from it
_GROWTH = 1.5  # of the pool
_ACTIVATION_BYTES = 2**31  # of a forward pass, logits and graphs included
_CACHE_SHARE = 0.9  # of the memory that is free after that


class PagedCache(Cache):
    """Key-value cache of S slots.

    Parameters
    ----------
    shapes : list of (int, int, int), or None
        As in ``TreeCache``, without index keys.
    slots : int
    dtype : torch.dtype
    device : torch.device or str
    limit : int, optional
        Maximum number of pages. None: unlimited.
    contiguous : bool
        Whether the pages of a slot must follow each other, for attention that does not read ``table``. Then
        slots may lack pages although as many are free elsewhere, and share none.

    Attributes
    ----------
    fixed_nodes : int, optional
        Give all passes one shape: that of all slots with so many draft nodes, and that of the largest part of
        prompts. Then the logits of a row do not depend on the other rows of its batch, if a matrix product of
        one shape computes all its rows alike; passes with few rows take as long as full ones. None: a shape
        as large as needed.
    table : int32 (S + 1, P)
        Pages of each slot, on the host. The last row, and what a slot does not hold, is the spare page.
    """

    def __init__(self, shapes: list[tuple[int, ...] | None], slots: int, dtype: torch.dtype, device,
                 limit: int | None = None, contiguous: bool = False):
        super().__init__(layers=[Layer(self) for _ in shapes])
        self.slots, self.limit, self.contiguous = slots, limit, contiguous
        self.column = 0  # transformers asks for it; positions are always given
        self.device = torch.device(device)
        self.fixed_nodes: int | None = None
        self.graphs: dict = {}  # of ``PagedForward``: they hold addresses in this cache
        self.prepared: set = set()  # what ``PagedForward.prepare`` has recorded
        self.graph_pool = None  # memory that they share
        self.graph_logits: torch.Tensor | None = None  # (T, V), output that they share
        self.table = np.full((slots + 1, 1), _SPARE, np.int32)
        self._held = np.zeros(slots, np.int64)  # pages of each slot
        self._users = np.ones(1, np.int32)  # by page: slots that have it; the spare page always has one
        self._shared: dict[bytes, int] = {}  # by the tokens up to its end: page of a prefix that slots have
        self._read_only = np.zeros(slots, np.int64)  # pages of each slot that are such, the first ones
        self._parts = Parts(shapes)
        self._stacks = [torch.zeros((len(group), PAGE, heads, dim), dtype=dtype, device=device)
                        for group, (heads, dim) in zip(self._parts.groups, self._parts.kinds, strict=True)]
        self._pools: Sequence[torch.Tensor] = ()  # by part, (tokens, heads, dim)
        self._lines: torch.Tensor | None = None  # of the next forward pass: where its entries are written
        self._take_pools()

    @property
    def pages(self) -> int:
        """Pages of the pool, the spare one included."""
        return self._stacks[0].shape[1] // PAGE

    def expect(self, columns: int) -> None:
        """Make room at once for rows of this many columns in all slots, as far as ``limit`` allows."""
        needed = 1 + self.slots * pages_of(columns)
        if needed > self.pages > 1:  # later rows are longer: a growth of the pool drops all graphs
            needed = max(needed, int(_GROWTH * self.pages))
        needed = needed if self.limit is None else min(needed, self.limit)
        self._widen(pages_of(columns))
        if needed > self.pages:
            self._grow(needed)

    def hold(self, slot: int, columns: int) -> bool:
        """Give a slot pages for this many columns; return False if there are not enough pages."""
        needed, held = pages_of(columns), int(self._held[slot])
        if needed <= held:
            return True
        own, start = self.table[slot, :held].copy(), 0 if self.contiguous else held
        self._users[own[start:]] = 0  # a slot whose pages follow each other may move over its own
        pages = self._find_free(needed - start)
        if pages is None and self._make_room(needed - start):
            pages = self._find_free(needed - start)
        if pages is not None:
            self._widen(needed)
            self.table[slot, start:needed] = pages
            self._held[slot] = needed
            if self.contiguous and held and pages[0] != own[0]:
                self._move_pages(own, pages[:held])
        self._users[self.table[slot, start : self._held[slot]]] = 1
        return pages is not None

    def _find_free(self, count: int) -> np.ndarray | None:
        """Return free pages; None: there are not as many, or none that follow each other."""
        free = np.flatnonzero(self._users == 0)
        if len(free) < count:
            return None
        if not self.contiguous:
            return free[:count]
        firsts = np.flatnonzero(free[count - 1 :] - free[: len(free) - count + 1] == count - 1)
        return free[firsts[0] : firsts[0] + count] if len(firsts) else None

    def _make_room(self, count: int) -> bool:
        """Add pages so that this many can be found; return False if ``limit`` forbids it."""
        unused = self._users == 0
        free = int(unused[::-1].argmin()) if self.contiguous else int(unused.sum())
        least = self.pages + count - free
        if self.limit is not None and least > self.limit:
            return False
        wanted = max(least, int(_GROWTH * self.pages))
        self._grow(wanted if self.limit is None else min(wanted, self.limit))
        return True

    @without_gradients
    def _move_pages(self, sources: np.ndarray, targets: np.ndarray) -> None:
        pages = np.stack((sources, targets)).astype(np.int64)
        old, new = self.on_device((pages[..., None] * PAGE + np.arange(PAGE)).reshape(2, -1))
        for stack in self._stacks:
            stack.index_copy_(1, new, stack.index_select(1, old))

    def require(self, slots: Sequence[int], columns: np.ndarray | int) -> None:
        """Give slots (F,) pages for this many columns, int64 (F,), or as many for each.

        Raises
        ------
        OutOfMemoryError
            There are not enough pages.
        """
        slots = np.asarray(slots)
        columns = np.broadcast_to(columns, slots.shape)
        for row in np.flatnonzero(columns > PAGE * self._held[slots]):
            if not self.hold(slots[row], int(columns[row])):
                raise torch.OutOfMemoryError(f"out of memory: all {self.limit} pages of the key-value cache "
                                             "are in use")

    def reserve(self, columns: int) -> None:
        """Give each slot pages for this many columns."""
        self.expect(columns)
        self.require(np.arange(self.slots), columns)

    def release(self, slot: int) -> None:
        """Take a slot's pages back. Those of a prefix are free when their last slot is released."""
        self._users[self.table[slot, : int(self._held[slot])]] -= 1
        if self._read_only[slot]:
            self._shared = {tokens: page for tokens, page in self._shared.items() if self._users[page]}
        self.table[slot], self._held[slot], self._read_only[slot] = _SPARE, 0, 0

    def places(self, slots: np.ndarray | int, columns: np.ndarray) -> np.ndarray:
        """Return the places int64 in the pool of columns int64 (...,) of slots."""
        return self.table[slots, columns // PAGE].astype(np.int64) * PAGE + columns % PAGE

    def lines(self, slot: int, start: int, end: int) -> np.ndarray:
        """Return the places int64 (end - start,) of a slot's columns in the pool."""
        return self.places(slot, np.arange(start, end))

    def begin(self, lines: torch.Tensor) -> None:
        """Prepare a forward pass whose entries are written to ``lines``, int64 (T,)."""
        self._lines = lines

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        """Store (1, heads, T, dim); return the pools of all keys and values, (1, heads, tokens, dim)."""
        part = self._parts.of_layer[layer_idx]
        return self._store(part, key_states), self._store(part + 1, value_states)

    def _store(self, part: int, states: torch.Tensor) -> torch.Tensor:
        pool = self._pools[part]
        pool.index_copy_(0, self._lines, states[0].transpose(0, 1))
        return pool.transpose(0, 1)[None]

    @without_gradients
    def entries(self, slot: int, length: int) -> list[torch.Tensor]:
        """Return a copy of a slot's first entries, (parts, heads, length, dim) of each stack."""
        lines = self.on_device(self.lines(slot, 0, length))
        return [stack.index_select(1, lines).transpose(1, 2).contiguous() for stack in self._stacks]

    @without_gradients
    def write(self, slots: np.ndarray, entries: Sequence[torch.Tensor], tokens: np.ndarray) -> None:
        """Start slots (F,) from the ``entries`` of a prefix with these tokens, int64 (N,).

        Pages that the prefix fills are shared with other slots that start from the same tokens; its last,
        partly filled page is copied. What a slot had on such pages is not kept, and the pages are free.
        """
        length = entries[0].shape[2]
        self.require(slots, length)
        ends = () if self.contiguous else range(PAGE, length + 1, PAGE)
        keys = [tokens[:end].tobytes() for end in ends]
        for slot in slots:  # a copy for all slots at once could take as much memory as the pool
            start = PAGE * self._share(slot, keys)
            lines = self.on_device(self.lines(slot, start, length))
            for stack, values in zip(self._stacks, entries, strict=True):
                stack.index_copy_(1, lines, values[:, :, start:].transpose(1, 2))
            self._read_only[slot] = len(keys)
            self._shared.update(zip(keys, self.table[slot, : len(keys)].tolist(), strict=True))

    def _share(self, slot: int, keys: list[bytes]) -> int:
        """Give a slot the first pages that other slots have, by key, for its own; return their number."""
        assert self._read_only[slot] <= len(keys), "a slot is released before another text starts in it"
        count = next((place for place, key in enumerate(keys) if key not in self._shared), len(keys))
        pages = [self._shared[key] for key in keys[:count]]
        self._users[pages] += 1  # first: a slot that is filled again has these pages already
        self._users[self.table[slot, :count]] -= 1
        self.table[slot, :count] = pages
        return count

    @without_gradients
    def compact(self, lengths: np.ndarray, paths: np.ndarray, counts: np.ndarray) -> None:
        """Move the entries of accepted paths directly after each row's root, as ``TreeCache.compact``."""
        depths = np.arange(paths.shape[1])
        rows, depth = np.nonzero((depths <= counts[:, None]) & (paths != depths))
        if not len(rows):
            return
        columns = np.stack((paths[rows, depth], depth)) + lengths[rows]
        source, target = self.on_device(self.places(rows, columns))
        for stack in self._stacks:
            stack.index_copy_(1, target, stack.index_select(1, source))

    def move_slot(self, source: int, target: int, length: int) -> None:
        """Move a row to a free slot; ``length`` is for caches that copy."""
        for values in (self.table, self._held, self._read_only):
            values[[source, target]] = values[[target, source]]

    @without_gradients
    def copy_slots(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` entries of slots ``sources`` (M,) to ``targets`` (M,) at once."""
        if not length or not len(sources):
            return
        self.require(targets, length)
        assert not self._read_only[targets].any(), "other slots read these pages"
        old, new = (self.on_device(np.concatenate([self.lines(slot, 0, length) for slot in slots]))
                    for slots in (sources, targets))
        for stack in self._stacks:
            stack.index_copy_(1, new, stack.index_select(1, old))

    @without_gradients
    def clear(self, slot: int, start: int = 0) -> None:
        """Zero a slot from ``start`` on: non-finite entries affect results even if masked (0 * NaN).

        Those of a cached prefix are finite, and other slots read them.
        """
        start = max(start, PAGE * int(self._read_only[slot]))
        lines = self.on_device(self.lines(slot, start, max(start, PAGE * int(self._held[slot]))))
        for stack in self._stacks:
            stack.index_fill_(1, lines, 0)

    def on_device(self, places: np.ndarray) -> torch.Tensor:
        """Copy an array to the device without waiting for it."""
        tensor = torch.from_numpy(places)
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)

    def _widen(self, pages: int) -> None:
        """Make the table wide enough for rows of this many pages."""
        if pages > self.table.shape[1]:
            width = 1 << (pages - 1).bit_length()
            self.table = np.pad(self.table, ((0, 0), (0, width - self.table.shape[1])),
                                constant_values=_SPARE)

    @without_gradients
    def _grow(self, pages: int) -> None:
        self.graphs.clear()
        self.prepared.clear()
        self.graph_pool, self.graph_logits, before = None, None, self.pages
        self._pools = ()  # views, which would keep the old memory
        for index in range(len(self._stacks)):
            free = _free_bytes(self.device) if self.device.type == "cuda" else None
            self._stacks[index] = _grown(self._stacks, index, pages * PAGE, free)
        self._users = np.pad(self._users, (0, pages - before))
        self._take_pools()

    def _take_pools(self) -> None:
        self._pools = self._parts.in_order([stack.unbind(0) for stack in self._stacks])


def _grown(stacks: list[torch.Tensor], index: int, tokens: int, free_bytes: int | None) -> torch.Tensor:
    """Return a stack with the same entries and more tokens.

    The old entries pass through the host if the new stack needs more than ``free_bytes``; then the list must
    hold the only reference to the old one.
    """
    old = stacks[index]
    shape, options = (old.shape[0], tokens, *old.shape[2:]), {"dtype": old.dtype, "device": old.device}
    if free_bytes is not None and old[:, :1].nbytes * tokens > free_bytes:
        old = stacks[index] = old.cpu()
    new = torch.zeros(shape, **options)
    new.narrow(1, 0, old.shape[1]).copy_(old)
    return new


def pages_of(columns: int) -> int:
    """Return the pages that this many columns take."""
    return -(-columns // PAGE)


def affordable_pages(device: torch.device, token_bytes: int) -> int | None:
    """Return how many pages fit into a device's free memory; None: unlimited, on a CPU."""
    if device.type != "cuda":
        return None
    free = _CACHE_SHARE * (_free_bytes(device) - _ACTIVATION_BYTES)
    return max(2, int(free) // (PAGE * max(1, token_bytes)))


def share_memory(*targets) -> None:
    """Divide the free memory among the ``Target``s of a device that hold the same tokens, once.

    Each gets as many pages. Later, what is free would depend on how much the others have allocated.
    """
    device = targets[0].device
    if device.type != "cuda" or len({target.page_limit for target in targets} - {None}) == 1:
        return
    for target in targets:
        target.spare_cache = None
    pages = affordable_pages(device, sum(target.cache_bytes[0] for target in targets))
    for target in targets:
        target.page_limit = pages


def _free_bytes(device: torch.device) -> int:
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused
