"""SASRec (Kang and McAuley 2018) of torch-rechub, the baseline with one embedding per item.

It is trained with cross-entropy over all items at every place of a history, which is stronger than the
original's one sampled negative (Klenitskiy and Vasilev, RecSys 2023).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from dare_job.errors import ConfigError, install_hint
from dare_job.training.loop import Schedule, Training, fit
from dare_job.training.recommender.histories import IGNORED
from dare_job.training.recommender.sequences import Sequences

_ROWS = 256  # users per batch


@dataclass(frozen=True)
class Settings:
    """Network and training of SASRec.

    Attributes
    ----------
    history
        Number of newest items that it reads.
    batch
        Users per update.
    """

    width: int = 64
    blocks: int = 2
    heads: int = 1
    dropout: float = 0.5
    history: int = 20
    batch: int = 256
    epochs: int = 30
    patience: int = 4
    rate: float = 2e-3
    weight_decay: float = 1e-4
    seed: int = 0


class SasRec:
    """Scores all items after a history.

    Raises
    ------
    ConfigError
        torch-rechub is not installed.
    """

    def __init__(self, items: int, settings: Settings):
        self.settings = settings
        torch.manual_seed(settings.seed)
        self.network = _network(items, settings)
        self.record: dict = {}

    def train(self, data: Sequences, held_out: Sequence[tuple[np.ndarray, np.ndarray]]) -> "SasRec":
        """Train in place on the training part, stopped by the (history, targets) of ``held_out``."""
        settings = self.settings
        schedule = Schedule(settings.epochs, settings.rate, settings.weight_decay, 100, settings.patience)
        validation = [_validation_batch(part, settings.history) for part in _parts(held_out, _ROWS)]
        training = Training(lambda number: _epoch(data.train, settings, number), self._loss,
                            lambda: float(np.mean([self._loss(batch).item() for batch in validation])),
                            name="SASRec")
        self.record = fit(self.network, training, schedule)
        return self

    @torch.no_grad()
    def lists(self, histories: Sequence[np.ndarray], excluded: Sequence[np.ndarray],
              count: int) -> list[np.ndarray]:
        """The best item rows after each history, at most ``count``, without those in ``excluded``.

        Histories, excluded items and results are item rows, int (n,) for each user.
        """
        lists = []
        for part in _parts(list(zip(histories, excluded, strict=True)), _ROWS):
            inputs = _padded([row + 1 for row, _ in part], self.settings.history, 0)
            last = torch.tensor([min(len(row), self.settings.history) - 1 for row, _ in part]).clamp_min(0)
            scores = self._scores(self._hidden(inputs)[torch.arange(len(part)), last])
            for line, (_, rows) in enumerate(part):
                scores[line, torch.from_numpy(rows.astype(np.int64))] = -torch.inf
            best = scores.topk(min(count, scores.shape[1]))
            lists += [items[values > -torch.inf].numpy() for values, items in zip(*best, strict=True)]
        return lists

    def _loss(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        inputs, targets = batch
        counted = targets != IGNORED
        return cross_entropy(self._scores(self._hidden(inputs)[counted]), targets[counted])

    def _hidden(self, inputs: torch.Tensor) -> torch.Tensor:
        """Hidden states (B, W, d) of item numbers from 1, 0: padding. The library needs two rows or more."""
        inputs = torch.cat((inputs, torch.zeros_like(inputs[:1])))
        return self.network.seq_forward({"seq": inputs}, self._table()(inputs))[:-1]

    def _scores(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self._table().weight[1:].T

    def _table(self) -> torch.nn.Embedding:
        return self.network.item_emb.embed_dict["seq"]


def _network(items: int, settings: Settings) -> torch.nn.Module:
    try:
        from torch_rechub.basic.features import SequenceFeature
        from torch_rechub.models.matching import SASRec
    except ImportError:
        raise ConfigError(f"the baseline sasrec needs torch-rechub: {install_hint('recommend')}, "
                          "or leave it out of --baselines") from None
    feature = SequenceFeature("seq", vocab_size=items + 1, embed_dim=settings.width, pooling="concat",
                              padding_idx=0)
    network = SASRec([feature], settings.history, settings.dropout, settings.blocks, settings.heads)
    for weight in network.parameters():
        if weight.dim() >= 2:
            torch.nn.init.normal_(weight, std=0.02)
    return network


def _epoch(histories: Sequence[np.ndarray], settings: Settings, number: int) -> list:
    rng = np.random.default_rng((settings.seed, number))
    rows = [histories[place] for place in rng.permutation(len(histories)) if len(histories[place]) > 1]
    return [(_padded([row[:-1] + 1 for row in part], settings.history, 0),
             _padded([row[1:] for row in part], settings.history, IGNORED))
            for part in _parts(rows, settings.batch)]


def _validation_batch(tests: Sequence[tuple[np.ndarray, np.ndarray]],
                      history: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch in which only the first target after each history counts."""
    following = [np.append(np.full(max(1, len(row)) - 1, IGNORED, np.int64), targets[0])
                 for row, targets in tests]
    return _padded([row + 1 for row, _ in tests], history, 0), _padded(following, history, IGNORED)


def _padded(rows: Sequence[np.ndarray], width: int, filler: int) -> torch.Tensor:
    """The newest ``width`` entries of each row, int64 (B, width), padded on the right."""
    padded = np.full((len(rows), width), filler, np.int64)
    for line, row in enumerate(rows):
        padded[line, :len(row[-width:])] = row[-width:]
    return torch.from_numpy(padded)


def _parts(rows: Sequence, size: int) -> list:
    return [rows[at:at + size] for at in range(0, len(rows), size)]
