"""The target's most probable tokens at every position of the texts, computed once for all epochs."""

from dataclasses import dataclass

import numpy as np
import torch

from dare_job.decode.model.target import Target
from dare_job.observe import progress
from dare_job.publish.prompted_texts import Row
from dare_job.training.drafter.settings import KEPT

_FORWARD_TOKENS = 4096  # per forward pass


@dataclass(frozen=True)
class TeacherRow:
    """A row, and the target's next-token distributions at the T tokens of its text.

    Attributes
    ----------
    tokens : int32 (T, K)
        The most probable tokens.
    shares : float16 (T, K)
        Their probabilities; all 0 if the target's prompt is unknown.
    """

    row: Row
    tokens: np.ndarray
    shares: np.ndarray


@torch.inference_mode()
def teacher_rows(target: Target, rows: list[Row], top_k: int = KEPT,
                 temperature: float = 1.0) -> list[TeacherRow]:
    """Run the target over all rows; the result is in their order.

    Parameters
    ----------
    top_k
        K, number of most probable tokens per place.
    temperature
        Of the target's distribution.
    """
    top_k = min(top_k, target.vocabulary)
    done = {row.name: TeacherRow(row, *(np.zeros((len(row.text), top_k), kind) for kind in
                                        (np.int32, np.float16))) for row in rows if not row.has_prompt}
    waiting = sorted((row for row in rows if row.has_prompt), key=lambda row: len(row.prompt) + len(row.text))
    with progress.counting("the target reads the texts", len(waiting), unit="texts") as counter:
        while waiting:
            longest = len(waiting[-1].prompt) + len(waiting[-1].text)
            size = max(1, _FORWARD_TOKENS // longest)
            batch, waiting = waiting[-size:], waiting[:-size]
            done.update((row.row.name, row) for row in _of_batch(target, batch, top_k, temperature))
            counter.advance(len(batch))
    return [done[row.name] for row in rows]


def _of_batch(target: Target, rows: list[Row], top_k: int, temperature: float) -> list[TeacherRow]:
    lengths = np.array([len(row.prompt) for row in rows], np.int64)
    scored = np.array([len(row.text) - 1 for row in rows], np.int64)
    sequences = [np.concatenate((row.prompt, row.text[:-1])) for row in rows]
    width = max(map(len, sequences))
    ids = np.stack([np.pad(sequence, (0, width - len(sequence)), "edge") for sequence in sequences])
    logits = target.prefill(target.new_cache(len(rows)), np.arange(len(rows)), ids, lengths, scored)
    best = torch.softmax(logits.float() / temperature, -1).topk(top_k)
    tokens, shares = (x.cpu().numpy() for x in (best.indices.to(torch.int32), best.values.half()))
    ends = np.cumsum(scored + 1)
    return [TeacherRow(row, tokens[end - len(row.text) : end], shares[end - len(row.text) : end])
            for row, end in zip(rows, ends, strict=True)]
