"""``dare-job recommender evaluate``: Recall@K and NDCG@K of recommenders and baselines on the same users.

With 95 % bootstrap intervals of means and of paired differences.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from dare_job.decode.model.target import Target
from dare_job.decode.trie_search.search import TopK
from dare_job.errors import ConfigError
from dare_job.observe import progress
from dare_job.recommend.catalogue import INTERACTED, Catalogue
from dare_job.recommend.item_ids import ItemIds
from dare_job.recommend.vocabulary import Recommender
from dare_job.training.recommender.sasrec import SasRec, Settings
from dare_job.training.recommender.sequences import Sequences
from dare_job.training.recommender.settings import EvaluationOptions
from dare_job.training.recommender.train import sample

BASELINES = ("popularity", "sasrec")
Tests = list[tuple[np.ndarray, np.ndarray]]  # (history, targets) of each user: item rows int32 (n,)
_USERS = 32  # searched for at once
_RESAMPLES, _AT_ONCE = 4000, 250


def recall(lists: Sequence[np.ndarray], targets: Sequence[np.ndarray], k: int) -> np.ndarray:
    """Share of each of U users' targets among the first k recommendations, float64 (U,).

    ``lists`` and ``targets`` have the user's item rows, int (n,): recommended, best first, and to be found.
    """
    return np.array([np.isin(np.unique(items), recommended[:k]).mean()
                     for recommended, items in zip(lists, targets, strict=True)])


def ndcg(lists: Sequence[np.ndarray], targets: Sequence[np.ndarray], k: int) -> np.ndarray:
    """sum_r hit_r / log2(r + 1) over ranks r from 1, divided by its maximum for k ranks; float64 (U,).

    Arguments are those of ``recall``.
    """
    discounts = 1 / np.log2(np.arange(2, k + 2))
    return np.array([discounts[:len(recommended[:k])][np.isin(recommended[:k], items)].sum()
                     / discounts[:min(k, len(np.unique(items)))].sum()
                     for recommended, items in zip(lists, targets, strict=True)])


def bootstrap(values: np.ndarray, seed: int = 0) -> dict[str, float]:
    """Mean of one value per user, (U,), and low and high of its 95 % percentile interval.

    For a paired difference, pass the users' differences, so that both sides resample the same users.
    """
    values, rng, means = np.asarray(values, float), np.random.default_rng(seed), []
    for _ in range(0, _RESAMPLES, _AT_ONCE):
        sample_of_users = rng.integers(0, len(values), (_AT_ONCE, len(values)))
        means.append(values[sample_of_users].mean(axis=1))
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    interval = {"mean": values.mean(), "low": low, "high": high}
    return {name: round(float(value), 5) for name, value in interval.items()}


def run(options: EvaluationOptions) -> dict:
    """Means and intervals of each method and of its differences from the other methods.

    Raises
    ------
    ConfigError
        The options are invalid, or no user has items to test on.
    DataError
        The data or the item ids are invalid.
    ModelError
        A recommender is damaged or not supported.
    """
    if unknown := set(options.baselines) - set(BASELINES):
        raise ConfigError(f"--baselines: {', '.join(sorted(unknown))} is not known; there are "
                          f"{', '.join(BASELINES)}")
    if not options.k or min(options.k) < 1:
        raise ConfigError(f"--k {options.k}: each must be at least 1")
    if 0 < options.width < max(options.k):
        raise ConfigError(f"--beams {options.width} is below the largest --k, {max(options.k)}: give at "
                          "least as many beams as items to recommend, or 0")
    if reserved := set(options.recommenders) & set(BASELINES):
        raise ConfigError(f"--recommender {min(reserved)}=...: that is a baseline's name; choose another")
    ids = ItemIds.load(options.ids)
    if max(options.k) > len(ids.items):
        raise ConfigError(f"--k {max(options.k)}: {options.ids} has ids for only {len(ids.items)} items")
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
    return {**options.data.record(data), "users": len(tests),
            "targets": sum(len(items) for _, items in tests),
            "interacted_items": "recommended too" if options.with_interacted else "left out",
            "rows": _rows(lists, records, [items for _, items in tests], options.k)}


def recommend(target: Target, recommender: Recommender, catalogue: Catalogue, tests: Tests, width: int,
              count: int, with_interacted: bool = False) -> list[np.ndarray]:
    """Recommend at most ``count`` item rows to each user of ``tests``, by beam search, best first.

    A list, int (n,), is shorter if the beam width or the items that the user has not interacted with leave
    fewer.
    """
    trie, exclude = catalogue.trie, () if with_interacted else (INTERACTED,)
    search = TopK(target, trie, recommender.first_code_token, min(width, trie.leaves))
    recommended: dict[int, np.ndarray] = {}
    order = sorted(range(len(tests)), key=lambda user: len(tests[user][0]))
    with progress.counting("recommendations", len(tests), lambda: len(recommended), "users"):
        for at in range(0, len(order), _USERS):
            users = order[at:at + _USERS]
            result = search.search([catalogue.query(recommender, tests[user][0].tolist(), exclude)
                                    for user in users])
            for user, leaves, scores in zip(users, result.leaves, result.scores, strict=True):
                items = catalogue.top_items(leaves, scores, tests[user][0], exclude, count).items
                recommended[user] = np.array([catalogue.ids.rows[item] for item in items], np.int64)
    return [recommended[user] for user in range(len(tests))]


def _recommender(folder: Path, ids: ItemIds, data: Sequences, tests: Tests, options: EvaluationOptions):
    recommender = Recommender.open(folder)
    if not recommender.ids.same_codes(ids):
        raise ConfigError(f"{folder} was trained with other ids than {options.ids}: give its item_ids.json")
    target = Target.load(folder, "float32", options.device)
    catalogue = Catalogue.build(ids, data.popularity(len(ids.items)))
    began, width = time.monotonic(), options.width or max(options.k)
    lists = recommend(target, recommender, catalogue, tests, width, max(options.k), options.with_interacted)
    return lists, {"beams": width, "dtype": "float32",
                   "parameters": target.model.num_parameters(),
                   "users_per_s": round(len(tests) / (time.monotonic() - began), 1)}


def _baseline(name: str, items: int, data: Sequences, tests: Tests, options: EvaluationOptions):
    count = max(options.k)
    histories = [history for history, _ in tests]
    excluded = [row[:0] for row in histories] if options.with_interacted else histories
    if name == "sasrec":
        model = SasRec(items, Settings(seed=options.seed)).train(data, sample(data.tests("valid"), 2000, 0))
        return model.lists(histories, excluded, count), {"settings": asdict(model.settings)} | model.record
    order = np.argsort(-data.popularity(items), kind="stable")
    top = order[:count + max(map(len, histories))]
    return [top[~np.isin(top, rows)][:count] for rows in excluded], {}


def _rows(lists: dict[str, list], records: dict[str, dict], targets: list, ks: Sequence[int]) -> list[dict]:
    rows = []
    for k in ks:
        for metric, score in (("recall", recall), ("ndcg", ndcg)):
            values = {name: score(recommended, targets, k) for name, recommended in lists.items()}
            for name, of_users in values.items():
                rows.append({"method": name, "metric": metric, "k": k,
                             **bootstrap(of_users),
                             "minus": {other: bootstrap(of_users - others)
                                       for other, others in values.items() if other != name},
                             "record": records[name]})
    return rows
