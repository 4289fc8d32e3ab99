"""Trains LightGCN on pairs of users and items, with the training loop of all models."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from dare_job.embed.lightgcn import LightGCN, Pairs, adjacency, step_loss
from dare_job.training import loop

_MIN_STEPS = 16  # per epoch; with fewer, small data is undertrained
_MAX_STEPS = 64  # per epoch; each step propagates over the whole graph, so large data needs larger batches
_MIN_THREADED_PAIRS = 1_000_000  # pairs from which torch may use all its threads


@dataclass(frozen=True)
class Vectors:
    """Vectors of users (U, d) and items (I, d), float32, and the mean BPR loss of each epoch."""

    users: np.ndarray
    items: np.ndarray
    loss: list[float]


@dataclass(frozen=True)
class Training:
    """Hyperparameters.

    Attributes
    ----------
    dim
        Dimension of the vectors.
    layers
        Layers of propagation.
    batch_size
        Pairs per step.
    """

    dim: int = 32
    epochs: int = 20
    seed: int = 0
    layers: int = 2
    learning_rate: float = 0.01
    batch_size: int = 2048


def train(pairs: Pairs, settings: Training, device: str | None = None) -> Vectors:
    """Learn vectors from pairs by Bayesian personalized ranking. Reproducible on a CPU for the same seed.

    Adjusts ``batch_size`` so that an epoch has 16 to 64 steps.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    random = torch.Generator().manual_seed(settings.seed)
    count = len(pairs.users) + len(pairs.items)
    model = LightGCN(count, settings.dim, settings.layers, random).to(device)
    graph = adjacency(pairs).to(device)
    losses: list[list[torch.Tensor]] = []  # sums over the pairs of each step, by epoch

    def batches(epoch: int) -> loop.Stream:
        losses.append([])
        batch = _batch_size(len(pairs.user), settings.batch_size)
        return loop.Stream(_triples(pairs, batch, random), -(-len(pairs.user) // batch))

    def loss(triples: torch.Tensor) -> torch.Tensor:
        value = step_loss(model, graph, triples.to(device))
        losses[-1].append(value.detach() * triples.shape[1])
        return value

    schedule = loop.Schedule(epochs=settings.epochs if len(pairs.user) else 0, rate=settings.learning_rate,
                             weight_decay=0.0, warmup_steps=None, patience=0, max_gradient=None)
    with _threads_for(len(pairs.user)):
        loop.fit(model, loop.Training(batches, loss, name="LightGCN"), schedule,
                 optimizers=[torch.optim.Adam(model.parameters(), lr=settings.learning_rate)])
        with torch.no_grad():
            vectors = model(graph).float().cpu().numpy()
    return Vectors(vectors[:len(pairs.users)], vectors[len(pairs.users):],
                   [torch.stack(epoch).sum().item() / len(pairs.user) for epoch in losses])


def _batch_size(pairs: int, wanted: int) -> int:
    smallest, largest = (-(-pairs // steps) for steps in (_MAX_STEPS, _MIN_STEPS))
    return max(1, min(max(wanted, smallest), largest))


def _triples(pairs: Pairs, batch: int, random: torch.Generator) -> Iterator[torch.Tensor]:
    """All pairs in random order, each with a random item: nodes int64 (3, B) of user, item and other item."""
    first = len(pairs.users)  # node of the first item
    user, item = torch.from_numpy(pairs.user), torch.from_numpy(pairs.item + first)
    for rows in torch.randperm(len(user), generator=random).split(batch):
        other = torch.randint(first, first + len(pairs.items), (len(rows),), generator=random)
        yield torch.stack([user[rows], item[rows], other])


@contextmanager
def _threads_for(pairs: int):
    """Use one thread for a small graph, as its operations are too short to parallelize."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if pairs < _MIN_THREADED_PAIRS else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
