"""The rows being decoded: their text and counts, in arrays with one slot a row."""

import numba
import numpy as np

from dare_job.decode.admission import Admission
from dare_job.decode.request import Request, Result
from dare_job.decode.scoring import common
from dare_job.decode.verify.verdict import Verdict

_NEVER = 2**62  # no text is as long


class Rows:
    """Slots of rows. ``length`` counts the text with the prompt; its last token is the next tree's root."""

    def __init__(self, slots: int):
        self.used = np.zeros(slots, np.bool_)
        self.active = 0  # slots in use
        self.requests: list[Request | None] = [None] * slots
        self.processors: list = [None] * slots
        self.old: list[np.ndarray | None] = [None] * slots  # text that may be scored
        self.guard = np.zeros(slots, np.int64)  # length behind which all is strict, the prompt counted
        self.tokens = np.zeros((slots, 0), np.int32)
        self.relaxed = np.zeros((slots, 0), np.bool_)  # which tokens of the text are relaxed
        self.step_tokens = np.zeros((slots, 0), np.int16)
        self.prompt, self.length, self.longest, self.least, self.forwards, self.accepted, self.scored = (
            np.zeros(slots, np.int64) for _ in range(7))
        self.offered = np.zeros(slots, np.int64)  # tokens of ``old`` that stand behind the prompt
        self.retrieval_ms, self.decode_ms, self.slot_steps = np.zeros((3, slots))

    def free(self) -> np.ndarray:
        """Slots without a row, ascending."""
        return np.flatnonzero(~self.used)

    def admit(self, slot: int, row: Admission) -> None:
        prompt = row.request.prompt_ids
        self._reserve(row.longest)
        self.active += 1
        self.used[slot], self.requests[slot], self.processors[slot] = True, row.request, row.processors
        self.old[slot], self.guard[slot] = row.old, _guard(row.request)
        self.tokens[slot, : len(prompt)] = prompt
        self.relaxed[slot] = False
        self.prompt[slot] = self.length[slot] = len(prompt)
        self.longest[slot], self.least[slot] = row.longest, row.least
        self.forwards[slot] = self.accepted[slot] = self.scored[slot] = self.offered[slot] = 0
        self.retrieval_ms[slot] = self.decode_ms[slot] = self.slot_steps[slot] = 0.0

    def step(self) -> None:
        """Share all slots of a step among its rows, which stand in the first ones."""
        self.slot_steps[: self.active] += len(self.used) / self.active

    def write(self, slots: np.ndarray, verdict: Verdict, is_eos: np.ndarray) -> np.ndarray:
        """Append the accepted tokens and the model's own, up to the end of text or the row's limit.

        slots (R,), is_eos bool (V,). Returns bool (R,): the row ended with an end-of-text token.
        """
        ended = np.zeros(len(slots), np.bool_)
        _write(slots, verdict.counts, verdict.tokens, verdict.relaxed, is_eos, self.longest, self.tokens,
               self.relaxed, self.step_tokens, self.length, self.forwards, self.accepted, ended)
        return ended

    def write_scored(self, slots: np.ndarray, verdict: Verdict, is_eos: np.ndarray) -> np.ndarray:
        """The same for a prompt's forward: what it accepted is counted as scored."""
        ended = self.write(slots, verdict, is_eos)
        self.scored[slots], self.accepted[slots] = self.accepted[slots], 0
        return ended

    def followed(self, slot: int) -> tuple[int, bool]:
        """Tokens of a written row's old text that passed, and whether the next one failed."""
        old, scored, offered = self.old[slot], int(self.scored[slot]), int(self.offered[slot])
        if scored < offered:
            return scored, True
        text = self.tokens[slot, self.prompt[slot] : self.length[slot]]
        kept = common(text, old)
        return kept, kept < min(len(text), len(old))

    def finish(self, slot: int, reason: str, error: str | None = None) -> Result:
        """Take a row out of its slot."""
        start, end, forwards = int(self.prompt[slot]), int(self.length[slot]), int(self.forwards[slot])
        relaxed = np.flatnonzero(self.relaxed[slot, start:end]).astype(np.int32)
        result = Result(
            self.requests[slot].id, self.tokens[slot, start:end].copy(), reason, error, start, forwards - 1,
            int(self.scored[slot]), int(self.accepted[slot]), len(relaxed), self._guarded(slot),
            self.step_tokens[slot, :forwards].copy(), relaxed, float(self.retrieval_ms[slot]),
            float(self.decode_ms[slot]), float(self.slot_steps[slot]),
        )
        self.active -= 1
        self.used[slot], self.requests[slot] = False, None
        self.processors[slot] = self.old[slot] = None
        return result

    def _guarded(self, slot: int) -> int:
        """Tokens of a row's text behind its request's guard."""
        guard = self.requests[slot].guard
        return 0 if guard is None else max(0, int(self.length[slot] - self.prompt[slot]) - guard)

    def move(self, source: int, target: int) -> None:
        """Move a row to a free slot."""
        for array in (self.used, self.tokens, self.relaxed, self.step_tokens, self.prompt, self.length,
                      self.longest, self.least, self.forwards, self.accepted, self.scored, self.offered,
                      self.guard, self.retrieval_ms, self.decode_ms, self.slot_steps):
            array[target] = array[source]
        for values in (self.requests, self.processors, self.old):
            values[target], values[source] = values[source], None
        self.used[source] = False

    def _reserve(self, longest: int) -> None:
        if longest > self.tokens.shape[1]:
            more = ((0, 0), (0, longest + 64 - self.tokens.shape[1]))
            self.tokens, self.relaxed, self.step_tokens = (
                np.pad(x, more) for x in (self.tokens, self.relaxed, self.step_tokens))


def _guard(request: Request) -> int:
    if request.strict:
        return 0
    return _NEVER if request.guard is None else len(request.prompt_ids) + request.guard


@numba.njit(cache=True)
def _write(slots, counts, new, new_relaxed, is_eos, longest, tokens, relaxed, step_tokens, length, forwards,
           accepted, ended):
    for r, slot in enumerate(slots):
        start = length[slot]
        written = 0
        while written <= counts[r] and start + written < longest[slot] and not ended[r]:
            token = new[r, written]
            tokens[slot, start + written] = token
            relaxed[slot, start + written] = new_relaxed[r, written]
            ended[r] = is_eos[token]
            written += 1
        step_tokens[slot, forwards[slot]] = written
        forwards[slot] += 1
        accepted[slot] += min(counts[r], written)
        length[slot] = start + written
