"""The order in which traversal goes through trees: a node is entered, and left behind its descendants."""

from typing import NamedTuple

import numba
import numpy as np
import torch

from dare_job.decode.sampling.tree import Candidates
from dare_job.errors import ConfigError


class Step(NamedTuple):
    """One node of each row whose tour is not over, int64 (M,) each but ``entering`` bool (M,).

    row, node, parent   a root's parent is -1
    depth, place        of the node below its root, and among its siblings
    entering            or leaving
    """

    row: torch.Tensor
    node: torch.Tensor
    parent: torch.Tensor
    depth: torch.Tensor
    place: torch.Tensor
    entering: torch.Tensor

    def of(self, which: torch.Tensor) -> "Step":
        return Step(*(field[which] for field in self))


def tours(tree: Candidates) -> list[Step]:
    """The steps that all rows take together. ConfigError where two draws share a node."""
    roots, children = tree.roots.cpu().numpy(), tree.children.cpu().numpy()
    notes, shared = _tours(roots, children)
    if shared >= 0:
        raise ConfigError(f"node {shared} stands for two draws: traversal needs a node for each draw")
    notes = notes[:, np.argsort(notes[0], kind="stable")]
    fields = torch.from_numpy(notes).to(tree.tokens.device)
    lengths = np.bincount(notes[0]).tolist()
    return [Step(*each[1:6], each[6] > 0) for each in fields.split(lengths, 1)]


@numba.njit(cache=True)
def _tours(roots, children):
    """int64 (7, M): step, row, node, parent, depth, place, entering, row by row; a node met twice, or -1."""
    nodes, width = children.shape
    notes, taken = np.empty((7, 2 * nodes), np.int64), np.zeros(nodes, np.bool_)
    path, places, count = np.empty(nodes + 1, np.int64), np.empty(nodes + 1, np.int64), 0
    for row in range(len(roots)):
        path[0], places[0], depth, step, entering = roots[row], 0, 0, 0, True
        while depth >= 0:
            node = path[depth]
            if entering:
                if taken[node]:
                    return notes, node
                taken[node] = True
                _note(notes[:, count], step, row, path, places, depth, 1)
                step, count = step + 1, count + 1
            first = 0 if entering else places[depth + 1] + 1
            while first < width and children[node, first] < 0:
                first += 1
            entering = first < width
            if entering:
                depth += 1
                path[depth], places[depth] = children[node, first], first
            else:
                _note(notes[:, count], step, row, path, places, depth, 0)
                step, count, depth = step + 1, count + 1, depth - 1
    return notes[:, :count].copy(), -1


@numba.njit
def _note(note, step, row, path, places, depth, entering):
    note[0], note[1], note[2], note[3] = step, row, path[depth], path[depth - 1] if depth > 0 else -1
    note[4], note[5], note[6] = depth, places[depth], entering
