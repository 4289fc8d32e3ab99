"""Rows on their way down the layers of one forward: what they accept, what ends, what they go on with."""

import numpy as np

from dare_job.decode.beam.drafting import BeamDrafts
from dare_job.decode.beam.layer import Beam, LayerOutput
from dare_job.decode.beam.rows import STATISTICS, BeamRows


class Descent:
    """R rows on their way down their layers; ``going`` (A,) are those that have not stopped yet.

    ids, likelihoods  (R, B): nodes and log P of the beams of the present layer
    out_above, out_leaf, out_likelihoods  (R, W): the beams that a row goes on with
    layers  int64 (R,): layers so far; seen: what is summed over them, ``SEEN``
    over, unsound     bool (R,): rows that ended, and those whose scores are no numbers
    """

    def __init__(self, rows: BeamRows, slots: np.ndarray, keys: np.ndarray, ids: np.ndarray,
                 likelihoods: np.ndarray):
        count, width = len(slots), rows.beams.width
        self.rows, self.slots, self.keys, self.ids, self.likelihoods = rows, slots, keys, ids, likelihoods
        self.going = np.arange(count)
        self.out_above, self.out_leaf = np.zeros((2, count, width), np.int64)
        self.out_likelihoods = np.full((count, width), -np.inf)
        self.layers, self.seen = np.zeros(count, np.int64), np.zeros((count, len(STATISTICS)))
        self.over, self.unsound = np.zeros((2, count), np.bool_)

    def follow(self, output: LayerOutput, given: BeamDrafts | None) -> None:
        """Take a layer's outcome for the rows that go."""
        running, ended = (Beam(*(field.cpu().numpy() for field in beam)) for beam in output[:2])
        passed, sound = output.passed.cpu().numpy(), output.sound.cpu().numpy()
        going, slots = self.going, self.slots[self.going]
        self.rows.written[slots] += 1
        self.layers[going] += 1
        self._count(output, given, passed)
        self._note_ended(ended)
        self.unsound[going] = ~sound
        best = running.likelihoods.max(-1)
        for place in range(len(going)):
            row, slot = going[place], slots[place]
            tokens = int(self.rows.written[slot] - self.rows.prompt[slot])
            self.over[row] = not sound[place] or self.rows.finished[slot].settled(best[place], tokens)
        stops = ~passed & ~self.over[going]
        self._stop(going[stops], Beam(*(field[stops] for field in running)))
        onward = passed & ~self.over[going]
        self.going = going[onward]
        if given is None:
            return
        self.ids = given.ids
        self.likelihoods = np.full(given.ids.shape, -np.inf)
        self.likelihoods[self.going] = output.accepted.cpu().numpy()[onward]

    def _count(self, output: LayerOutput, given: BeamDrafts | None, passed: np.ndarray) -> None:
        widths = output.widths.cpu().numpy()
        self.seen[self.going, 0] += widths
        if given is not None:
            drafted = (given.pairs >= 0).any(-1).cpu().numpy()[self.going]
            self.seen[self.going, 1:] += np.stack(
                (drafted, passed, widths * passed, output.beta.cpu().numpy() * drafted), -1)

    def _note_ended(self, ended: Beam) -> None:
        for place, beam in np.argwhere(ended.likelihoods > -np.inf):
            row = self.going[place]
            slot, likelihood = self.slots[row], float(ended.likelihoods[place, beam])
            tokens = int(self.rows.written[slot] - self.rows.prompt[slot])
            if self.rows.finished[slot].wanted(likelihood, tokens):
                node = self.ids[row, ended.parents[place, beam]]
                self.rows.finished[slot].add(likelihood,
                                             self.rows.text(slot, node, ended.tokens[place, beam]))

    def _stop(self, rows: np.ndarray, running: Beam) -> None:
        wide = running.parents.shape[1]
        self.out_above[rows, :wide] = np.take_along_axis(self.ids[rows], running.parents, 1)
        self.out_leaf[rows, :wide] = running.tokens
        self.out_likelihoods[rows, :wide] = running.likelihoods
