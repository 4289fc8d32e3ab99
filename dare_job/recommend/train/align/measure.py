"""How far a draft's beams hold the target's: what strict verification would accept of a first draft."""

from collections.abc import Sequence

import numpy as np
import torch

from dare_job.recommend.train import beams
from dare_job.recommend.train.align.lessons import Scorer
from dare_job.recommend.train.table import CodeTable

_USERS = 32  # at once


def prefixes(scorer: Scorer, table: CodeTable, histories: Sequence[np.ndarray],
             width: int) -> list[torch.Tensor]:
    """Of each level but the last the numbers int64 (U, W) of the best prefixes, -1 where there are fewer."""
    parts = []
    for at in range(0, len(histories), _USERS):
        found = beams.search([scorer], [1.0], table, histories[at:at + _USERS], width)[:-1]
        parts.append([one.numbers.masked_fill(one.scores == -torch.inf, -1).cpu() for one in found])
    return [torch.cat(level) for level in zip(*parts, strict=True)]


def accepted_steps(wanted: list[torch.Tensor], drafted: list[torch.Tensor]) -> np.ndarray:
    """Of each user the leading levels whose K wanted prefixes are all among the N drafted ones, int64 (U).

    ``prefixes`` of target and draft. At most L - 1: the target's forward gives the last step itself.
    """
    running = torch.ones(len(wanted[0]), dtype=torch.bool)
    total = torch.zeros(len(wanted[0]), dtype=torch.int64)
    for due, found in zip(wanted, drafted, strict=True):
        held = ((due[:, :, None] == found[:, None]).any(2) | (due < 0)).all(1)
        running = running & held
        total += running
    return total.numpy()
