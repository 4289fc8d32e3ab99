"""Rows that run through a model's own cache, as in ``generate``: each batch of prompts keeps one cache.

The rows of a batch have the same number of columns, so a row that ends leaves its batch, and no row joins it.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.generation import GenerationMode


class CachedRows:
    """Rows of one batch of prompts, with their cache and the other inputs that ``generate`` keeps for them.

    Parameters
    ----------
    model : PreTrainedModel
    ids : int64 (B, P)
        Prompts, padded on the left.
    mask : int64 (B, P), optional
        0: padding. None: nothing is padded.
    state : ModuleState
        State that the model keeps outside of its cache.

    Attributes
    ----------
    logits : float (B, V)
        Logits after the last token of each row.
    lengths : int64 (B,)
        Tokens of each row in the cache, without padding.
    """

    def __init__(self, model: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor | None,
                 state: "ModuleState"):
        self._model, self._ids, self._state, self._kept = model, ids, state, None
        self.lengths = np.full(len(ids), ids.shape[1]) if mask is None else mask.sum(1).cpu().numpy()
        self._inputs = {"use_cache": True, "attention_mask": mask}
        if "position_ids" in state.arguments:
            positions = model._prepare_position_ids_for_generation(ids, self._inputs)
            # Those of one row, for all: Qwen4-exp, which caches them, needs as many rows as there are.
            of_all = positions.dim() == 2 and len(positions) == 1
            self._inputs["position_ids"] = positions.expand(len(ids), -1) if of_all else positions
        if "logits_to_keep" in state.arguments:
            self._inputs["logits_to_keep"] = 1
        model._prepare_cache_for_generation(GenerationConfig(use_cache=True), self._inputs,
                                            GenerationMode.GREEDY_SEARCH, len(ids), ids.shape[1] + 1)
        self.logits = self._run(is_first_iteration=True)

    def __len__(self) -> int:
        return len(self._ids)

    def extend(self, tokens: torch.Tensor) -> None:
        """Read one more token of each row, int64 (B,)."""
        self._ids = torch.cat((self._ids, tokens[:, None]), 1)
        self.lengths = self.lengths + 1
        self.logits = self._run(next_sequence_length=1)

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order, and forget the others."""
        index, count = torch.tensor(rows, device=self._ids.device), len(self)
        self._ids, self.logits, self.lengths = self._ids[index], self.logits[index], self.lengths[rows]
        self._inputs = _select(self._inputs, index, count)
        self._kept = _select(self._kept, index, count)

    @property
    def nbytes(self) -> int:
        """Bytes of the cache, and of the state outside of it."""
        caches = [value for value in self._inputs.values() if not isinstance(value, torch.Tensor)]
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in _tensors([caches, self._kept])}.values())

    def _run(self, **options) -> torch.Tensor:
        self._state.set(self._kept)
        inputs = self._model.prepare_inputs_for_generation(self._ids, **options, **self._inputs)
        output = self._model(**inputs, return_dict=True)
        self._inputs = self._model._update_model_kwargs_for_generation(output, self._inputs)
        self._kept = self._state.get()
        return output.logits[:, -1].clone()  # frees the logits of the other columns


class ModuleState:
    """State that some models, such as RecurrentGemma, keep in their modules rather than in a cache.

    It is found by what a forward pass replaces, and swapped between batches of rows.

    Attributes
    ----------
    arguments : frozenset of str
        Arguments of the model's forward function.
    """

    def __init__(self, model: PreTrainedModel, arguments: frozenset[str]):
        self.arguments, self._places = arguments, []
        before = _plain_values(model)
        CachedRows(model, torch.zeros((1, 2), dtype=torch.long, device=model.device), None, self)
        self._places = [place for place, value in _plain_values(model).items()
                        if value is not before.get(place)]
        self._modules = dict(model.named_modules())
        self.set(None)

    def get(self) -> list[torch.Tensor] | None:
        """Return the tensors that the last forward pass left, of the model's shapes; None: it leaves none."""
        return [getattr(self._modules[path], name) for path, name in self._places] or None

    def set(self, state: list[torch.Tensor] | None) -> None:
        """Set the state for the next forward pass. None: the state before any text."""
        for at, (path, name) in enumerate(self._places):
            setattr(self._modules[path], name, None if state is None else state[at])


