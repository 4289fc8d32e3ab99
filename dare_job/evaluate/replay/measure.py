"""Replays recorded texts: drafts, counts the accepted tokens, and continues after them.

Also measures the cost of a call that drafts for a whole batch, and how well scores predict acceptance.
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
         nodes: int, prompts: Sequence[np.ndarray]) -> dict:
    """Median microseconds per row of a call for ROWS rows at random places of texts, by threads.

    ``texts`` and ``prompts`` are int32 (tokens,) each.
    """
    rng = np.random.default_rng(0)
    chosen = rng.integers(0, len(texts), ROWS)
    rows = [(prompts[i], texts[i][:rng.integers(1, texts[i].size)]) for i in chosen]
    prompted = np.array([prompt.size for prompt, _ in rows], np.int32)
    lengths = np.array([prompt.size + text.size for prompt, text in rows], np.int32)
    context = np.zeros((ROWS, int(lengths.max())), np.int32)
    for row, parts in enumerate(rows):
        context[row, :lengths[row]] = np.concatenate(parts)
    budgets, sources = np.full(ROWS, nodes, np.int32), [pools[i] for i in chosen]
    microseconds = {}
    for threads in sorted({1, len(os.sched_getaffinity(0))}):
        threaded, times = replace(settings, threads=threads), []
        for _ in range(_REPEATS):
            started = time.perf_counter()
            draft(context, lengths, budgets, sources, threaded, prompts=prompted)
            times.append(time.perf_counter() - started)
        microseconds[str(threads)] = round(1e6 * float(np.median(times)) / ROWS, 2)
    return microseconds


class Calibration:
    """Collects the scores of drafted nodes, and which of them were accepted."""

    def __init__(self) -> None:
        self._scores, self._accepted = bytearray(), bytearray()  # appending does not disturb the timing

    def add(self, scores: np.ndarray, accepted: Sequence[int]) -> None:
        """Add a tree: scores float32 (nodes,), and the places of the nodes on the accepted path."""
        is_accepted = bytearray(len(scores))
        for place in accepted:
            is_accepted[place] = 1
        self._scores += scores.tobytes()
        self._accepted += is_accepted

    def deciles(self) -> list[dict]:
        """Nodes in ten parts of equal size by ascending score: mean score, accepted share, nodes."""
        scores, accepted = np.frombuffer(self._scores, np.float32), np.frombuffer(self._accepted, np.uint8)
        order = np.argsort(scores, kind="stable")
        return [{"predicted": round(float(scores[part].mean()), 4),
                 "observed": round(float(accepted[part].mean()), 4), "nodes": int(part.size)}
                for part in np.array_split(order, 10) if part.size]


class Drafter(Protocol):
    """Drafts for one row, int32 (tokens,), at a time: a prompt, which may be empty, and its text."""

    def start(self, number: int, row: np.ndarray, prompt: int) -> None:
        """Begin the row with this place among the replayed ones, with so many prompt tokens.

        Only the prompt is known; without a prompt, the first token of the text.
        """

    def draft(self, row: np.ndarray, known: int, nodes: int) -> tuple[Sequence[int], Sequence[int]]:
        """Tokens and parents (``ROOT`` or an earlier index) of a draft tree after ``row[:known]``."""

    def add(self, row: np.ndarray, before: int, known: int) -> None:
        """Add ``row[before:known]`` to the known tokens."""


class Verifier(Protocol):
    """Verifies the draft trees of one row, int32 (tokens,), at a time: a prompt and its text."""

    def __call__(self, row: np.ndarray, known: int, prompt: int, tokens: Sequence[int],
                 parents: Sequence[int]) -> list[int]:
        """Nodes of the accepted path of a tree after ``row[:known]``, at most the rest of the row."""


def replay(texts: Sequence[np.ndarray], drafter: Drafter, nodes: int,
           calibration: Calibration | None = None, prompts: Sequence[np.ndarray] | None = None,
           verifier: Verifier | None = None) -> dict:
    """Replay ``texts``, int32 (tokens,) each, with trees of at most ``nodes``.

    The prompt of a text, int32 (tokens,), is known; without one the text's first token is. A step generates
    the accepted path and one more token, unless the text ends with the path. Without a verifier, verification
    is strict: it accepts what the text continues with.

    Returns
    -------
    dict
        accepted_per_step (without that one more token) with its 95 % bootstrap interval over texts,
        tokens_per_step (generated tokens), nodes_used, steps, p50_us and p99_us of drafting (wall-clock, and
        as ``cpu_`` the thread's processor time, which load affects less), and ``per_text`` (accepted, steps)
        for paired comparisons. ``calibration`` collects the trees of a drafter that has ``scores``.
    """
    per_text = np.zeros((len(texts), 2), np.int64)
    used, generated, times, cpu = 0, 0, [], []
    for number, text in enumerate(texts):
        prompt = prompts[number].size if prompts else 0
        row = np.concatenate((prompts[number], text)) if prompt else text
        drafter.start(number, row, prompt)
        known = max(1, prompt)
        generated += row.size - known
        while known < row.size:
            started, started_cpu = time.perf_counter_ns(), time.thread_time_ns()
            tokens, parents = drafter.draft(row, known, nodes)
            cpu.append(time.thread_time_ns() - started_cpu)
            times.append(time.perf_counter_ns() - started)
            path = accepted(tokens, parents, row[known:]) if verifier is None else verifier(
                row, known, prompt, tokens, parents)
            if calibration is not None:
                calibration.add(drafter.scores, path)
            per_text[number] += len(path), 1
            used += len(tokens)
            before, known = known, min(row.size, known + len(path) + 1)
            drafter.add(row, before, known)
    steps = max(1, int(per_text[:, 1].sum()))
    (sums,) = resampled(per_text)
    return {
        "accepted_per_step": round(float(per_text[:, 0].sum() / steps), 4),
        "tokens_per_step": round(generated / steps, 4),
        "ci95": interval(sums[:, 0] / np.maximum(1, sums[:, 1])),
        "nodes_used": round(used / steps, 2), "steps": steps,
        **_quantiles("", times), **_quantiles("cpu_", cpu), "per_text": per_text,
    }


def accepted(tokens: Sequence[int], parents: Sequence[int], truth: np.ndarray) -> list[int]:
    """Node indices of the longest path of the tree that is a prefix of the tokens ``truth`` (n,)."""
    node, path = ROOT, []
    for place, (token, parent) in enumerate(zip(tokens, parents, strict=True)):  # parents come first
        if len(path) < truth.size and parent == node and token == truth[len(path)]:
            node = place
            path.append(place)
    return path


def ratio(ours: np.ndarray, theirs: np.ndarray) -> dict:
    """Accepted tokens per step of one drafter relative to another on the same texts, with a paired 95 %
    interval.

    Parameters
    ----------
    ours, theirs : int64 (texts, 2)
        ``per_text`` of two replays.
    """
    def relative(sums: np.ndarray, other: np.ndarray) -> np.ndarray:
        return (sums[..., 0] / sums[..., 1]) / np.maximum(1e-9, other[..., 0] / other[..., 1])

    return {"ratio": round(float(relative(ours.sum(axis=0), theirs.sum(axis=0))), 4),
            "ratio_ci95": interval(relative(*resampled(ours, theirs)))}


def resampled(*per_text: np.ndarray) -> list[np.ndarray]:
    """Sums (resamples, ...) over bootstrap samples of texts, the same texts for each (texts, ...)."""
    texts = len(per_text[0])
    picks = np.random.default_rng(0).integers(0, texts, (_RESAMPLES, texts))
    return [counts[picks].sum(axis=1) for counts in per_text]


def interval(rates: np.ndarray) -> list[float]:
    """The 2.5th and the 97.5th percentile of rates (n,)."""
    return np.percentile(rates, [2.5, 97.5]).round(4).tolist()


def _quantiles(prefix: str, nanoseconds: Sequence[int]) -> dict:
    return {f"{prefix}p{q}_us": round(float(np.percentile(nanoseconds, q)) / 1e3, 1) for q in (50, 99)}
