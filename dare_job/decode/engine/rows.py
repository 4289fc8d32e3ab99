"""The rows being decoded: their text and counts, in arrays with one slot a row."""

from typing import NamedTuple

import numba
import numpy as np

from dare_job.decode.engine.admission import Admission
from dare_job.decode.model.prefix_cache import common_prefix_length
from dare_job.decode.request import BeamCounts, Request, Result
from dare_job.decode.verify.result import VerificationResult

_NO_LIMIT = 2**62  # no text is as long
RUNNING, LENGTH, EOS, NON_FINITE = range(4)  # why a row ends


class StepPlan(NamedTuple):
    """What a step knows of its rows (R,) before it drafts; the next step's is written over it.

    before   int64: tokens before the root, which is the text's last one
    roots    int64: that token
    lengths  int32: tokens, the root included
    budgets  int32: draft nodes at most
    depths   int32: longest path that the row can still use: a step's last token is the model's own
    """

    before: np.ndarray
    roots: np.ndarray
    lengths: np.ndarray
    budgets: np.ndarray
    depths: np.ndarray


class Rows:
    """Slots of rows. ``length`` counts the text with the prompt; its last token is the next tree's root."""

    def __init__(self, slots: int):
        self.used = np.zeros(slots, np.bool_)
        self.active = 0  # slots in use
        self.requests: list[Request | None] = [None] * slots
        self.processors: list = [None] * slots
        self.previous: list[np.ndarray | None] = [None] * slots  # text that may be scored
        self.tokens = np.zeros((slots, 0), np.int32)
        self.relaxed = np.zeros((slots, 0), np.bool_)  # which tokens of the text are relaxed
        self.step_tokens = np.zeros((slots, 0), np.int16)
        # offered: tokens of ``old`` that stand behind the prompt; guard: length behind which all is strict,
        # the prompt counted. In one array, as a row that ends takes all of its own at once.
        self._counted = np.zeros((9, slots), np.int64)
        (self.prompt, self.length, self.forwards, self.accepted, self.reused, self.max_length,
         self.min_length, self.submitted, self.relaxed_end) = self._counted
        self.slot_steps = np.zeros(slots)
        self.admitted_s = np.zeros(slots)  # the engine's clock when the row came
        # Each row's share of drafting and of decoding, in ms: its own, and that of all rows' steps so far, of
        # which it leaves out those before it came.
        self.own_ms, self._shared_ms = np.zeros((slots, 2)), (0.0, 0.0)
        self._active_requests: tuple[Request, ...] | None = None
        self._plan: StepPlan | None = None
        self.any_min_length = False  # whether some row so far had a text that may not end at once
        self.any_relaxed_limit = False  # whether some row so far had a guard

    def free(self) -> np.ndarray:
        """Slots without a row, ascending."""
        return np.flatnonzero(~self.used)

    def admit(self, slot: int, row: Admission) -> None:
        prompt = row.request.prompt_ids
        self._reserve(row.max_length)
        self.active += 1
        self.used[slot], self.requests[slot], self.processors[slot] = True, row.request, row.processors
        self.previous[slot], self.relaxed_end[slot] = row.previous, _relaxed_end(row.request)
        self.tokens[slot, : len(prompt)] = prompt
        self.relaxed[slot] = False
        self.prompt[slot] = self.length[slot] = len(prompt)
        self.max_length[slot], self.min_length[slot] = row.max_length, row.min_length
        self.any_min_length |= row.min_length > len(prompt)
        self.any_relaxed_limit |= bool(self.relaxed_end[slot] != _NO_LIMIT)
        self.forwards[slot] = self.accepted[slot] = self.reused[slot] = self.submitted[slot] = 0
        self.own_ms[slot], self.slot_steps[slot] = np.negative(self._shared_ms), 0.0
        self._active_requests = None

    @property
    def active_requests(self) -> tuple[Request, ...]:
        """Requests of the rows, which stand in the first slots: the same object while they are the same."""
        if self._active_requests is None:
            self._active_requests = tuple(self.requests[: self.active])
        return self._active_requests

    def plan(self, depth: int, nodes: int, columns: int | None) -> StepPlan:
        """Of a step of all rows. depth, nodes: what each may draft; columns: what a forward may use.

        A row whose own text leaves no columns for ``nodes`` drafts none, whatever the other rows' lengths.
        """
        plan = self._plan
        if plan is None or len(plan.before) != self.active:
            plan = self._plan = StepPlan(*np.empty((2, self.active), np.int64),
                                     *np.empty((3, self.active), np.int32))
        _plan(self.tokens, self.length, self.max_length, depth, nodes, -1 if columns is None else columns,
              *plan)
        return plan

    def add_step_time(self, retrieval_ms: float, decode_ms: float) -> None:
        """Share the time of a step among its rows."""
        retrieval, decode = self._shared_ms
        self._shared_ms = retrieval + retrieval_ms / self.active, decode + decode_ms / self.active

    def append(self, slots: np.ndarray, verdict: VerificationResult,
              is_eos: np.ndarray) -> tuple[int, np.ndarray]:
        """Append the accepted tokens and the model's own, up to the end of text or the row's limit.

        slots (R,), is_eos bool (V,). Returns how many rows end, and int8 (R,): ``GOES_ON`` or why it ends.
        All slots of the step are shared among its rows.
        """
        return self._write(slots, verdict, is_eos, len(self.used) / len(slots))

    def append_prefilled(self, slots: np.ndarray, verdict: VerificationResult,
              is_eos: np.ndarray) -> tuple[int, np.ndarray]:
        """The same for a prompt's forward, which is no step: what it accepted is counted as scored."""
        ending, ends = self._write(slots, verdict, is_eos, 0.0)
        self.reused[slots], self.accepted[slots] = self.accepted[slots], 0
        return ending, ends

    def _write(self, slots: np.ndarray, verdict: VerificationResult, is_eos: np.ndarray,
               share: float) -> tuple[int, np.ndarray]:
        ends = np.empty(len(slots), np.int8)
        ending = _write(slots, verdict.counts, verdict.tokens, verdict.relaxed, verdict.finite, is_eos, share,
                        self.max_length, self.tokens, self.relaxed, self.step_tokens, self.length,
                        self.forwards, self.accepted, self.slot_steps, ends)
        return ending, ends

    def matched_previous(self, slot: int) -> tuple[int, bool]:
        """Tokens of a written row's old text that passed, and whether the next one failed."""
        old, scored, offered = self.previous[slot], int(self.reused[slot]), int(self.submitted[slot])
        if scored < offered:
            return scored, True
        text = self.tokens[slot, self.prompt[slot] : self.length[slot]]
        kept = common_prefix_length(text, old)
        return kept, kept < min(len(text), len(old))

    def finish(self, slot: int, reason: str, error: str | None = None,
               beams: BeamCounts | None = None) -> Result:
        """Take a row out of its slot."""
        start, end, forwards, accepted, scored, *_ = self._counted[:, slot].tolist()
        (retrieval_ms, decode_ms), (shared, shared_decode) = self.own_ms[slot].tolist(), self._shared_ms
        relaxed = self.relaxed[slot, start:end].nonzero()[0].astype(np.int32)
        guard = self.requests[slot].max_relaxed_tokens
        result = Result(
            self.requests[slot].id, self.tokens[slot, start:end].copy(), reason, error, start, forwards - 1,
            scored, accepted, len(relaxed), 0 if guard is None else max(0, end - start - guard),
            self.step_tokens[slot, :forwards].copy(), relaxed,
            retrieval_ms + shared, decode_ms + shared_decode, self.slot_steps[slot].item(),
            beams,
        )
        self.active -= 1
        self.used[slot], self.requests[slot], self._active_requests = False, None, None
        self.processors[slot] = self.previous[slot] = None
        return result

    def move(self, source: int, target: int) -> None:
        """Move a row to a free slot."""
        self._counted[:, target] = self._counted[:, source]
        for array in (self.used, self.tokens, self.relaxed, self.step_tokens, self.own_ms, self.slot_steps,
                      self.admitted_s):
            array[target] = array[source]
        for values in (self.requests, self.processors, self.previous):
            values[target], values[source] = values[source], None
        self.used[source], self._active_requests = False, None

    def _reserve(self, longest: int) -> None:
        if longest > self.tokens.shape[1]:
            more = ((0, 0), (0, longest + 64 - self.tokens.shape[1]))
            self.tokens, self.relaxed, self.step_tokens = (
                np.pad(x, more) for x in (self.tokens, self.relaxed, self.step_tokens))


