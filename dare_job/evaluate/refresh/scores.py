"""CTR models trained on texts of full refreshes, their scores where policies served other texts, and AUC.

The AUCs of several sets of scores of the same label rows come from the same bootstrap samples of users.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from dare_job.data.sample_world.daily import DailyWorld
from dare_job.evaluate.ctr import examples
from dare_job.evaluate.ctr.examples import Examples
from dare_job.evaluate.ctr.inputs import Inputs, Side, scaled, with_none
from dare_job.evaluate.ctr.models import Ctr
from dare_job.evaluate.ctr.options import TrainSettings
from dare_job.evaluate.ctr.source import Source
from dare_job.evaluate.ctr.train import fit, predicted, tensors
from dare_job.evaluate.refresh.nights import NONE, Nights, item_facts

_LOG = logging.getLogger("dare_job")
_VALID_DAYS = 3  # the last of those that models are trained on


@dataclass(frozen=True)
class Days:
    """First days of training (before: history only) and of the replay, and the day after the last one."""

    train: int
    replay: int
    end: int


class Scorer:
    """Label rows of a world, and CTR models trained on its texts, which serve the day after their night.

    Parameters
    ----------
    vectors : float32 (T, d)
        Of ``nights.texts``.
    history
        Last clicks that a model reads.
    """

    def __init__(self, world: DailyWorld, nights: Nights, vectors: np.ndarray, days: Days, history: int):
        self._nights, self._vectors = nights, with_none(scaled(vectors, np.ones(len(vectors), bool)))
        self.rows: Examples = examples.make(_source(world, days), None, history)
        self.user = self.rows.users.ids.to_numpy()[self.rows.user - 1].astype(int)
        self.day = self.rows.second // 86_400
        self.chance = _chances(world, self.user, self.rows)
        self._models: list[tuple[str, torch.nn.Module]] = []
        self._fresh: dict[str, np.ndarray] | None = None  # predictions with texts of full refreshes

    def train(self, models: list[str], seeds: int, settings: TrainSettings) -> None:
        """Train each model ``seeds`` times on texts of full refreshes."""
        inputs = self._inputs(self.of_fresh())
        for model in models:
            for seed in range(seeds):
                began = time.perf_counter()
                network = Ctr(model, self.rows, inputs, seed)
                fitted = fit(network, self.rows, inputs, seed, settings)
                self._models.append((model, network))
                _LOG.info("%s seed %d: AUC %.4f with fresh texts, %d epochs, %.0f s", model, seed, fitted.auc,
                          fitted.epochs, time.perf_counter() - began)

    def of_fresh(self) -> np.ndarray:
        """(N,) text that a full refresh on the night before serves to each label row; NONE: none."""
        return self._nights.text[self.day - 1, self.user]

    def of(self, written: np.ndarray) -> np.ndarray:
        """(N,) texts as ``of_fresh``, if each was written on the night ``written`` (D, U), as it is then."""
        night = written[self.day - 1, self.user]
        return np.where(night == NONE, NONE, self._nights.text[night, self.user])

    def scores(self, text: np.ndarray) -> dict[str, np.ndarray]:
        """Predictions (seeds, N) float64 by model, with the text (N,) served to each row.

        A prediction does not depend on other rows, so rows that have the text of a full refresh are predicted
        once.
        """
        fresh = self.of_fresh()
        if self._fresh is None:
            self._fresh = self._predicted(fresh, np.arange(len(fresh)))
        rows = np.flatnonzero(text != fresh)
        predictions = {name: scores.copy() for name, scores in self._fresh.items()}
        for name, scores in self._predicted(text, rows).items() if len(rows) else ():
            predictions[name][:, rows] = scores
        return predictions

    def _predicted(self, text: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
        data, places = tensors(self.rows, self._inputs(text)), torch.from_numpy(rows)
        predictions: dict[str, list[np.ndarray]] = {}
        for name, network in self._models:
            predictions.setdefault(name, []).append(predicted(network, data, places)[1])
        return {name: np.stack(scores) for name, scores in predictions.items()}

    def _inputs(self, text: np.ndarray) -> Inputs:
        return Inputs("texts", {"user": Side((text + 1).astype(np.int32), self._vectors)})


def _source(world: DailyWorld, days: Days) -> Source:
    """What was shown as label rows; ids are numbers as text, of equal length.

    Items have their mood and theme as attributes: what texts add is what a user likes, not what an item is.
    """
    shown, width = world.shown, len(str(max(len(world.users.attributes), len(world.catalogue.titles))))
    borders = np.array([days.train, days.replay - _VALID_DAYS, days.replay])
    part = np.array([None, "train", "valid", "test"], object)[np.searchsorted(borders, shown.day, "right")]
    rows = pd.DataFrame({"user_id": _ids(shown.user, width), "item_id": _ids(shown.item, width),
                         "timestamp": shown.second, "label": shown.click.astype(np.float32), "split": part})
    rows = rows.drop_duplicates(["user_id", "item_id", "timestamp"])
    users, items = (pd.DataFrame({key: _ids(np.arange(len(known)), width),
                                  "attributes": [sorted(row.items()) for row in known]})
                    for key, known in (("user_id", world.users.attributes), ("item_id", item_facts(world))))
    return Source(rows, users, items.assign(title=list(world.catalogue.titles)))


def _ids(numbers: np.ndarray, width: int) -> list[str]:
    return [f"{number:0{width}d}" for number in numbers.tolist()]


def _chances(world: DailyWorld, user: np.ndarray, rows: Examples) -> np.ndarray:
    """(N,) chance of a click of each label row, which the simulation knows."""
    def keys(*numbers: np.ndarray) -> np.ndarray:
        return np.ravel_multi_index(numbers, shape)

    shown = world.shown
    shape = (len(world.users.attributes), len(world.catalogue.titles), world.days * 86_400)
    known, places = np.unique(keys(shown.user, shown.item, shown.second), return_index=True)
    item = rows.items.ids.to_numpy()[rows.item - 1].astype(int)
    return shown.chance[places[known.searchsorted(keys(user, item, rows.second))]]


class WeightedAuc:
    """AUC of scores (N,) for labels (N,), for any weights of the rows; ties count half.

    A label is 0, 1, or the chance of 1; a chance counts as a click and as none, by its share. The rows are
    sorted once, so that each further AUC is a few sums over N rows.
    """

    def __init__(self, label: np.ndarray, score: np.ndarray):
        self._order = np.argsort(score, kind="stable")
        ordered = score[self._order]
        self._starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])  # of groups of ties
        self._click = label[self._order].astype(float)

    def __call__(self, weight: np.ndarray) -> float:
        """AUC with the weight (N,) of each row; NaN where one kind of label has no weight."""
        weight = weight[self._order].astype(float)
        clicks = np.add.reduceat(weight * self._click, self._starts)
        others = np.add.reduceat(weight * (1 - self._click), self._starts)
        below = np.cumsum(others) - others
        pairs = clicks.sum() * others.sum()
        return float((clicks * (below + others / 2)).sum() / pairs) if pairs else float("nan")


def bootstrap(label: np.ndarray, user: np.ndarray, scores: Mapping[str, np.ndarray], samples: int,
              seed: int) -> dict[str, np.ndarray]:
    """AUC by set, averaged over trainings: (1 + samples,), that of all rows first.

    A sample draws as many users as there are, with replacement, with all their rows. All sets have the same
    samples, so that differences are paired.

    Parameters
    ----------
    label, user : (N,)
    scores : (trainings, N) each
    """
    _, place = np.unique(user, return_inverse=True)
    users = int(place.max()) + 1
    rng = np.random.default_rng(seed)
    drawn = [np.ones(users), *(rng.multinomial(users, np.full(users, 1 / users)) for _ in range(samples))]
    auc = {}
    for name, by_training in scores.items():
        measures = [WeightedAuc(label, score) for score in by_training]
        auc[name] = np.array([np.mean([measure(count[place]) for measure in measures]) for count in drawn])
    return auc


def interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float, float]:
    """(value of all rows, low, high): percentile interval of (1 + samples,) values."""
    tail = (1 - level) / 2
    low, high = np.quantile(values[1:], [tail, 1 - tail])
    return float(values[0]), float(low), float(high)
