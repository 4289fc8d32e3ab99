"""Models that cannot verify drafts: they run through their own cache, as in ``generate``, in batches.

Such are models with a state that no chain can restore, with an index over blocks, with prompts that are read
in both directions, and all for which token trees give other logits than ordinary forward passes. Padding
changes the logits of some of them. A check at loading finds the largest batches that give each row the logits
that it has alone.
"""

import inspect
import logging
from contextlib import contextmanager

import numpy as np
import torch
from transformers import PreTrainedModel

from dare_job.decode.model import griffin, prepacked, selfcheck, support, tree_attention
from dare_job.decode.model.chain import ChainTarget
from dare_job.decode.model.own_cache import CachedRows, ModuleState, OwnCache
from dare_job.decode.model.prefix_cache import NoPrefixes
from dare_job.decode.model.target import Target
from dare_job.decode.model.tree import Tree, build, in_order
from dare_job.errors import ModelError
from pools.tree import empty_drafts

_LOG = logging.getLogger("dare_job")
PADDED, EQUAL, ALONE = "prompts of any length", "prompts of equal length", "one row at a time"
_PREFILL_TOKENS = 2**15  # of one forward pass: the rows of two passes are decoded separately ever after
_SIZED_LENGTHS = 128, 256, 384  # tokens of prompts whose caches are compared; DeepSeek-V4 joins 128 in one
# Tokens of prompts, of which the last starts late and the first ends early; and tokens after each prompt.
_CHECKED_LENGTHS, _CHECKED_TOKENS = (7, 9, 7, 11, 4), 3


def any_target(model: PreTrainedModel, check: bool = True, paged: bool | None = None) -> Target:
    """Return a model's ``Target`` for trees, else the one for chains, else an ``UndraftedTarget``.

    A warning names the cause of the last.

    Raises
    ------
    ModelError
        The model is not a causal language model that ``generate`` can run.
    """
    attention = tree_attention.original_name(model)
    try:
        return Target(model, check, paged)
    except support.DraftError as error:
        reason, states = error.reason, support.keeps_states(model)
    if states:
        _restore(model, attention)
        try:
            return ChainTarget(model, check)
        except support.DraftError as error:
            reason = error.reason
    _restore(model, attention)
    target = UndraftedTarget(model, reason)
    _LOG.warning("%s is decoded without drafts: %s. Each token takes a forward pass, so previous and similar "
                 "texts save no time. Batches: %s; the rows of a batch start together",
                 type(model).__name__, reason, target.batches)
    return target


def _restore(model: PreTrainedModel, attention: str) -> None:
    """Give a model its own layers and attention again."""
    prepacked.remove(model)
    griffin.remove(model)
    if model.config._attn_implementation != attention:
        model.set_attn_implementation(attention)


