"""Histories as token batches: the model learns every item's tokens after those of the items before it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from dare_job.recommend.vocabulary import Recommender

IGNORED = -100  # targets that cross_entropy ignores
_ROWS = 64  # of a validation batch
_SORTED = 32  # batches whose rows are sorted by length together


@dataclass(frozen=True)
class Batch:
    """ids int64 (B, W), padded on the right; targets int64 (B, W): the next token at each position."""

    ids: torch.Tensor
    targets: torch.Tensor


def epoch_batches(recommender: Recommender, histories: Sequence[np.ndarray], batch_tokens: int,
                  item_dropout: float, rng: np.random.Generator) -> list[Batch]:
    """Batches of an epoch: a window of each history with at least two items, without dropped items.

    ``histories`` have item rows, int (n,) each, oldest first.
    """
    rows = [_window(row, recommender.max_history_items + 1, item_dropout, rng)
            for row in histories if len(row) > 1]
    size = max(1, batch_tokens // max(1, round(np.mean([len(row) for row in rows]) * recommender.ids.length)))
    order = rng.permutation(len(rows))
    batches = []
    for start in range(0, len(order), size * _SORTED):
        part = sorted(order[start:start + size * _SORTED], key=lambda place: len(rows[place]))
        batches += [part[at:at + size] for at in range(0, len(part), size)]
    return [_padded([_training_row(recommender, rows[place]) for place in batches[number]])
            for number in rng.permutation(len(batches))]


def validation_batches(recommender: Recommender, tests: Sequence[tuple[np.ndarray, np.ndarray]]
                       ) -> list[Batch]:
    """Batches of histories in which only the tokens of the first target item count."""
    rows = [_following(recommender, history, targets[0])
            for history, targets in sorted(tests, key=lambda test: len(test[0]))]
    return [_padded(rows[at:at + _ROWS]) for at in range(0, len(rows), _ROWS)]


def next_token_loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy of the targets, in nats, float32 ()."""
    logits = model(input_ids=batch.ids.to(model.device), use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1).float(), batch.targets.to(model.device).flatten(),
                         ignore_index=IGNORED)


def _window(row: np.ndarray, max_items: int, item_dropout: float, rng: np.random.Generator) -> np.ndarray:
    start = int(rng.integers(0, max(1, len(row) - max_items + 1)))
    row = row[start:start + max_items]
    kept = row[rng.random(len(row)) >= item_dropout]
    return kept if len(kept) > 1 else row


def _training_row(recommender: Recommender, row: np.ndarray) -> tuple[list[int], list[int]]:
    """Ids and targets of a history. With a separator, which precedes the last item, only that item counts."""
    if recommender.separator:
        return _following(recommender, row[:-1], row[-1])
    begin = list(recommender.begin)
    tokens = begin + recommender.tokens[row].reshape(-1).tolist()
    skipped = max(0, len(begin) - 1)
    return tokens[:-1], [IGNORED] * skipped + tokens[skipped + 1:]


def _following(recommender: Recommender, history: np.ndarray, item: int) -> tuple[list[int], list[int]]:
    """Ids and targets where only the item after a history counts."""
    prompt, tokens = recommender.prompt(history), recommender.tokens[item].tolist()
    return prompt + tokens[:-1], [IGNORED] * (len(prompt) - 1) + tokens


def _padded(rows: list[tuple[list[int], list[int]]]) -> Batch:
    return Batch(*(pad_sequence(list(map(torch.tensor, part)), batch_first=True, padding_value=filler)
                   for part, filler in zip(zip(*rows, strict=True), (0, IGNORED), strict=True)))
