"""A draft model with a KV cache that follows the rows' texts.

The cache also keeps draft nodes that the model has read ahead: those that become part of a text stay in it.
"""

import logging
from collections.abc import Sequence

import numba
import numpy as np
import torch

from dare_job.decode.model.masks import Level
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request

_LOG = logging.getLogger("dare_job")
_PREFILL_TOKENS = 4096  # per forward pass over new rows, unless one row alone has more
_NONFINITE = -1


class ReadAhead:
    """Draft nodes after the rows' texts that the cache holds, by slot and in the order of their columns.

    Attributes
    ----------
    tokens, parents : int64 (S, M)
        Parents are numbers of nodes, -1: the last token of the text.
    counts : int64 (S,)
        Number of nodes.
    """

    def __init__(self, slots: int):
        self.tokens, self.parents = np.zeros((2, slots, 0), np.int64)
        self.counts = np.zeros(slots, np.int64)

    def add(self, level: Level) -> None:
        """Record nodes that are read now."""
        counts = np.diff(level.starts)
        rows = np.repeat(np.arange(len(counts)), counts)
        places = np.arange(len(rows)) - np.repeat(level.starts[:-1] - level.first, counts)
        missing = level.parents.shape[1] - self.tokens.shape[1]
        if missing > 0:
            self.tokens, self.parents = (
                np.pad(x, ((0, 0), (0, missing))) for x in (self.tokens, self.parents))
        self.tokens[rows, places], self.parents[rows, places] = level.tokens, level.parents[rows, places]
        self.counts[: len(counts)] = level.first + counts

    def move(self, sources: np.ndarray, targets: np.ndarray) -> None:
        """Copy slots ``sources`` (M,) to slots ``targets`` (M,)."""
        for array in (self.tokens, self.parents, self.counts):
            array[targets] = array[sources]

    def accepted(self, context: np.ndarray, lengths: np.ndarray,
                 read: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the nodes that the texts continued with, without the texts' last tokens; clear all nodes.

        Parameters
        ----------
        context, lengths
            As in ``Drafter.draft``.
        read : int64 (R,)
            Number of tokens before the nodes; 0 or less: there are no nodes.

        Returns
        -------
        paths, counts : int64 (R, D) and (R,)
            As in ``Target.commit``.
        """
        rows = len(read)
        counts = np.zeros(rows, np.int64)
        paths = np.zeros((rows, 1 + int(self.counts[:rows].max(initial=0))), np.int64)
        _match_paths(context, lengths, read, self.tokens, self.parents, self.counts, paths, counts)
        self.counts[:rows] = 0
        return np.ascontiguousarray(paths[:, : 1 + int(counts.max(initial=0))]), counts


@numba.njit(cache=True)
def _match_paths(context, lengths, read, tokens, parents, nodes, paths, counts):
    for r in range(len(read)):
        at = -1
        for node in range(nodes[r] if read[r] > 0 else 0):
            position = read[r] + counts[r]
            if position >= lengths[r] - 1:
                break
            if parents[r, node] == at and tokens[r, node] == context[r, position]:
                at = node
                counts[r] += 1
                paths[r, counts[r]] = node + 1


class CachedDraftModel:
    """A draft model that reads each token of the rows' texts once.

    Slots of the cache follow the rows, which are recognized by their requests. The entries of a slot are
    valid up to the first token in which the text differs.
    """

    def __init__(self, target: Target):
        self.target = target
        self.cache = target.new_cache(0)
        self._last_token = target.vocabulary - 1  # replaces tokens that the draft model does not have
        self._requests: tuple[Request, ...] = ()
        self._texts = np.zeros((0, 0), np.int32)  # tokens that the cache holds, by slot
        self._read = np.zeros(0, np.int64)  # their number; _NONFINITE: the row is not read
        self._ahead = ReadAhead(0)
        context, longest = target.traits.context, target.traits.max_length
        self._max_length = context if longest is not None else None

    def fits(self, lengths: np.ndarray, nodes: int) -> np.ndarray:
        """Return which texts fit the model's positions together with ``nodes`` nodes, bool (R,)."""
        fits, columns = np.ones(len(lengths), np.bool_), self.target.traits.max_columns
        if self._max_length is not None:
            fits &= lengths + nodes <= self._max_length
        if columns is not None:  # the nodes of a row start after those of other rows
            fits &= lengths + 2 * nodes <= columns
        return fits

    @torch.inference_mode()
    def read(self, requests: Sequence[Request], context: np.ndarray, lengths: np.ndarray,
             wanted: np.ndarray) -> tuple[np.ndarray, torch.Tensor]:
        """Read the texts of some rows to their ends.

        A row with non-finite logits is not read again.

        Parameters
        ----------
        requests, context, lengths
            As in ``Drafter.draft``.
        wanted : bool (R,)
            The rows to read.

        Returns
        -------
        rows : int64 (M,)
            The rows with finite logits, ascending.
        logits : float32 (M, V)
            Of their next token.
        """
        self._assign_slots(requests, context.shape[1])
        rows = len(requests)
        read = self._read[:rows]
        _truncate(self._texts, read, self._ahead.counts, context, lengths)
        paths, counts = self._ahead.accepted(context, lengths, read)
        self.target.commit(self.cache, np.maximum(read, 1) - 1, paths, counts)
        _record(self._texts, read, context, read + counts, np.flatnonzero(counts))
        wanted = np.flatnonzero(wanted & (read != _NONFINITE))
        if not len(wanted):
            return wanted, torch.empty((0, self.target.vocabulary), device=self.target.device)
        columns = self.target.traits.max_columns
        new = read[wanted] == 0
        if columns is not None and read[wanted].max() + (lengths - read)[wanted].max() > columns:
            new |= (lengths - read)[wanted] > 1
        parts = [(wanted[new], self._prefill(wanted[new], context, lengths))] if new.any() else []
        if not new.all():
            parts.append((wanted[~new], self._catch_up(wanted[~new], rows, context, lengths)))
        order = np.concatenate([part for part, _ in parts])
        logits = torch.cat([logits for _, logits in parts]) if len(parts) > 1 else parts[0][1]
        if len(parts) > 1:
            ascending = np.argsort(order)
            order, logits = order[ascending], logits[torch.from_numpy(ascending).to(logits.device)]
        _record(self._texts, read, context, lengths, order)
        return self._finite(order, logits)

    def extend(self, level: Level) -> torch.Tensor:
        """Read draft nodes after the texts and return their logits, float32 (T, V).

        Rows with non-finite logits are not read again, as their next logits would be non-finite too.
        """
        self._ahead.add(level)
        logits = self.target.extend(self.cache, level).float()
        finite = logits.amax(-1).isfinite()
        if not finite.all():
            rows = np.repeat(np.arange(len(level.lengths)), np.diff(level.starts))
            self.drop(np.unique(rows[~finite.cpu().numpy()]))
        return logits

    def _finite(self, rows: np.ndarray, logits: torch.Tensor) -> tuple[np.ndarray, torch.Tensor]:
        """Drop the rows with non-finite logits."""
        finite = logits.amax(-1).isfinite()
        if finite.all():
            return rows, logits
        self.drop(rows[~finite.cpu().numpy()])
        return rows[finite.cpu().numpy()], logits[finite]

    def drop(self, rows: np.ndarray) -> None:
        """Stop drafting for rows (M,) of the last call, whose logits are non-finite."""
        for row in rows:
            _LOG.warning("row %s: the draft model's logits are non-finite; it drafts no more for this row",
                         self._requests[row].id)
            self.cache.clear(row)
        self._read[rows] = _NONFINITE

    def _assign_slots(self, requests: Sequence[Request], longest: int) -> None:
        """Move cache entries so that slot r belongs to row r."""
        rows = len(requests)
        if rows > self.cache.slots:
            self.cache, self._requests = self.target.new_cache(rows), ()
            self._texts, self._read = np.zeros((rows, longest), np.int32), np.zeros(rows, np.int64)
            self._ahead = ReadAhead(rows)
        if longest > self._texts.shape[1]:
            self._texts = np.pad(self._texts, ((0, 0), (0, longest - self._texts.shape[1])))
        if requests is self._requests:
            return
        slots: dict[int, list[int]] = {}
        for slot, request in enumerate(self._requests):
            slots.setdefault(id(request), []).append(slot)
        sources = np.array([(slots.get(id(request)) or [-1]).pop(0) for request in requests], np.int64)
        self._requests = tuple(requests) if not isinstance(requests, tuple) else requests
        moved = np.flatnonzero((sources >= 0) & (sources != np.arange(rows)))
        if len(moved):
            old = sources[moved]
            self.cache.copy_slots(old, moved, int(max(0, (self._read + self._ahead.counts)[old].max())))
            self._texts[moved], self._read[moved] = self._texts[old], self._read[old]
            self._ahead.move(old, moved)
        self._read[:rows][sources < 0] = 0

    def _prefill(self, rows: np.ndarray, context: np.ndarray, lengths: np.ndarray) -> torch.Tensor:
        """Read whole texts and return the logits (M, V) of their next tokens."""
        rows_by_length, by_row = rows[np.argsort(lengths[rows], kind="stable")[::-1]], {}
        while len(rows_by_length):
            longest = int(lengths[rows_by_length[0]])
            part = rows_by_length[: max(1, _PREFILL_TOKENS // longest)]
            rows_by_length = rows_by_length[len(part):]
            ends = lengths[part].astype(np.int64)
            ids = np.take_along_axis(context[part], np.minimum(np.arange(longest), ends[:, None] - 1), 1)
            ids = np.minimum(ids, self._last_token).astype(np.int64)
            logits = self.target.prefill(self.cache, part, ids, ends).float()
            by_row.update(zip(part.tolist(), logits, strict=True))
        return torch.stack([by_row[row] for row in rows.tolist()])

    def _catch_up(self, rows: np.ndarray, count: int, context: np.ndarray,
                  lengths: np.ndarray) -> torch.Tensor:
        """Read the new tokens of texts in one forward pass; return the logits (M, V) of their next tokens."""
        read = np.maximum(self._read[:count], 0)
        pending = np.zeros(count, np.int64)
        pending[rows] = lengths[rows] - read[rows]
        starts = np.concatenate(([0], np.cumsum(pending)))
        columns = np.arange(starts[-1]) - np.repeat(starts[:-1] - read, pending)
        tokens = np.minimum(context[np.repeat(np.arange(count), pending), columns], self._last_token)
        chain = np.broadcast_to(np.arange(pending.max()), (count, pending.max()))
        level = Level(tokens.astype(np.int64), starts, read, np.zeros(count, np.int64), chain - 1, chain + 1)
        logits = self.target.extend(self.cache, level)
        return logits[torch.from_numpy(starts[1:][rows] - 1).to(logits.device)].float()


@numba.njit(cache=True)
def _truncate(texts, read, counts, context, lengths):
    """Reduce ``read`` (R,) to the tokens that are unchanged; the last token of a text is always read again.

    Draft nodes (``counts``) are dropped unless all of the text before them is unchanged.
    """
    for r in range(len(read)):
        equal, limit = 0, min(read[r], lengths[r] - 1)
        while equal < limit and texts[r, equal] == context[r, equal]:
            equal += 1
        if read[r] > 0:
            counts[r] = counts[r] if equal == read[r] else 0
            read[r] = equal


@numba.njit(cache=True)
def _record(texts, read, context, lengths, rows):
    for r in rows:
        for position in range(max(0, read[r]), lengths[r]):
            texts[r, position] = context[r, position]
        read[r] = lengths[r]