class UndraftedTarget(Target):
    """A causal language model without drafts.

    Parameters
    ----------
    model : PreTrainedModel
        A loaded transformers model.
    reason : str
        Why it has no drafts.

    Attributes
    ----------
    batches : {PADDED, EQUAL, ALONE}
        The rows that a batch may hold.
    names_places : bool
        Whether ``generate`` names the place that the model predicts (XLNet), which sees no later token. The
        attention between the other tokens need not be causal.

    Raises
    ------
    ModelError
        ``generate`` cannot run the model either, its attention is not causal, or its logits are NaN.
    """

    drafts = "none"
    max_prefill_tokens = _PREFILL_TOKENS

    def __init__(self, model: PreTrainedModel, reason: str):
        self.model, self.reason = model.eval(), reason
        self.traits = support.undrafted_traits(model)
        self.vocabulary = model.get_input_embeddings().weight.shape[0]
        self.dtype, self.device = model.dtype, model.device
        self.prefix_cache = NoPrefixes()
        arguments = frozenset(inspect.signature(model.forward).parameters)
        self.supports_logits_to_keep = "logits_to_keep" in arguments
        self.names_places = "target_mapping" in arguments
        try:
            with torch.inference_mode():
                self._state = ModuleState(model, arguments)
                self.batches = _largest_batches(self, PADDED if support.pads(model) else EQUAL)
        except selfcheck.MODEL_ERRORS as error:
            raise ModelError(f"{type(model).__name__} is not supported: it has no drafts ({reason}), and its "
                             f"own cache does not work ({error})") from error

    @property
    def cache_bytes(self) -> tuple[int, int]:
        """Bytes of one token's part of the cache and of the rest of a row, by caches of three prompts.

        It is more than a cache takes that does not grow with each further token, such as that of a window.
        """
        context = self.traits.context or _SIZED_LENGTHS[-1]
        lengths = np.minimum(_SIZED_LENGTHS, context * np.arange(1, 4) // 3).clip(1)
        with torch.inference_mode():
            sizes = np.array([self._read(np.ones((1, length), np.int64), lengths[at : at + 1]).nbytes
                              for at, length in enumerate(lengths)])
        per_token = int(np.ceil(np.diff(sizes) / np.diff(lengths).clip(1)).max().clip(0))
        return per_token, int((sizes - per_token * lengths).max().clip(0))

    def new_cache(self, slots: int) -> OwnCache:
        """Return an empty cache for this many rows."""
        return OwnCache(slots)

    def release_weights(self) -> None:
        """Do nothing: all weights are needed."""

    @contextmanager
    def as_transformers(self):
        """Run ``model``, which is unchanged."""
        self._state.set(None)
        yield self.model

    def prefill(self, cache: OwnCache, slots: np.ndarray, ids: np.ndarray, lengths: np.ndarray,
                submitted: np.ndarray | None = None, prefix=None) -> torch.Tensor:
        """Read prompts, as ``Target.prefill``; return logits (F, V). Nothing is submitted after them."""
        parts = []
        for rows in self._split(lengths):
            batch = self._read(ids[rows], lengths[rows])
            cache.place(slots[rows], batch)
            parts.append((rows, batch.logits))
        return in_order(parts)

    def forward(self, cache: OwnCache, tree: Tree, lengths: np.ndarray) -> torch.Tensor:
        """Run the model over the roots of the first R rows, as ``Target.forward``; return logits (R, V).

        A root that is read already, in a repeated forward pass, is not read again.
        """
        parts = []
        for batch, slots, numbers in cache.batches(len(lengths)):
            if len(numbers) < len(batch):
                batch.keep(numbers)
                cache.place(slots, batch)
                numbers = range(len(numbers))
            order = np.empty(len(batch), np.int64)
            order[list(numbers)] = slots
            if (batch.lengths == lengths[order]).all():
                batch.extend(torch.from_numpy(tree.host[0][order]).to(self.device))
            parts.append((order, batch.logits))
        return in_order(parts)

    def commit(self, cache: OwnCache, lengths: np.ndarray, paths: np.ndarray, counts: np.ndarray) -> None:
        """Do nothing: roots are in place."""

    def _split(self, lengths: np.ndarray) -> list[np.ndarray]:
        """Return the rows of each batch, by their lengths (F,)."""
        if self.batches == PADDED:
            return [np.arange(len(lengths))]
        if self.batches == EQUAL:
            return [np.flatnonzero(lengths == length) for length in np.unique(lengths)]
        return list(np.arange(len(lengths))[:, None])

    def _read(self, ids: np.ndarray, lengths: np.ndarray) -> CachedRows:
        """Read prompts (B, P), padded on the right, in one forward pass."""
        longest = lengths.max()
        columns = np.arange(longest) - (longest - lengths)[:, None]  # below 0: padding
        left = np.take_along_axis(ids, np.maximum(columns, 0), 1)
        mask = torch.from_numpy((columns >= 0).astype(np.int64)).to(self.device)
        return CachedRows(self.model, torch.from_numpy(left).to(self.device),
                          None if columns.min() == 0 else mask, self._state)


def _largest_batches(target: UndraftedTarget, largest: str) -> str:
    """Return the largest batches, up to ``largest``, whose rows have the logits that they have alone.

    Raises
    ------
    ModelError
        The model is not causal, its logits are NaN, or they depend on texts that it read before.
    """
    name, rng = type(target.model).__name__, np.random.default_rng(0)
    lengths = np.minimum(_CHECKED_LENGTHS, (target.traits.context or 1 << 30) - _CHECKED_TOKENS).clip(1)
    texts = rng.integers(0, target.vocabulary, (len(lengths), lengths.max() + _CHECKED_TOKENS + 1))
    target.batches, alone = ALONE, {}
    for row in range(len(lengths)):
        logits = _logits_of_rows(target, texts[row : row + 1], lengths[row : row + 1])
        alone |= {(row, place): part for (_, place), part in logits.items()}
    selfcheck.require_numbers(target, torch.stack(list(alone.values())))
    free = target.names_places or support.reads_whole_prompts(target.model)
    influence = selfcheck.require_causal(target, not free)
    forms = (PADDED, EQUAL, ALONE)
    for target.batches in forms[forms.index(largest):]:
        try:
            logits = _logits_of_rows(target, texts, lengths)
        except selfcheck.MODEL_ERRORS:  # XLNet has the rows of its cache in another dimension
            if target.batches == ALONE:
                raise
            continue
        ours, expected = (torch.stack([part[place] for place in alone if place in logits])
                          for part in (logits, alone))
        if selfcheck.close_to(target, ours, expected, influence):
            return target.batches
    raise ModelError(f"{name} is not supported: it has no drafts ({target.reason}), and its logits depend on "
                     "texts that it read before")


def _logits_of_rows(target: UndraftedTarget, texts: np.ndarray, lengths: np.ndarray) -> dict:
    """Return the logits (V,) after each token of texts (R, L), from the last of the prompt on.

    The last row starts one step after the others, and the first ends one step before them. Keys are the row
    and the number of tokens after its prompt.
    """
    cache, logits, rows = target.new_cache(len(texts)), {}, list(range(len(texts)))
    done = dict.fromkeys(rows, 0)

    def read(new: list[int]) -> None:
        part = target.prefill(cache, np.array(new), texts[new, : lengths[new].max()], lengths[new])
        logits.update({(row, 0): part[at].float() for at, row in enumerate(new)})

    def step() -> None:
        before = np.array([lengths[row] + done[row] for row in rows])
        roots = texts[rows, before]
        part = target.forward(cache, build(roots, empty_drafts(len(rows)), np.zeros_like(roots)), before)
        for at, row in enumerate(rows):
            done[row] += 1
            logits[row, done[row]] = part[at].float()

    *first, last = rows
    if first:
        rows = first
        read(first)
        step()
        rows = [*first, last]
    read([last])
    step()
    if first:
        rows = [last, *first[1:]]
        cache.copy_slots([last], [0], 0)
    for _ in range(_CHECKED_TOKENS - 1):
        step()
    return logits
