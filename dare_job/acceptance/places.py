"""What target and draft model say at places of the texts: one forward of each over a text."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from dare_job.acceptance.texts import Row
from dare_job.decode import Target
from dare_job.decode.draft.model import over_vocabulary
from dare_job.errors import ModelError


class Places(NamedTuple):
    """M places of one text: logits float32 (M, V) of both models over the target's vocabulary.

    text    its number
    target, draft  what they say of the next token there
    """

    text: int
    target: torch.Tensor
    draft: torch.Tensor


def chosen(rows: list[Row], count: int, seed: int) -> list[np.ndarray]:
    """For each row the places int64 (M,) of tokens of its text, rising: ``count`` of all, drawn by seed."""
    ends = np.cumsum([len(row.text) for row in rows])
    drawn = np.sort(np.random.default_rng(seed).permutation(ends[-1])[:count])
    return [part - end + len(row.text) for part, end, row in
            zip(np.split(drawn, np.searchsorted(drawn, ends[:-1])), ends, rows, strict=True)]


@torch.inference_mode()
def read(target: Target, draft: Target, rows: list[Row], places: list[np.ndarray]) -> Iterator[Places]:
    """Texts without a place are not read. Raises ModelError where scores are no numbers."""
    for number, (row, wanted) in enumerate(zip(rows, places, strict=True)):
        if not len(wanted):
            continue
        logits = [_said(model, row, wanted) for model in (target, draft)]
        logits[1] = over_vocabulary(logits[1], target.vocabulary)
        for name, one in zip(("target", "draft model"), logits, strict=True):
            if not one.amax(-1).isfinite().all():
                raise ModelError(f"text {row.name}: the {name}'s scores are no numbers: its weights are "
                                 "damaged, or its type is too narrow; try --dtype float32")
        yield Places(number, *logits)


def _said(model: Target, row: Row, wanted: np.ndarray) -> torch.Tensor:
    scored = wanted[-1:]  # tokens of the text that the last place stands behind
    ids = np.concatenate((row.prompt, row.text[: scored[0]]))[None]
    ids = np.minimum(ids, model.vocabulary - 1)  # as the drafter reads what its table lacks
    length, slot = np.array([len(row.prompt)]), np.zeros(1, np.int64)
    logits = model.prefill(model.new_cache(1), slot, ids, length, scored)
    return logits[torch.from_numpy(wanted)].float().cpu()
