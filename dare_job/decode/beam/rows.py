"""The rows of beams that are being decoded: their forests, beams, finished beams and counts.

Beams that ended: the best are kept, and a row ends when none that goes on can be better.

Scores and the end are those of beam search in ``generate`` of transformers with ``early_stopping`` false: a
finished beam's score is log P / tokens ** length_penalty, and a row with as many finished beams as its width
ends once the best beam that goes on, scored at its present length, is no better than the worst of them.
"""

import numpy as np

from dare_job.decode.beam.forest import TEXT, Forest
from dare_job.decode.engine.admission import Admission
from dare_job.decode.engine.rows import Rows
from dare_job.decode.request import BeamCounts, Result
from dare_job.decode.settings import Beams


class Finished:
    """The best finished beams of one row, best first."""

    def __init__(self, width: int, length_penalty: float):
        self.width, self.length_penalty = width, length_penalty
        self.beams: list[tuple[float, np.ndarray, float]] = []  # score, tokens, log P

    def score(self, likelihood: float, tokens: int) -> float:
        return likelihood / tokens**self.length_penalty

    def wanted(self, likelihood: float, tokens: int) -> bool:
        """Whether a beam that ends now is among the best."""
        return len(self.beams) < self.width or self.score(likelihood, tokens) > self.beams[-1][0]

    def add(self, likelihood: float, tokens: np.ndarray) -> None:
        self.beams.append((self.score(likelihood, len(tokens)), tokens, likelihood))
        self.beams.sort(key=lambda beam: -beam[0])
        del self.beams[self.width :]

    def settled(self, likelihood: float, tokens: int) -> bool:
        """Whether nothing is gained by going on: likelihood of the best beam that could, -inf: none."""
        if likelihood == -np.inf:
            return True
        full = len(self.beams) == self.width
        return full and self.score(likelihood, tokens) <= self.beams[-1][0]

# Sums over layers: beams; layers whose drafts were judged; those that passed, and their beams; beta.
STATISTICS = ("beams", "judged", "passed", "passed_beams", "beta")


class BeamRows(Rows):
    """``length`` counts what all beams of a row share and the caches hold; W beams stand behind it.

    above, leaf  int64 (S, W): node of each beam's last but one token, and its last one, not read yet
    likelihoods  float64 (S, W): log P of each, -inf where there is none
    written      int64 (S,): tokens of every beam, the prompt counted
    drafted      bool (S,): whether the draft model has read the row
    layers, queries  int64 (S,): layers written and queries read so far; seen (S, 5): sums of ``SEEN``
    """

    def __init__(self, slots: int, beams: Beams):
        super().__init__(slots)
        self.beams, self.forest = beams, Forest(slots)
        self.above, self.leaf = np.zeros((2, slots, beams.width), np.int64)
        self.likelihoods = np.full((slots, beams.width), -np.inf)
        self.written, self.layers, self.queries = np.zeros((3, slots), np.int64)
        self.seen = np.zeros((slots, len(STATISTICS)))
        self.drafted = np.zeros(slots, np.bool_)
        self.finished: list[Finished | None] = [None] * slots

    def admit(self, slot: int, row: Admission) -> None:
        super().admit(slot, row)
        self.forest.clear(slot)
        self.written[slot], self.drafted[slot] = self.length[slot], False
        self.layers[slot] = self.queries[slot] = self.seen[slot] = 0
        self.finished[slot] = Finished(self.beams.width, self.beams.length_penalty)

    def entries(self, slot: int) -> int:
        return int(self.length[slot] + self.forest.counts[slot])

    def text(self, slot: int, node: int, token: int) -> np.ndarray:
        """Tokens int32 of a beam, the prompt left out, by the node before its last token."""
        shared = self.tokens[slot, self.prompt[slot] : self.length[slot]]
        return np.concatenate((shared, self.forest.path(slot, node), [token])).astype(np.int32)

    def extend(self, slot: int, tokens: np.ndarray) -> None:
        """Text that all beams share."""
        end = self.length[slot] + len(tokens)
        self.tokens[slot, self.length[slot] : end] = tokens
        self.length[slot] = end

    def stepped(self, slots: np.ndarray, layers: np.ndarray, share: float) -> None:
        """Count a forward of rows (R,): layers that it wrote, and its share of all slots."""
        self.step_tokens[slots, self.forwards[slots]] = layers
        self.forwards[slots] += 1
        self.layers[slots] += layers
        self.slot_steps[slots] += share

    def conclude(self, slot: int, is_eos: np.ndarray) -> Result:
        """Take a row that ended out of its slot: its best finished beam is its text."""
        scores, texts, likelihoods = zip(*self.finished[slot].beams, strict=True)
        tokens = texts[0]
        layers, (beams, judged, passed, wide, beta) = int(self.layers[slot]), self.seen[slot].tolist()
        counts = BeamCounts(layers, beams / layers, int(judged), int(passed), wide / max(1, passed),
                            beta / max(1, judged), int(self.step_tokens[slot, self.forwards[slot] - 1]),
                            int(self.queries[slot]), likelihoods, scores, texts)
        self.length[slot] = self.prompt[slot]
        self.extend(slot, tokens)
        steps = self.step_tokens[slot, : self.forwards[slot]]
        steps[:] = np.diff(np.minimum(np.cumsum(steps.astype(np.int64)), len(tokens)), prepend=0)
        self.accepted[slot] = np.maximum(steps[1:] - 1, 0).sum()
        return self.finish(slot, "eos" if is_eos[tokens[-1]] else "length", beams=counts)

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        for one in (self.above, self.leaf, self.likelihoods, self.written, self.layers, self.queries,
                    self.drafted, self.seen):
            one[target] = one[source]
        self.finished[target], self.finished[source] = self.finished[source], None
        self.forest.move(source, target)


def text_parents(rows: int, beams: int) -> np.ndarray:
    """Parents int64 (R, B) of what stands directly behind the text."""
    return np.full((rows, beams), TEXT, np.int64)
