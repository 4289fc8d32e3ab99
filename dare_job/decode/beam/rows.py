"""The rows of beams being decoded: their forests, beams, finished beams and statistics.

Scores and the end of a row are those of beam search in ``generate`` of transformers with ``early_stopping``
false. A finished beam's score is log P / tokens ** length_penalty. A row with as many finished beams as its
width ends once the best unfinished beam, scored at its current length, is no better than the worst of them.
"""

import numpy as np

from dare_job.decode.beam.forest import Forest
from dare_job.decode.engine.request_checks import Admission
from dare_job.decode.engine.rows import Rows
from dare_job.decode.request import BeamStatistics, Result
from dare_job.decode.settings import Beams


class Finished:
    """The best finished beams of one row, best first."""

    def __init__(self, width: int, length_penalty: float):
        self.width, self.length_penalty = width, length_penalty
        self.beams: list[tuple[float, np.ndarray, float]] = []  # score, tokens, log P

    def score(self, likelihood: float, tokens: int) -> float:
        """Score of a beam with log P ``likelihood`` and this many tokens without the prompt."""
        return likelihood / tokens**self.length_penalty

    def would_keep(self, likelihood: float, tokens: int) -> bool:
        """Return whether a beam that ends now is among the best."""
        return len(self.beams) < self.width or self.score(likelihood, tokens) > self.beams[-1][0]

    def add(self, likelihood: float, tokens: np.ndarray) -> None:
        """Add a beam that ended: its log P, and its tokens int32 (tokens,) without the prompt."""
        self.beams.append((self.score(likelihood, len(tokens)), tokens, likelihood))
        self.beams.sort(key=lambda beam: -beam[0])
        del self.beams[self.width :]

    def is_done(self, likelihood: float, tokens: int) -> bool:
        """Return whether continuing cannot improve the result; likelihood is that of the best unfinished
        beam, or -inf.
        """
        if likelihood == -np.inf:
            return True
        full = len(self.beams) == self.width
        return full and self.score(likelihood, tokens) <= self.beams[-1][0]


# Sums over layers: beams; layers whose drafts were verified; those that passed, and their beams; beta.
STATISTICS = ("beams", "verified", "passed", "passed_beams", "beta")


class BeamRows(Rows):
    """Decoding state of the slots. ``length`` counts the text that all beams of a row share; W beams follow
    it.

    Attributes
    ----------
    parents, last_tokens : int64 (S, W)
        Node before each beam's last token, and that token, which is not read yet.
    likelihoods : float64 (S, W)
        Log P of each beam, -inf where there is none.
    written : int64 (S,)
        Tokens of every beam, the prompt included.
    drafted : bool (S,)
        Whether the draft model has read the row.
    layers, queries : int64 (S,)
        Layers generated and queries read so far.
    statistics : float64 (S, 5)
        Sums over layers, as named by ``STATISTICS``.
    """

    def __init__(self, slots: int, beams: Beams):
        super().__init__(slots)
        self.beams, self.forest = beams, Forest(slots)
        self.parents, self.last_tokens = np.zeros((2, slots, beams.width), np.int64)
        self.likelihoods = np.full((slots, beams.width), -np.inf)
        self.written, self.layers, self.queries = np.zeros((3, slots), np.int64)
        self.statistics = np.zeros((slots, len(STATISTICS)))
        self.drafted = np.zeros(slots, np.bool_)
        self.finished: list[Finished | None] = [None] * slots

    def admit(self, slot: int, row: Admission) -> None:
        super().admit(slot, row)
        self.forest.clear(slot)
        self.written[slot], self.drafted[slot] = self.length[slot], False
        self.layers[slot] = self.queries[slot] = self.statistics[slot] = 0
        self.finished[slot] = Finished(self.beams.width, self.beams.length_penalty)

    def entries(self, slot: int) -> int:
        """Tokens of the shared text plus nodes of the forest; a row has no more cache entries."""
        return int(self.length[slot] + self.forest.counts[slot])

    def beam_text(self, slot: int, node: int, token: int) -> np.ndarray:
        """Return the tokens int32 (tokens,) of a beam without the prompt; ``node`` is before the last one."""
        shared = self.tokens[slot, self.prompt[slot] : self.length[slot]]
        return np.concatenate((shared, self.forest.path(slot, node), [token])).astype(np.int32)

    def extend(self, slot: int, tokens: np.ndarray) -> None:
        """Append tokens (n,) to the text that all beams share."""
        end = self.length[slot] + len(tokens)
        self.tokens[slot, self.length[slot] : end] = tokens
        self.length[slot] = end

    def stepped(self, slots: np.ndarray, layers: np.ndarray, share: float) -> None:
        """Count a forward pass of rows (R,): its layers, and each row's share of the slots."""
        self.step_tokens[slots, self.forwards[slots]] = layers
        self.forwards[slots] += 1
        self.layers[slots] += layers
        self.slot_steps[slots] += share

    def conclude(self, slot: int, is_eos: np.ndarray) -> Result:
        """Remove a finished row from its slot; its best finished beam is its text. ``is_eos``: bool (V,)."""
        scores, texts, likelihoods = zip(*self.finished[slot].beams, strict=True)
        tokens = texts[0]
        layers = int(self.layers[slot])
        beams, verified, passed, passed_beams, beta = self.statistics[slot].tolist()
        counts = BeamStatistics(
            layers, beams / layers, int(verified), int(passed), passed_beams / max(1, passed),
            beta / max(1, verified), int(self.step_tokens[slot, self.forwards[slot] - 1]),
            int(self.queries[slot]), likelihoods, scores, texts)
        self.length[slot] = self.prompt[slot]
        self.extend(slot, tokens)
        steps = self.step_tokens[slot, : self.forwards[slot]]
        steps[:] = np.diff(np.minimum(np.cumsum(steps.astype(np.int64)), len(tokens)), prepend=0)
        self.accepted[slot] = np.maximum(steps[1:] - 1, 0).sum()
        return self.finish(slot, "eos" if is_eos[tokens[-1]] else "length", beams=counts)

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        for array in (self.parents, self.last_tokens, self.likelihoods, self.written, self.layers,
                      self.queries, self.drafted, self.statistics):
            array[target] = array[source]
        self.finished[target], self.finished[source] = self.finished[source], None
        self.forest.move(source, target)
