"""Writing recorded texts again: draft, count the path that agrees with what was written, go on behind it.

What one call costs that drafts for a whole batch: microseconds a row, on one thread and on all.

Is a node's score the probability that its path is accepted? Predicted against observed, by decile.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from pools.draft import DraftSettings, draft
from pools.index import Index
from pools.tree import ROOT

ROWS = 128
_REPEATS = 15
_RESAMPLES = 1000


def cost(texts: Sequence[np.ndarray], pools: Sequence[Sequence[Index]], settings: DraftSettings,
         nodes: int) -> dict:
    """Median microseconds a row of a call for ROWS rows, each somewhere in one of ``texts``, by threads."""
    rng = np.random.default_rng(0)
    chosen = rng.integers(0, len(texts), ROWS)
    lengths = np.array([rng.integers(1, texts[i].size) for i in chosen], np.int32)
    context = np.zeros((ROWS, int(lengths.max())), np.int32)
    for row, (i, length) in enumerate(zip(chosen, lengths, strict=True)):
        context[row, :length] = texts[i][:length]
    budgets, sources = np.full(ROWS, nodes, np.int32), [pools[i] for i in chosen]
    found = {}
    for threads in sorted({1, len(os.sched_getaffinity(0))}):
        asked, times = replace(settings, threads=threads), []
        for _ in range(_REPEATS):
            begun = time.perf_counter()
            draft(context, lengths, budgets, sources, asked)
            times.append(time.perf_counter() - begun)
        found[str(threads)] = round(1e6 * float(np.median(times)) / ROWS, 2)
    return found


class Calibration:
    """Collects the scores of drafted nodes, and which of them were accepted."""

    def __init__(self) -> None:
        self._scores, self._accepted = bytearray(), bytearray()  # growing arrays do not disturb what is timed

    def add(self, scores: np.ndarray, accepted: Sequence[int]) -> None:
        """One tree: float32 (nodes,), and the places of the nodes on the accepted path."""
        hit = bytearray(len(scores))
        for place in accepted:
            hit[place] = 1
        self._scores += scores.tobytes()
        self._accepted += hit

    def deciles(self) -> list[dict]:
        """Nodes in ten parts of equal size by score, the lowest first: mean score, accepted share, nodes."""
        scores, accepted = np.frombuffer(self._scores, np.float32), np.frombuffer(self._accepted, np.uint8)
        order = np.argsort(scores, kind="stable")
        return [{"predicted": round(float(scores[part].mean()), 4),
                 "observed": round(float(accepted[part].mean()), 4), "nodes": int(part.size)}
                for part in np.array_split(order, 10) if part.size]


class Drafter(Protocol):
    """A way of drafting one text at a time, by default from one pool for all and without the text so far."""

    def start(self, number: int, text: np.ndarray) -> None:
        """The next text, by its place among the replayed ones; only its first token is known."""

    def draft(self, text: np.ndarray, known: int, nodes: int) -> tuple[Sequence[int], Sequence[int]]:
        """Tokens and parents (``ROOT`` or an earlier place) of a tree behind ``text[:known]``."""

    def wrote(self, text: np.ndarray, before: int, known: int) -> None:
        """``text[before:known]`` has become known."""


def replay(texts: Sequence[np.ndarray], drafter: Drafter, nodes: int,
           calibration: Calibration | None = None) -> dict:
    """Write ``texts`` again with trees of at most ``nodes``; the first token is given.

    A step gives the accepted path and one more token. Returns accepted_per_step (that token not counted)
    with its 95 % bootstrap interval over texts, nodes_used, steps, p50_us and p99_us of retrieval and of
    insertion (wall; retrieval also as the thread's own processor time, which a busy machine disturbs less),
    and ``per_text`` (accepted, steps) for comparison in pairs. ``calibration`` takes up every tree of a
    drafter that has ``scores``.
    """
    per_text = np.zeros((len(texts), 2), np.int64)
    used, times, cpu, insertions = 0, [], [], []
    for number, text in enumerate(texts):
        drafter.start(number, text)
        known = 1
        while known < text.size:
            begun, begun_cpu = time.perf_counter_ns(), time.thread_time_ns()
            tokens, parents = drafter.draft(text, known, nodes)
            cpu.append(time.thread_time_ns() - begun_cpu)
            times.append(time.perf_counter_ns() - begun)
            path = accepted(tokens, parents, text[known:])
            if calibration is not None:
                calibration.add(drafter.scores, path)
            gained = len(path)
            per_text[number] += gained, 1
            used += len(tokens)
            before, known = known, min(text.size, known + gained + 1)
            begun = time.perf_counter_ns()
            drafter.wrote(text, before, known)
            insertions.append(time.perf_counter_ns() - begun)
    steps = max(1, int(per_text[:, 1].sum()))
    (sums,) = resampled(per_text)
    return {
        "accepted_per_step": round(float(per_text[:, 0].sum() / steps), 4),
        "ci95": middle(sums[:, 0] / np.maximum(1, sums[:, 1])),
        "nodes_used": round(used / steps, 2), "steps": steps,
        **_quantiles("", times), **_quantiles("cpu_", cpu), **_quantiles("insertion_", insertions),
        "per_text": per_text,
    }


def accepted(tokens: Sequence[int], parents: Sequence[int], truth: np.ndarray) -> list[int]:
    """Places of the tree's longest path that ``truth`` (tokens that follow) begins with."""
    node, path = ROOT, []
    for place, (token, parent) in enumerate(zip(tokens, parents, strict=True)):  # parents come first
        if len(path) < truth.size and parent == node and token == truth[len(path)]:
            node = place
            path.append(place)
    return path


def ratio(ours: np.ndarray, theirs: np.ndarray) -> dict:
    """Accepted per step of one drafter over another's on the same texts, with its paired 95 % interval.

    ours, theirs  int64 (texts, 2): ``per_text`` of two replays
    """
    def over(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return (one[..., 0] / one[..., 1]) / np.maximum(1e-9, other[..., 0] / other[..., 1])

    return {"ratio": round(float(over(ours.sum(axis=0), theirs.sum(axis=0))), 4),
            "ratio_ci95": middle(over(*resampled(ours, theirs)))}


def resampled(*per_text: np.ndarray) -> list[np.ndarray]:
    """Sums (resamples, 2) over bootstrap samples of texts, the same texts for each (texts, 2)."""
    texts = len(per_text[0])
    picks = np.random.default_rng(0).integers(0, texts, (_RESAMPLES, texts))
    return [one[picks].sum(axis=1) for one in per_text]


def middle(rates: np.ndarray) -> list[float]:
    """Ends of the middle 95 %."""
    return np.percentile(rates, [2.5, 97.5]).round(4).tolist()


def _quantiles(prefix: str, nanoseconds: Sequence[int]) -> dict:
    return {f"{prefix}p{q}_us": round(float(np.percentile(nanoseconds, q)) / 1e3, 1) for q in (50, 99)}
