"""``dare-job recommender evaluate``: Recall@K and NDCG@K of recommenders and baselines on the same users.

With 95 % bootstrap intervals of means and of paired differences.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dare_job.decode.model.target import Target
from dare_job.decode.trie_search.search import TopK
from dare_job.errors import ConfigError
from dare_job.observe import progress
from dare_job.recommend.catalogue import INTERACTED, Catalogue
from dare_job.recommend.item_ids import ItemIds
from dare_job.recommend.vocabulary import Recommender
from dare_job.training.recommender.command import sample
from dare_job.training.recommender.sasrec import SasRec, Settings
from dare_job.training.recommender.sequences import Sequences
from dare_job.training.recommender.settings import EvaluationOptions

BASELINES = ("popularity", "sasrec")
Tests = list[tuple[np.ndarray, np.ndarray]]  # (history, targets) of each user
_USERS = 32  # searched for at once
_RESAMPLES, _AT_ONCE = 4000, 250


@dataclass(frozen=True)
class Interval:
    """A mean over users and its 95 % percentile interval."""

    mean: float
    low: float
    high: float


def recall(lists: Sequence[np.ndarray], targets: Sequence[np.ndarray], k: int) -> np.ndarray:
    """Share of each user's targets among the first k recommendations, float64 (U)."""
    return np.array([np.isin(np.unique(wanted), found[:k]).mean()
                     for found, wanted in zip(lists, targets, strict=True)])


def ndcg(lists: Sequence[np.ndarray], targets: Sequence[np.ndarray], k: int) -> np.ndarray:
    """sum_r hit_r / log2(r + 1) over ranks r from 1, divided by its maximum for k ranks; float64 (U)."""
    discounts = 1 / np.log2(np.arange(2, k + 2))
    return np.array([discounts[:len(found[:k])][np.isin(found[:k], wanted)].sum()
                     / discounts[:min(k, len(np.unique(wanted)))].sum()
                     for found, wanted in zip(lists, targets, strict=True)])


def bootstrap(values: np.ndarray, seed: int = 0) -> Interval:
    """Bootstrap interval of the mean of one value per user.

    For a paired difference, pass the users' differences, so that both sides resample the same users.
    """
    values, rng, means = np.asarray(values, float), np.random.default_rng(seed), []
    for _ in range(0, _RESAMPLES, _AT_ONCE):
        drawn = rng.integers(0, len(values), (_AT_ONCE, len(values)))
        means.append(values[drawn].mean(axis=1))
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return Interval(float(values.mean()), float(low), float(high))


def run(options: EvaluationOptions) -> dict:
    """Means and intervals of each method and of its differences from the other methods."""
    if unknown := set(options.baselines) - set(BASELINES):
        raise ConfigError(f"--baselines: {', '.join(sorted(unknown))} is not known; there are "
                          f"{', '.join(BASELINES)}")
    if not options.k or min(options.k) < 1:
        raise ConfigError(f"--k {options.k}: lists have a length of 1 at least")
    if 0 < options.width < max(options.k):
        raise ConfigError(f"--beams {options.width} find no list of {max(options.k)} items: give as many "
                          "beams as the longest list of --k has items, or 0")
    if taken := set(options.recommenders) & set(BASELINES):
        raise ConfigError(f"--recommender {min(taken)}=...: that is a baseline's name; choose another")
    ids = ItemIds.load(options.ids)
    if max(options.k) > len(ids.items):
        raise ConfigError(f"--k {max(options.k)}: {options.ids} has ids for {len(ids.items)} items alone")
    data = options.data.read(ids)
    tests = data.tests()
    if not tests:
        raise ConfigError(f"--data {options.data.path}: no user has items to test on; try --split "
                          "leave-one-out")
    tests = sample(tests, options.users or len(tests), options.seed)
    lists, records = {}, {}
    for name in options.baselines:
        lists[name], records[name] = _baseline(name, len(ids.items), data, tests, options)
    for name, folder in options.recommenders.items():
        lists[name], records[name] = _recommender(folder, ids, data, tests, options)
    return {**options.data.told(data), "users": len(tests),
            "targets": sum(len(wanted) for _, wanted in tests),
            "seen_items": "kept" if options.seen else "left out",
            "rows": _rows(lists, records, [wanted for _, wanted in tests], options.k)}


def recommend(target: Target, recommender: Recommender, catalogue: Catalogue, tests: Tests, width: int,
              count: int, seen: bool = False) -> list[np.ndarray]:
    """Recommend at most ``count`` item rows to each user of ``tests``, by beam search.

    A list is shorter if the beam width or the items that the user has not interacted with leave fewer.
    """
    trie, exclude = catalogue.trie, () if seen else (INTERACTED,)
    search = TopK(target, trie, recommender.first_code_token, min(width, trie.leaves))
    found: dict[int, np.ndarray] = {}
    order = sorted(range(len(tests)), key=lambda place: len(tests[place][0]))
    with progress.counting("recommendations", len(tests), lambda: len(found), "users"):
        for at in range(0, len(order), _USERS):
            part = order[at:at + _USERS]
            lists = search.search([catalogue.query(recommender, tests[place][0].tolist(), exclude)
                                   for place in part])
            for place, leaves, scores in zip(part, lists.leaves, lists.scores, strict=True):
                items = catalogue.top_items(leaves, scores, tests[place][0], exclude, count).items
                found[place] = np.array([catalogue.ids.rows[item] for item in items], np.int64)
    return [found[place] for place in range(len(tests))]


def _recommender(folder: Path, ids: ItemIds, data: Sequences, tests: Tests, options: EvaluationOptions):
    recommender = Recommender.open(folder)
    if recommender.ids.items != ids.items or (recommender.ids.codes != ids.codes).any():
        raise ConfigError(f"{folder} was trained with other ids than {options.ids}: give its item_ids.json")
    target = Target.load(folder, "float32", options.device)
    catalogue = Catalogue.build(ids, data.popularity(len(ids.items)))
    began, most = time.monotonic(), max(options.k)
    width = options.width or most
    found = recommend(target, recommender, catalogue, tests, width, most, options.seen)
    return found, {"beams": width, "dtype": "float32",
                   "parameters": sum(weight.numel() for weight in target.model.parameters()),
                   "users_per_s": round(len(tests) / (time.monotonic() - began), 1)}


def _baseline(name: str, items: int, data: Sequences, tests: Tests, options: EvaluationOptions):
    most = max(options.k)
    histories = [history for history, _ in tests]
    without = [row[:0] for row in histories] if options.seen else histories
    if name == "sasrec":
        found = SasRec(items, Settings(seed=options.seed)).train(data, sample(data.tests("valid"), 2000, 0))
        return found.lists(histories, without, most), {"settings": asdict(found.settings)} | found.record
    order = np.argsort(-data.popularity(items), kind="stable")
    top = order[:most + max(map(len, histories))]
    return [top[~np.isin(top, left_out)][:most] for left_out in without], {}


def _rows(lists: dict[str, list], records: dict[str, dict], targets: list, ks: Sequence[int]) -> list[dict]:
    rows = []
    for k in ks:
        for metric, score in (("recall", recall), ("ndcg", ndcg)):
            values = {name: score(found, targets, k) for name, found in lists.items()}
            for name, of_users in values.items():
                rows.append({"method": name, "metric": metric, "k": k,
                             **_rounded(bootstrap(of_users)),
                             "minus": {other: _rounded(bootstrap(of_users - others))
                                       for other, others in values.items() if other != name},
                             "record": records[name]})
    return rows


def _rounded(found: Interval) -> dict[str, float]:
    return {name: round(value, 5) for name, value in asdict(found).items()}
