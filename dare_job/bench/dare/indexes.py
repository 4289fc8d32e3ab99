"""Pools of the model's previous texts, built as the job builds them, and the pool of each user and item.

Users are grouped by their interactions and items by their category, as in the paper.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa

from dare_job.bench.dare.tables import Data
from dare_job.bench.kept import keep
from dare_job.bench.pools.pools import distinct_pairs
from dare_job.embed import kmeans
from dare_job.generate import previous_text
from dare_job.schemas import GLOBAL
from dare_job.training import lightgcn
from pools import router
from pools.attributes import AttributeTree
from pools.store import sample_ids

Pool = tuple[str, str]  # name, kind
CLUSTERS = 3  # of users
_CATEGORY = ("genre",)
_SEED = 0


def build(texts: Mapping[str, np.ndarray], pools: Mapping[str, Pool], max_texts: int, tokenizer: str,
          folder: Path, made_of: str) -> dict[str, int]:
    """Build the pools of one entity type in ``folder``; return the number of texts of each.

    Parameters
    ----------
    texts
        Token ids (tokens,) by entity id.
    pools
        Pool of each entity.
    max_texts
        Maximum number of texts in a group's pool, sampled by seed. The pool of all users has all texts.
    made_of
        What else the texts depend on.
    """
    members = defaultdict(list, {(GLOBAL, GLOBAL): sorted(texts)})
    for key in texts:
        if pools[key][0] != GLOBAL:
            members[pools[key]].append(key)
    sampled = {pool: keys if pool[0] == GLOBAL else sorted(sample_ids(keys, max_texts))
               for pool, keys in members.items()}

    def fill(out: Path) -> None:
        for (name, kind), keys in sampled.items():
            ids = pa.array([texts[key].tolist() for key in keys], pa.list_(pa.int32()))
            table = pa.table({"pool": [name] * len(keys), "kind": [kind] * len(keys), "entity_id": keys,
                              "token_ids": ids})
            previous_text.build_pool(table, str(out), {"tokenizer": tokenizer})

    keep(folder, [made_of, tokenizer, sorted((*pool, keys) for pool, keys in sampled.items())], fill)
    return {name: len(keys) for (name, _), keys in sampled.items()}


def pools_of(data: Data, work: Path) -> dict[str, dict[str, Pool]]:
    """The pool by user and by item, kept in ``work``."""
    return {"user": _by_vectors(data, work / "groups" / data.name), "item": _by_category(data)}


def _by_vectors(data: Data, folder: Path) -> dict[str, Pool]:
    """k-means of LightGCN vectors, trained on the interactions before the previous texts."""
    histories = {user: data.known(user) for user in sorted(data.users)}

    def fill(out: Path) -> dict:
        pairs = distinct_pairs(histories)
        vectors = lightgcn.train(pairs, lightgcn.Training()).users
        count = kmeans.cluster_count(len(vectors), 1, CLUSTERS)
        labels = kmeans.cluster_names(kmeans.cluster(vectors, count, _SEED))
        return {"groups": dict(zip(pairs.users.to_pylist(), labels.to_pylist(), strict=True))}

    groups = keep(folder, [histories, CLUSTERS, asdict(lightgcn.Training())], fill)["groups"]
    return {user: _routed("user", len(items), groups.get(user), None, "collaborative")
            for user, items in histories.items()}


def _by_category(data: Data) -> dict[str, Pool]:
    """Groups of the items that have previous texts; a new item goes to the group of its category."""
    rows = [(item, dict(attributes)) for item, (_, attributes) in sorted(data.items.items())]
    old = [(attributes, 1) for item, attributes in rows if item not in data.new_items]
    tree = AttributeTree.build(old, _CATEGORY, max_size=len(old))
    return {item: _routed("item", 0, None, tree.group_of(attributes), "attribute")
            for item, attributes in rows}


def _routed(entity: str, interactions: int, collaborative, attribute, override: str) -> Pool:
    route = router.route(entity, interactions, collaborative, attribute, 0, override)
    return route.pool, route.pool_kind
