"""Scheduler of waiting requests: which rows start next, and which prompts share a forward pass.

Every row of a forward pass takes as many columns as the longest one, and a run ends with its last row.
So requests are read ahead, and those with the longest texts start first. All of them start before more are
read, so no request waits for long.
"""

from collections.abc import Callable, Iterable

import numpy as np
import torch

from dare_job.decode.engine import prefill
from dare_job.decode.engine.prefill import ReuseEstimator
from dare_job.decode.engine.request_checks import Admission
from dare_job.decode.engine.rows import Rows
from dare_job.decode.model.cache import TreeCache
from dare_job.decode.model.paged.forward import PROMPT_TOKENS
from dare_job.decode.model.paged.pool import PAGE
from dare_job.decode.model.prefix_cache import Prefix
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request, Result, failed
from dare_job.decode.settings import EngineSettings
from dare_job.errors import RowError

_NEVER = 2**62  # rows or columns: more than there are
_MAX_FREE_SHARE = 1 / 8  # of the slots, that may wait for new rows
_LOOKAHEAD_BATCHES, _MIN_LOOKAHEAD = 8, 32  # read ahead: batches, but at least this many requests


class RequestScheduler:
    """Assigns requests to the free slots of one run.

    Parameters
    ----------
    admit : callable
        Returns the ``Admission`` of a request; may raise RowError.
    """

    def __init__(self, requests: Iterable[Request], admit: Callable[[Request], Admission], target: Target,
                 settings: EngineSettings, reuse_estimator: ReuseEstimator, rows: Rows, cache: TreeCache):
        self._queue, self._admit = iter(requests), admit
        self._target, self._settings, self._reuse_estimator = target, settings, reuse_estimator
        self._rows, self._cache = rows, cache
        self._lookahead = max(_LOOKAHEAD_BATCHES * settings.batch_size, _MIN_LOOKAHEAD)
        self._waiting: list[Admission] = []  # ascending by expected length
        self._failed: list[Result] = []
        self._refused_at = _NEVER  # active rows when the cache lacked pages for those that were waiting

    def schedule(self) -> list[tuple[np.ndarray, Prefix | None]]:
        """Assign waiting requests to free slots.

        Returns
        -------
        list of (int64 (F,), Prefix or None)
            For each prefill forward pass: its slots, and the cached prefix of its prompts.
        """
        rows, free, admitted = self._rows, self._rows.free(), []  # admitted rows have the first free slots
        if rows.active >= self._refused_at:
            return []  # no pages were given back since then
        self._refused_at = _NEVER
        while len(admitted) < len(free) and (self._waiting or self._read_ahead()):
            if (row := self._longest_that_fits(free[len(admitted)])) is None:
                if not rows.active and not admitted:
                    raise torch.OutOfMemoryError("out of memory: the longest waiting row alone does not fit "
                                                 "into the key-value cache")
                self._refused_at = rows.active + len(admitted)
                break
            admitted.append(row)
        if not admitted:
            return []
        order = sorted(range(len(admitted)), key=lambda place: len(admitted[place].request.prompt_ids))
        free, admitted = free[order], [admitted[place] for place in order]
        decoded = rows.active + len(admitted)
        for slot, row in zip(free, admitted, strict=True):
            rows.admit(slot, row)
            rows.submitted[slot] = self._submitted_tokens(row, decoded)
        forwards = []
        for prefix, members in self._target.prefix_cache.group([row.request.prompt_ids for row in admitted]):
            slots = free[members]
            uncached = rows.prompt[slots] - (len(prefix) if prefix else 0)
            parts = prefill.split_forwards(uncached, rows.submitted[slots], self._target)
            forwards += [(slots[part], prefix) for part in parts]
            if prefix is not None and len(prefix) >= PAGE:  # rows that share its pages give others back
                self._refused_at = _NEVER
        return forwards

    def _longest_that_fits(self, slot: int) -> Admission | None:
        """Give a slot the pages of the longest waiting row that they suffice for; remove and return it.

        Without other rows, that is the longest of all or none.
        """
        refused = _NEVER
        for place in reversed(range(len(self._waiting))):
            columns = self._columns(self._waiting[place])
            if columns < refused and self._cache.hold(slot, columns):
                return self._waiting.pop(place)
            refused = min(refused, columns)
            if not self._rows.active and not slot:
                return None
        return None

    def waits(self) -> bool:
        """Return whether new rows should wait: a forward pass over few prompt tokens costs as much as one
        over many, and only few slots are free.
        """
        free = len(self._rows.used) - self._rows.active
        if not self._rows.active or free >= _MAX_FREE_SHARE * len(self._rows.used):
            return False
        if self._target.paged is None or not (self._waiting or self._read_ahead()):
            return False
        due = sum(len(row.request.prompt_ids) for row in self._waiting[-free:])
        return len(self._waiting) >= free and due < PROMPT_TOKENS

    def failed(self) -> list[Result]:
        """Return the results of requests that were not admitted since the last call."""
        failed, self._failed = self._failed, []
        return failed

    def _read_ahead(self) -> bool:
        """Admit requests ahead of time; return False if there are none."""
        while len(self._waiting) < self._lookahead and (request := next(self._queue, None)) is not None:
            try:
                self._waiting.append(self._admit(request))
            except RowError as error:
                self._failed.append(failed(request, str(error)))
        self._waiting.sort(key=_expected_length)
        if self._target.paged is not None and self._waiting:
            self._cache.expect(max(map(self._columns, self._waiting)))
        self._target.prefix_cache.update([row.request.prompt_ids for row in self._waiting], self._read_prefix)
        return bool(self._waiting)

    def _read_prefix(self, tokens: np.ndarray) -> list[torch.Tensor] | None:
        """Return the keys and values of a prefix, computed in a free slot; None: it lacks pages."""
        slot = self._rows.free()[-1:]  # the first ones may be promised to rows
        if not self._cache.hold(slot[0], len(tokens)):
            return None
        self._target.prefill(self._cache, slot, tokens.astype(np.int64)[None], np.array([len(tokens)]))
        entries = self._cache.entries(slot[0], len(tokens))
        self._cache.clear(slot[0])  # entries may be non-finite
        self._cache.release(slot[0])
        return entries

    def _columns(self, row: Admission) -> int:
        """Return the cache columns that a row may need."""
        return row.max_length + self._settings.nodes

    def _submitted_tokens(self, row: Admission, rows: int) -> int:
        """Return how many tokens of a row's previous text to verify before steps of so many rows."""
        if not len(row.previous) or self._settings.score == "never":
            return 0
        limit = prefill.max_reused_tokens(len(row.request.prompt_ids), self._target)
        limit = min(len(row.previous), limit)
        if self._settings.score == "always":
            return limit
        return self._reuse_estimator.tokens(limit, self._settings.depth, rows, self._target.traits.logit_cost)


def _expected_length(row: Admission) -> int:
    """Length of the row's previous text if there is one, else its maximum length; with the prompt."""
    return len(row.request.prompt_ids) + len(row.previous) if len(row.previous) else row.max_length
