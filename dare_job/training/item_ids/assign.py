"""``dare-job recommender item-ids``: item vectors or texts in, a file of item ids out.

Items with the same codes get ids of their own: another last code, or one level more.
"""

import logging
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import linear_sum_assignment

from dare_job.data import recorded_texts as text_files
from dare_job.embed import vectors as vector_files
from dare_job.errors import ConfigError, DataError
from dare_job.recommend.item_ids import ItemIds
from dare_job.storage import paths
from dare_job.training.item_ids import quantiser
from dare_job.training.item_ids.settings import Options, Settings

_LOG = logging.getLogger("dare_job")


def count_collisions(codes: np.ndarray) -> int:
    """Number of items of codes (n, L) that share their codes with an earlier item."""
    return len(codes) - len(np.unique(codes, axis=0))


def reassigned(codes: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """Make all codes (n, L) distinct by changing last codes below prefixes where items collide.

    Below such a prefix, the items get different last codes with the lowest sum of distances (Kuhn-Munkres).

    Parameters
    ----------
    distances : (n, C)
        Cost of each last code for each item.

    Raises
    ------
    ConfigError
        A prefix has more items than a level has codes.
    """
    distinct = codes.copy()
    _, owners, sizes = np.unique(codes[:, :-1], axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(owners.reshape(-1), kind="stable")
    for rows in np.split(order, np.cumsum(sizes)[:-1]):
        if len(np.unique(codes[rows, -1])) == len(rows):
            continue
        if len(rows) > distances.shape[1]:
            raise ConfigError(f"{len(rows)} items share all codes but the last, which has "
                              f"{distances.shape[1]}: increase --codes or --levels, or --collisions level")
        distinct[rows, -1] = linear_sum_assignment(distances[rows])[1]
    return distinct


def with_collision_level(codes: np.ndarray) -> np.ndarray:
    """Codes (n, L + 1): the L codes and each item's number among the items that share them (TIGER)."""
    numbers = pd.DataFrame(codes).groupby(list(range(codes.shape[1]))).cumcount()
    return np.column_stack((codes, numbers.to_numpy(codes.dtype)))


def run(options: Options) -> dict:
    """Train a quantizer, write the file of ids atomically, and return the training's record.

    Raises
    ------
    ConfigError
        The options are invalid, or a prefix has more items than a level has codes.
    DataError
        The file cannot be read, there are no items, or an item occurs twice.
    ModelError
        The encoder cannot be loaded, or the loss is not finite.
    """
    if (options.vectors is None) == (options.texts is None):
        raise ConfigError("give either --vectors or --text")
    began = time.monotonic()
    names, vectors = (_of_vectors(options.vectors) if options.vectors else _of_texts(options))
    if not len(names):
        raise DataError(f"{options.vectors or options.texts} has no items")
    _LOG.info("%d items with vectors of %d numbers", *vectors.shape)
    ids, record = make_ids(names, vectors, options.settings, options.collisions)
    ids.save(options.to)
    return {"ids": str(options.to), "items": len(names), "distinct": len(names) - count_collisions(ids.codes),
            "sizes": list(ids.sizes), "settings": asdict(options.settings),
            "collisions": options.collisions, **record, "minutes": round((time.monotonic() - began) / 60, 2)}


def make_ids(names: list[str], vectors: np.ndarray, settings: Settings, rule: str) -> tuple[ItemIds, dict]:
    """Ids of items with vectors (n, d), and the training's record with the collisions before ``rule``."""
    network, record = quantiser.fit(vectors, settings)
    codes, distances, _ = quantiser.encode(network, quantiser.standardize(vectors))
    record["collided"] = count_collisions(codes)
    sizes = [settings.codes] * settings.levels
    if rule == "reassign":
        codes = reassigned(codes, distances)
    elif rule == "level":
        codes = with_collision_level(codes)
        sizes.append(int(codes[:, -1].max()) + 1)
    return ItemIds(tuple(names), codes.astype(np.int32), tuple(sizes)), record


def _of_vectors(path: Path) -> tuple[list[str], np.ndarray]:
    if path.suffix != ".npy":
        names, vectors = vector_files.read_vectors(paths.path(str(path), "--vectors"))
        return names.to_pylist(), vectors
    try:
        vectors = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"--vectors {path} cannot be read as an array of numbers: {error}") from None
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or not np.isfinite(vectors).all():
        raise DataError(f"--vectors {path}: expected an array (items, size) of finite numbers, not "
                        f"{vectors.dtype} of shape {vectors.shape}")
    return list(map(str, range(len(vectors)))), vectors.astype(np.float32)


def _of_texts(options: Options) -> tuple[list[str], np.ndarray]:
    from dare_job.publish.features import encoder_files
    from dare_job.publish.features.encoder import Encoder

    table = text_files.read(options.texts, options.column, options.id_column)
    duplicate, count = Counter(table.ids).most_common(1)[0] if table.ids else ("", 0)
    if count > 1:
        raise DataError(f"--text {options.texts}: {options.id_column} {duplicate!r} occurs more than once")
    folder = encoder_files.resolve(options.encoder, setting="--encoder")
    return table.ids, Encoder(folder, options.device, 64).encode(table.texts).vectors
