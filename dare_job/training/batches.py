"""Batches of prompts and texts, and the loss of the texts."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch.nn import functional
from transformers import PreTrainedModel

from dare_job.training.loop import autocast

IGNORED = -100
_WIDTH_STEP = 32  # rows are padded to a multiple of this, because CPU kernels are compiled for each shape
_LOGIT_ROWS = 256  # rows are padded to a multiple, so that few shapes occur


@dataclass(frozen=True)
class Batch:
    """``tokens`` (B, T) int64, padded on the right. ``targets`` (B, T) is the next token where the text (or
    its EOS) is to be predicted, and IGNORED on the prompt and the padding."""

    tokens: torch.Tensor
    targets: torch.Tensor


def padded(rows: list[tuple[list[int], list[int]]], width: int, pad: int) -> Batch:
    """A batch of (prompt, text) pairs of token ids; each pair fits ``width``."""
    tokens = torch.full((len(rows), width), pad, dtype=torch.int64)
    targets = torch.full((len(rows), width), IGNORED, dtype=torch.int64)
    for i, (prompt, text) in enumerate(rows):
        tokens[i, : len(prompt) + len(text)] = torch.tensor(prompt + text)
        targets[i, len(prompt) - 1 : len(prompt) + len(text) - 1] = torch.tensor(text)
    return Batch(tokens, targets)


def text_loss(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy of the texts, float32 (). Causal attention, padding on the right: no mask."""
    flat = batch.targets.flatten()
    wanted = (flat != IGNORED).nonzero()[:, 0]
    wanted = functional.pad(wanted, (0, -len(wanted) % _LOGIT_ROWS))  # with row 0, whose target is IGNORED
    with autocast(batch.tokens.device):
        hidden = model.base_model(input_ids=batch.tokens, use_cache=False).last_hidden_state  # (B, T, H)
        logits = model.get_output_embeddings()(hidden.flatten(0, 1)[wanted])  # (N, V)
    return functional.cross_entropy(logits.float(), flat[wanted], ignore_index=IGNORED)


class PromptAndText(Protocol):
    """A row to learn: token ids of its prompt and of its text."""

    prompt: list[int]
    text: list[int]

    def __len__(self) -> int: ...


def batches(rows: Sequence[PromptAndText], batch_tokens: int, pad: int, seed: int) -> list[Batch]:
    """All rows once, in an order that the seed determines; rows of a batch have similar lengths.

    Parameters
    ----------
    rows
        With ``prompt`` and ``text`` as lists of token ids.
    batch_tokens
        Tokens of a batch, padding included.
    pad
        Token id of the padding.
    """
    rng = np.random.default_rng(seed)
    by_width: dict[int, list[tuple[list[int], list[int]]]] = defaultdict(list)
    for place in rng.permutation(len(rows)):
        row = rows[place]
        by_width[math.ceil(len(row) / _WIDTH_STEP) * _WIDTH_STEP].append((row.prompt, row.text))
    parts = [padded(group[start:start + size], width, pad)
             for width, group in by_width.items() for size in [max(1, batch_tokens // width)]
             for start in range(0, len(group), size)]
    return [parts[place] for place in rng.permutation(len(parts))]
