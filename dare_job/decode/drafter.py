"""What the engine asks of a drafter.

How wide a drafted tree is on each of its levels, written as ``k1xk2x...``.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Protocol

import numpy as np
import torch

from dare_job.decode.request import Request
from dare_job.errors import ConfigError
from pools.tree import DraftBatch

# Logits (T, V), rows (T,), and how many tokens (T,) stand before what comes next -> logits, -inf for what may
# not come.
Constraint = Callable[[torch.Tensor, np.ndarray, np.ndarray], torch.Tensor]


class Drafter(Protocol):
    def draft(self, requests: Sequence[Request], context: np.ndarray, lengths: np.ndarray,
              budgets: np.ndarray, depths: np.ndarray, least: float = 0.0) -> DraftBatch:
        """Trees for R rows; the next call may write over them.

        requests  the rows' requests: their pools; the same object while the rows are the same
        context   int32 (R, L): prompt and text so far, padded on the right
        lengths   int32 (R,): tokens in use; the last one is the tree's root
        budgets   int32 (R,): nodes that a row may have
        depths    int32 (R,): longest path that a row can still use
        least     score under which no node is wanted; a row's nodes come with falling scores
        """

MOST = 512  # nodes of a row's tree


@dataclass(frozen=True)
class Shape:
    """Each node on level d has ``widths[d]`` children; the root is on level 0."""

    widths: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """``4x2x1``: four children of the root, two of each, one of each of these. Raises ConfigError."""
        if not re.fullmatch(r"[1-9]\d{0,3}(x[1-9]\d{0,3})*", text):
            raise ConfigError(f"draft tree {text!r} is no list of widths; write for example 4x2x1: four "
                              "candidates, two behind each, one behind each of those")
        shape = cls(tuple(map(int, text.split("x"))))
        if shape.nodes > MOST:
            raise ConfigError(f"draft tree {text} has {shape.nodes} nodes a row; {MOST} at most: take fewer "
                              "levels or narrower ones")
        return shape

    def __str__(self) -> str:
        return "x".join(map(str, self.widths))

    @property
    def depth(self) -> int:
        return len(self.widths)

    @property
    def nodes(self) -> int:
        """Of a whole tree, its root left out."""
        return sum(accumulate(self.widths, mul))

    def require(self, budget: int, setting: str = "decode.nodes") -> None:
        """Raises ConfigError where a whole tree has more nodes than a row may have."""
        if self.nodes > budget:
            raise ConfigError(f"draft tree {self} has {self.nodes} nodes a row, more than {setting} = "
                              f"{budget}; raise that, or take a smaller tree")
