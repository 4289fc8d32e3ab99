"""The state of rows while one forward pass is verified layer by layer."""

import numpy as np

from dare_job.decode.beam.drafting import BeamDrafts
from dare_job.decode.beam.layer import Beam, LayerOutput
from dare_job.decode.beam.rows import STATISTICS, BeamRows


class Descent:
    """R rows on their way down the layers of one forward pass.

    Attributes
    ----------
    active : int64 (A,)
        Rows that have not stopped yet.
    ids, likelihoods : (R, B)
        Forest nodes and log P of the current layer's beams.
    out_parents, out_tokens, out_likelihoods : (R, W)
        The beams with which a row continues.
    layers : int64 (R,)
        Layers verified so far.
    statistics : float64 (R, 5)
        Sums over them, as named by ``STATISTICS``.
    over, nonfinite : bool (R,)
        Rows that finished, and those with non-finite scores.
    """

    def __init__(self, rows: BeamRows, slots: np.ndarray, keys: np.ndarray, ids: np.ndarray,
                 likelihoods: np.ndarray):
        count, width = len(slots), rows.beams.width
        self.rows, self.slots, self.keys, self.ids, self.likelihoods = rows, slots, keys, ids, likelihoods
        self.active = np.arange(count)
        self.out_parents, self.out_tokens = np.zeros((2, count, width), np.int64)
        self.out_likelihoods = np.full((count, width), -np.inf)
        self.layers, self.statistics = np.zeros(count, np.int64), np.zeros((count, len(STATISTICS)))
        self.over, self.nonfinite = np.zeros((2, count), np.bool_)

    def follow(self, output: LayerOutput, drafts: BeamDrafts | None) -> None:
        """Apply the outcome of a layer to the active rows."""
        running, ended = (Beam(*(field.cpu().numpy() for field in beam)) for beam in output[:2])
        passed, finite = output.passed.cpu().numpy(), output.finite.cpu().numpy()
        active, slots = self.active, self.slots[self.active]
        self.rows.written[slots] += 1
        self.layers[active] += 1
        self._count(output, drafts, passed)
        self._note_ended(ended)
        self.nonfinite[active] = ~finite
        best = running.likelihoods.max(-1)
        for index in range(len(active)):
            row, slot = active[index], slots[index]
            tokens = int(self.rows.written[slot] - self.rows.prompt[slot])
            self.over[row] = not finite[index] or self.rows.finished[slot].is_done(best[index], tokens)
        stops = ~passed & ~self.over[active]
        self._stop(active[stops], Beam(*(field[stops] for field in running)))
        continues = passed & ~self.over[active]
        self.active = active[continues]
        if drafts is None:
            return
        self.ids = drafts.ids
        self.likelihoods = np.full(drafts.ids.shape, -np.inf)
        self.likelihoods[self.active] = output.accepted.cpu().numpy()[continues]

    def _count(self, output: LayerOutput, drafts: BeamDrafts | None, passed: np.ndarray) -> None:
        widths = output.widths.cpu().numpy()
        self.statistics[self.active, 0] += widths
        if drafts is not None:
            drafted = (drafts.pairs >= 0).any(-1).cpu().numpy()[self.active]
            self.statistics[self.active, 1:] += np.stack(
                (drafted, passed, widths * passed, output.beta.cpu().numpy() * drafted), -1)

    def _note_ended(self, ended: Beam) -> None:
        for index, beam in np.argwhere(ended.likelihoods > -np.inf):
            row = self.active[index]
            slot, likelihood = self.slots[row], float(ended.likelihoods[index, beam])
            tokens = int(self.rows.written[slot] - self.rows.prompt[slot])
            if self.rows.finished[slot].would_keep(likelihood, tokens):
                node = self.ids[row, ended.parents[index, beam]]
                self.rows.finished[slot].add(likelihood,
                                             self.rows.beam_text(slot, node, ended.tokens[index, beam]))

    def _stop(self, rows: np.ndarray, running: Beam) -> None:
        wide = running.parents.shape[1]
        self.out_parents[rows, :wide] = np.take_along_axis(self.ids[rows], running.parents, 1)
        self.out_tokens[rows, :wide] = running.tokens
        self.out_likelihoods[rows, :wide] = running.likelihoods
