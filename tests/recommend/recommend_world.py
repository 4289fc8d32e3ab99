"""Ids and networks for the tests of recommenders."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dare_job.recommend.item_ids import ItemIds
from dare_job.recommend.vocabulary import Recommender
from dare_job.training.recommender import network
from dare_job.training.recommender.settings import Settings

ITEMS, SIZES = 40, (4, 5, 6)


@dataclass(frozen=True)
class World:
    """A folder with text sequences, the file of ids, and the ids themselves."""

    data: Path
    ids_file: Path
    ids: ItemIds


def some_ids(items: int = ITEMS, sizes: tuple[int, ...] = SIZES, seed: int = 0) -> ItemIds:
    """Ids drawn with a seed; the last item shares the first one's."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(int(np.prod(sizes)), items - 1, replace=False)
    codes = np.stack(np.unravel_index([*chosen, chosen[0]], sizes), 1).astype(np.int32)
    return ItemIds(tuple(map(str, range(items))), codes, sizes)


def untrained(ids: ItemIds, seed: int = 0, width: int = 16,
              layers: int = 2) -> tuple[torch.nn.Module, Recommender]:
    """A network that prefers some tokens clearly, though it has learned nothing."""
    settings = Settings(width=width, layers=layers, heads=2, seed=seed, history=8)
    model, _, recommender = network.new_model(ids, settings, Path("nowhere"))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(6 if weight.dim() >= 2 else 1)
    return model.eval(), recommender
