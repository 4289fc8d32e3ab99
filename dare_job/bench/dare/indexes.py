"""Pools of what the model itself said before, built as the job builds them."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from dare_job.spark import indexing
from dare_job.tables import GLOBAL
from dare_job.workspace import committing, digest, is_done
from pools.store import sample

Pool = tuple[str, str]  # name, kind


def index(texts: Mapping[str, np.ndarray], pools: Mapping[str, Pool], most: int, tokenizer: str, folder: Path,
          made_of: str) -> dict[str, int]:
    """Build the pools of one entity type in ``folder``; returns the number of texts of each.

    texts    token ids by entity id
    pools    where each entity belongs
    most     texts in a group's pool, drawn by seed; the pool of everybody has them all
    made_of  what else the texts depend on
    """
    members = defaultdict(list, {(GLOBAL, GLOBAL): sorted(texts)})
    for key in texts:
        if pools[key][0] != GLOBAL:
            members[pools[key]].append(key)
    kept = {pool: keys if pool[0] == GLOBAL else sorted(sample(keys, most))
            for pool, keys in members.items()}
    made_of = digest([made_of, tokenizer, sorted((*pool, keys) for pool, keys in kept.items())])
    if not is_done(folder, made_of):
        with committing(folder, made_of, {}) as staging:
            for (name, kind), keys in kept.items():
                ids = pa.array([texts[key].tolist() for key in keys], pa.list_(pa.int32()))
                table = pa.table({"pool": [name] * len(keys), "kind": [kind] * len(keys), "entity_id": keys,
                                  "token_ids": ids})
                indexing.build(table, str(staging), {"tokenizer": tokenizer})
    return {name: len(keys) for (name, _), keys in kept.items()}
