"""Which waiting rows start next, and together: requests are taken ahead, so that texts of a length meet.

A forward reads as many columns as its longest row has, and a night ends when its last row does: of the
requests taken ahead those with the longest texts start first. All of them start before more are taken, so
none waits for longer than that.
"""

from collections.abc import Callable, Iterable

import numpy as np
import torch

from dare_job.decode.engine import prefill
from dare_job.decode.engine.admission import Admission
from dare_job.decode.engine.prefill import ReuseEstimator
from dare_job.decode.engine.rows import Rows
from dare_job.decode.model.cache import TreeCache
from dare_job.decode.model.prefix_cache import Prefix
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request, Result, failed
from dare_job.decode.settings import EngineSettings
from dare_job.errors import RowError

_LOOKAHEAD_BATCHES, _MIN_LOOKAHEAD = 8, 32  # taken ahead: so many batches, and so many requests at least


class RequestScheduler:
    """Gives the free slots of one run to its requests."""

    def __init__(self, requests: Iterable[Request], admit: Callable[[Request], Admission], target: Target,
                 settings: EngineSettings, reuse_estimator: ReuseEstimator, rows: Rows, cache: TreeCache):
        """admit may raise RowError."""
        self._queue, self._admit = iter(requests), admit
        self._target, self._settings, self._reuse_estimator = target, settings, reuse_estimator
        self._rows, self._cache = rows, cache
        self._ahead = max(_LOOKAHEAD_BATCHES * settings.batch_size, _MIN_LOOKAHEAD)
        self._waiting: list[Admission] = []  # the longest last
        self._failed: list[Result] = []

    def schedule(self) -> list[tuple[np.ndarray, Prefix | None]]:
        """Put waiting rows into free slots: the slots of each forward, and what its prompts begin with."""
        rows, free, admitted = self._rows, self._rows.free(), []
        while len(admitted) < len(free) and (self._waiting or self._more()):
            admitted.append(self._waiting.pop())
        if not admitted:
            return []
        admitted.sort(key=lambda row: len(row.request.prompt_ids))
        for slot, row in zip(free, admitted, strict=False):
            rows.admit(slot, row)
            rows.submitted[slot] = self._offered(row)
        forwards = []
        for prefix, members in self._target.prefix_cache.group([row.request.prompt_ids for row in admitted]):
            slots = free[members]
            rest = rows.prompt[slots] - (len(prefix) if prefix else 0)
            parts = prefill.split_forwards(rest, rows.submitted[slots], self._target, self._settings)
            forwards += [(slots[part], prefix) for part in parts]
        return forwards

    def failed(self) -> list[Result]:
        """Requests that cannot start, each given once."""
        failed, self._failed = self._failed, []
        return failed

    def _more(self) -> bool:
        """Take requests ahead; False where none was left."""
        while len(self._waiting) < self._ahead and (request := next(self._queue, None)) is not None:
            try:
                self._waiting.append(self._admit(request))
            except RowError as error:
                self._failed.append(failed(request, str(error)))
        self._waiting.sort(key=_expected_length)
        self._target.prefix_cache.update([row.request.prompt_ids for row in self._waiting], self._read)
        return bool(self._waiting)

    def _read(self, tokens: np.ndarray) -> list[torch.Tensor]:
        """Keys and values of what prompts begin with, read in a free slot."""
        slot = self._rows.free()[:1]
        self._target.prefill(self._cache, slot, tokens.astype(np.int64)[None], np.array([len(tokens)]))
        entries = self._cache.entries(slot[0], len(tokens))
        self._cache.clear(slot[0])  # they may be no numbers
        return entries

    def _offered(self, row: Admission) -> int:
        """How much of a row's old text is scored behind its prompt."""
        if not len(row.previous) or self._settings.score == "never":
            return 0
        most = min(len(row.previous), prefill.max_reused_tokens(len(row.request.prompt_ids), self._target,
                                                           self._settings))
        if self._settings.score == "always":
            return most
        return self._reuse_estimator.tokens(most, min(self._settings.nodes, self._settings.depth))


def _expected_length(row: Admission) -> int:
    """Length of a row's text: as it was; where that is not known, as it may become."""
    return len(row.request.prompt_ids) + len(row.previous) if len(row.previous) else row.max_length
