"""What the target says of every token of the texts: its most probable tokens, kept for all epochs.

Settings of a draft model and its training.
"""

import logging
import time
from dataclasses import dataclass

import numpy as np
import torch

from dare_job.decode.model.target import Target
from dare_job.publish.prompted_texts import Row
from dare_job.training.drafter.settings import KEPT

_TOKENS = 4096  # of a forward

_LOG_EVERY_S = 10.0

_LOG = logging.getLogger("dare_job")


@dataclass(frozen=True)
class Lesson:
    """A row, and what the target says in front of each of its text's T tokens.

    tokens  int32 (T, K), shares float16 (T, K): the most probable and their probabilities; no shares at all
            where nobody knows what the target was asked
    """

    row: Row
    tokens: np.ndarray
    shares: np.ndarray


@torch.inference_mode()
def lessons(target: Target, rows: list[Row], kept: int = KEPT, temperature: float = 1.0) -> list[Lesson]:
    """In the rows' order; so many tokens of each place, by the target's law at this temperature."""
    kept = min(kept, target.vocabulary)
    found: dict[str, Lesson] = {row.name: _untaught(row, kept) for row in rows if not row.asked}
    waiting = sorted((row for row in rows if row.asked), key=lambda row: len(row.prompt) + len(row.text))
    began = told = time.monotonic()
    while waiting:
        longest = len(waiting[-1].prompt) + len(waiting[-1].text)
        part, waiting = _last(waiting, max(1, _TOKENS // longest))
        found.update((lesson.row.name, lesson) for lesson in _of_batch(target, part, kept, temperature))
        if time.monotonic() - told > _LOG_EVERY_S:
            told = time.monotonic()
            _LOG.info("target reads the texts: %d of %d, %.0f s", len(found), len(rows), told - began)
    return [found[row.name] for row in rows]


def _last(rows: list, count: int) -> tuple[list, list]:
    return rows[-count:], rows[:-count]


def _untaught(row: Row, kept: int) -> Lesson:
    shape = len(row.text), kept
    return Lesson(row, np.zeros(shape, np.int32), np.zeros(shape, np.float16))


def _of_batch(target: Target, rows: list[Row], kept: int, temperature: float) -> list[Lesson]:
    lengths = np.array([len(row.prompt) for row in rows], np.int64)
    scored = np.array([len(row.text) - 1 for row in rows], np.int64)
    whole = [np.concatenate((row.prompt, row.text[:-1])) for row in rows]
    ids = np.stack([np.pad(one, (0, max(map(len, whole)) - len(one)), "edge") for one in whole])
    logits = target.prefill(target.new_cache(len(rows)), np.arange(len(rows)), ids, lengths, scored)
    best = torch.softmax(logits.float() / temperature, -1).topk(kept)
    tokens, shares = (x.cpu().numpy() for x in (best.indices.to(torch.int32), best.values.half()))
    ends = np.cumsum(scored + 1)
    return [Lesson(row, tokens[end - len(row.text) : end], shares[end - len(row.text) : end])
            for row, end in zip(rows, ends, strict=True)]
