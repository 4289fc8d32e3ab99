"""A draft model's cache, kept level with the rows' texts, whatever the engine did since.

Draft nodes that a model has read behind its rows' texts: those that a text takes in stay in the cache.
"""

import logging
from collections.abc import Sequence

import numba
import numpy as np
import torch

from dare_job.decode.model.masks import Level
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request


class ReadAhead:
    """By slot, in the order of their columns: tokens, parents among themselves (-1: the text's last token)
    int64 (S, M), and how many, int64 (S,).
    """

    def __init__(self, slots: int):
        self.tokens, self.parents = np.zeros((2, slots, 0), np.int64)
        self.counts = np.zeros(slots, np.int64)

    def note(self, level: Level) -> None:
        """Nodes that are read now."""
        counts = np.diff(level.starts)
        rows = np.repeat(np.arange(len(counts)), counts)
        places = np.arange(len(rows)) - np.repeat(level.starts[:-1] - level.first, counts)
        lacking = level.parents.shape[1] - self.tokens.shape[1]
        if lacking > 0:
            self.tokens, self.parents = (
                np.pad(x, ((0, 0), (0, lacking))) for x in (self.tokens, self.parents))
        self.tokens[rows, places], self.parents[rows, places] = level.tokens, level.parents[rows, places]
        self.counts[: len(counts)] = level.first + counts

    def move(self, sources: np.ndarray, targets: np.ndarray) -> None:
        for one in (self.tokens, self.parents, self.counts):
            one[targets] = one[sources]

    def accepted(self, context: np.ndarray, lengths: np.ndarray,
                 read: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The nodes that texts went on with, their last tokens left out; none stay noted.

        context, lengths as in ``Drafter.draft``; read int64 (R,): tokens before the nodes, at most 0 where
        there are none. Returns paths (R, D) and counts (R,) for ``Target.commit``.
        """
        rows = len(read)
        counts = np.zeros(rows, np.int64)
        paths = np.zeros((rows, 1 + int(self.counts[:rows].max(initial=0))), np.int64)
        _follow(context, lengths, read, self.tokens, self.parents, self.counts, paths, counts)
        self.counts[:rows] = 0
        return np.ascontiguousarray(paths[:, : 1 + int(counts.max(initial=0))]), counts


@numba.njit(cache=True)
def _follow(context, lengths, read, tokens, parents, nodes, paths, counts):
    for r in range(len(read)):
        at = -1
        for node in range(nodes[r] if read[r] > 0 else 0):
            place = read[r] + counts[r]
            if place >= lengths[r] - 1:
                break
            if parents[r, node] == at and tokens[r, node] == context[r, place]:
                at = node
                counts[r] += 1
                paths[r, counts[r]] = node + 1

_LOG = logging.getLogger("dare_job")

_PREFILL = 4096  # tokens of one forward over new rows, unless one row alone has more

_UNSOUND = -1


class CachedDraftModel:
    """Reads what rows say, each token once, into slots that follow the rows.

    A row is known again by its request; what its slot holds counts as far as the text is still the same.
    """

    def __init__(self, target: Target):
        self.target = target
        self.cache = target.new_cache(0)
        self._last = target.vocabulary - 1  # a token that it lacks is read as this one
        self._requests: tuple[Request, ...] = ()
        self._texts = np.zeros((0, 0), np.int32)  # what the cache holds of each slot,
        self._read = np.zeros(0, np.int64)  # so many tokens; _UNSOUND: it has no use for this row
        self._ahead = ReadAhead(0)
        context, longest = target.traits.context, target.traits.max_length
        self._longest = context if longest is not None else None

    def fits(self, lengths: np.ndarray, nodes: int) -> np.ndarray:
        """bool (R,): texts that the model's positions hold together with this many nodes that are read."""
        fits, columns = np.ones(len(lengths), np.bool_), self.target.traits.max_columns
        if self._longest is not None:
            fits &= lengths + nodes <= self._longest
        if columns is not None:  # one row's nodes are as far to the right as another has read
            fits &= lengths + 2 * nodes <= columns
        return fits

    @torch.inference_mode()
    def read(self, requests: Sequence[Request], context: np.ndarray, lengths: np.ndarray,
             wanted: np.ndarray) -> tuple[np.ndarray, torch.Tensor]:
        """Read the texts of ``wanted`` rows, bool (R,), to their ends; the others may wait.

        Returns the rows (M,) of which there are scores, ascending, and the scores (M, V) of what comes next,
        float32. A row whose scores are no numbers is not read again.
        """
        self._seat(requests, context.shape[1])
        rows = len(requests)
        read = self._read[:rows]
        _forget(self._texts, read, self._ahead.counts, context, lengths)
        paths, counts = self._ahead.accepted(context, lengths, read)
        self.target.commit(self.cache, np.maximum(read, 1) - 1, paths, counts)
        _note(self._texts, read, context, read + counts, np.flatnonzero(counts))
        wanted = np.flatnonzero(wanted & (read != _UNSOUND))
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
        scores = torch.cat([one for _, one in parts]) if len(parts) > 1 else parts[0][1]
        if len(parts) > 1:
            places = np.argsort(order)
            order, scores = order[places], scores[torch.from_numpy(places).to(scores.device)]
        _note(self._texts, read, context, lengths, order)
        return self._sound(order, scores)

    def extend(self, level: Level) -> torch.Tensor:
        """Scores float32 (T, V) of nodes behind the texts that were read last.

        Where some are no numbers their row is not read again, as its next scores could not be any either.
        """
        self._ahead.note(level)
        scores = self.target.extend(self.cache, level).float()
        sound = scores.amax(-1).isfinite()
        if not sound.all():
            rows = np.repeat(np.arange(len(level.lengths)), np.diff(level.starts))
            self.drop(np.unique(rows[~sound.cpu().numpy()]))
        return scores

    def _sound(self, rows: np.ndarray, scores: torch.Tensor) -> tuple[np.ndarray, torch.Tensor]:
        sound = scores.amax(-1).isfinite()
        if sound.all():
            return rows, scores
        self.drop(rows[~sound.cpu().numpy()])
        return rows[sound.cpu().numpy()], scores[sound]

    def drop(self, rows: np.ndarray) -> None:
        """Rows (M,) of the last call whose scores were no numbers: nothing is drafted for them again."""
        for row in rows:
            _LOG.warning("row %s: the draft model's scores are no numbers; it is written without its drafts",
                         self._requests[row].id)
            self.cache.clear(row)
        self._read[rows] = _UNSOUND

    def _seat(self, requests: Sequence[Request], longest: int) -> None:
        """Slot r is row r's."""
        rows = len(requests)
        if rows > self.cache.slots:
            self.cache, self._requests = self.target.new_cache(rows), ()
            self._texts, self._read = np.zeros((rows, longest), np.int32), np.zeros(rows, np.int64)
            self._ahead = ReadAhead(rows)
        if longest > self._texts.shape[1]:
            self._texts = np.pad(self._texts, ((0, 0), (0, longest - self._texts.shape[1])))
        if requests is self._requests:
            return
        places: dict[int, list[int]] = {}
        for slot, request in enumerate(self._requests):
            places.setdefault(id(request), []).append(slot)
        sources = np.array([(places.get(id(request)) or [-1]).pop(0) for request in requests], np.int64)
        self._requests = tuple(requests) if not isinstance(requests, tuple) else requests
        moved = np.flatnonzero((sources >= 0) & (sources != np.arange(rows)))
        if len(moved):
            old = sources[moved]
            self.cache.copy_slots(old, moved, int(max(0, (self._read + self._ahead.counts)[old].max())))
            self._texts[moved], self._read[moved] = self._texts[old], self._read[old]
            self._ahead.move(old, moved)
        self._read[:rows][sources < 0] = 0

    def _prefill(self, rows: np.ndarray, context: np.ndarray, lengths: np.ndarray) -> torch.Tensor:
        """Whole texts; scores (M, V) behind their ends."""
        rows_by_length, found = rows[np.argsort(lengths[rows], kind="stable")[::-1]], {}
        while len(rows_by_length):
            longest = int(lengths[rows_by_length[0]])
            part = rows_by_length[: max(1, _PREFILL // longest)]
            rows_by_length = rows_by_length[len(part):]
            ends = lengths[part].astype(np.int64)
            ids = np.take_along_axis(context[part], np.minimum(np.arange(longest), ends[:, None] - 1), 1)
            ids = np.minimum(ids, self._last).astype(np.int64)
            scores = self.target.prefill(self.cache, part, ids, ends).float()
            found.update(zip(part.tolist(), scores, strict=True))
        return torch.stack([found[row] for row in rows.tolist()])

    def _catch_up(self, rows: np.ndarray, count: int, context: np.ndarray,
                  lengths: np.ndarray) -> torch.Tensor:
        """What texts said since they were read last, in one forward; scores (M, V) behind their ends."""
        read = np.maximum(self._read[:count], 0)
        pending = np.zeros(count, np.int64)
        pending[rows] = lengths[rows] - read[rows]
        starts = np.concatenate(([0], np.cumsum(pending)))
        columns = np.arange(starts[-1]) - np.repeat(starts[:-1] - read, pending)
        tokens = np.minimum(context[np.repeat(np.arange(count), pending), columns], self._last)
        chain = np.broadcast_to(np.arange(pending.max()), (count, pending.max()))
        level = Level(tokens.astype(np.int64), starts, read, np.zeros(count, np.int64), chain - 1, chain + 1)
        logits = self.target.extend(self.cache, level)
        return logits[torch.from_numpy(starts[1:][rows] - 1).to(logits.device)].float()


@numba.njit(cache=True)
def _forget(texts, read, counts, context, lengths):
    """Lower ``read`` (R,) to what still holds; a text's last token is always read anew. Nodes stand behind
    what held when they were read.
    """
    for r in range(len(read)):
        same, most = 0, min(read[r], lengths[r] - 1)
        while same < most and texts[r, same] == context[r, same]:
            same += 1
        if read[r] > 0:
            counts[r] = counts[r] if same == read[r] else 0
            read[r] = same


@numba.njit(cache=True)
def _note(texts, read, context, lengths, rows):
    for r in rows:
        for place in range(max(0, read[r]), lengths[r]):
            texts[r, place] = context[r, place]
        read[r] = lengths[r]