def _relaxed_end(request: Request) -> int:
    if request.strict:
        return 0
    limit = request.max_relaxed_tokens
    return _NO_LIMIT if limit is None else len(request.prompt_ids) + limit


@numba.njit(cache=True)
def _plan(tokens, length, longest, depth, nodes, columns, before, roots, lengths, budgets, depths):
    for r in range(len(before)):
        before[r], roots[r], lengths[r] = length[r] - 1, tokens[r, length[r] - 1], length[r]
        depths[r] = min(longest[r] - length[r] - 1, depth)
        budgets[r] = nodes if depths[r] > 0 and (columns < 0 or length[r] + nodes <= columns) else 0


@numba.njit(cache=True)
def _write(slots, counts, new, new_relaxed, finite, is_eos, share, longest, tokens, relaxed, step_tokens,
           length, forwards, accepted, slot_steps, ends):
    ending = 0
    for r, slot in enumerate(slots):
        start = length[slot]
        written, ended = 0, False
        last = counts[r] if finite[r] else counts[r] - 1  # nobody chose the token behind scores that are none
        while written <= last and start + written < longest[slot] and not ended:
            token = new[r, written]
            tokens[slot, start + written] = token
            relaxed[slot, start + written] = new_relaxed[r, written]
            ended = is_eos[token]
            written += 1
        step_tokens[slot, forwards[slot]] = written
        forwards[slot] += 1
        accepted[slot] += min(counts[r], written)
        slot_steps[slot] += share
        length[slot] = start + written
        full = start + written >= longest[slot]
        ends[r] = NON_FINITE if not finite[r] else EOS if ended else LENGTH if full else RUNNING
        ending += ends[r] != RUNNING
    return ending