class OwnCache:
    """The rows of S slots, with the interface of ``TreeCache`` that the engine uses.

    Parameters
    ----------
    slots : int
    """

    def __init__(self, slots: int):
        self.slots = slots
        self._rows: list[tuple[CachedRows, int] | None] = [None] * slots

    def place(self, slots: Sequence[int], rows: CachedRows) -> None:
        """Put the B rows of a new batch into slots int64 (B,)."""
        for number, slot in enumerate(slots):
            self._rows[slot] = rows, number

    def batches(self, count: int) -> list[tuple[CachedRows, np.ndarray, list[int]]]:
        """Return the rows of the first ``count`` slots by batch; other slots are free, and are emptied.

        Returns
        -------
        list of (CachedRows, int64 (n,), list of int)
            A batch, slots with its rows, and their numbers in the batch.
        """
        self._rows[count:] = [None] * (self.slots - count)
        batches: dict[int, tuple[CachedRows, list[int], list[int]]] = {}
        for slot, (rows, number) in enumerate(self._rows[:count]):
            _, slots, numbers = batches.setdefault(id(rows), (rows, [], []))
            slots.append(slot)
            numbers.append(number)
        return [(rows, np.array(slots), numbers) for rows, slots, numbers in batches.values()]

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Move the rows of slots ``sources`` to ``targets``; ``length`` has no effect."""
        for source, target in zip(sources, targets, strict=True):
            self._rows[target], self._rows[source] = self._rows[source], None

    def move_slot(self, source: int, target: int, length: int) -> None:
        """Move a row to a free slot; ``length`` has no effect."""
        self.copy_slots([source], [target], length)

    def hold(self, slot: int, columns: int) -> bool:
        """Return True: the model's cache grows as it needs."""
        return True

    def release(self, slot: int) -> None:
        """Do nothing: ``batches`` empties free slots."""

    def clear(self, slot: int, start: int = 0) -> None:
        """Empty a slot. With a ``start``, do nothing: a row without drafts has no entries to clear."""
        if not start:
            self._rows[slot] = None

    def reserve(self, capacity: int) -> None:
        """Do nothing: the model's cache grows as it needs."""


def _plain_values(model: torch.nn.Module) -> dict[tuple[str, str], torch.Tensor]:
    """Return the tensors that are attributes of modules and neither parameters nor buffers."""
    return {(path, name): value for path, module in model.named_modules()
            for name, value in vars(module).items() if isinstance(value, torch.Tensor)}


def _tensors(value) -> Iterator[torch.Tensor]:
    """Yield the tensors of a model's cache."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    else:  # a cache, or one of its layers
        parts = vars(value).values() if type(value).__module__.startswith("transformers") else ()
    for part in parts:
        yield from _tensors(part)


def _select(value, index: torch.Tensor, rows: int):
    """Select rows of all tensors of a model's inputs whose first dimension is the batch."""
    if isinstance(value, torch.Tensor):
        return value.index_select(0, index.to(value.device)) if value.dim() and len(value) == rows else value
    if isinstance(value, dict):
        return {key: _select(item, index, rows) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_select(item, index, rows) for item in value)
    if isinstance(value, Cache):
        value.reorder_cache(index)
        own = {name: item for name, item in vars(value).items() if name != "layers"}
    else:
        own = vars(value) if hasattr(value, "rnn_state") else {}
    for name, item in own.items():
        if isinstance(item, torch.Tensor | dict | list | tuple):
            setattr(value, name, _select(item, index, rows))
    return value
