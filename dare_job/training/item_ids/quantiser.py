"""RQ-VAE: an autoencoder whose inner vector is a sum of code vectors, each for what those before it left.

Zeghidour et al. 2021 (residual quantisation), Rajput et al. 2023 (item ids, TIGER). It knows vectors only.
"""


import numpy as np
import torch
from torch.nn.functional import mse_loss

from dare_job.embed import kmeans
from dare_job.training import loop as training_loop
from dare_job.training.item_ids.settings import Settings
from dare_job.training.loop import Schedule, Training


class Quantiser(torch.nn.Module):
    """Encoder and decoder of two layers, and books of code vectors (levels, codes, inner)."""

    def __init__(self, size: int, settings: Settings):
        super().__init__()
        hidden, inner = settings.hidden, settings.inner
        linear, relu = torch.nn.Linear, torch.nn.ReLU
        self.encoder = torch.nn.Sequential(linear(size, hidden), relu(), linear(hidden, inner))
        self.decoder = torch.nn.Sequential(linear(inner, hidden), relu(), linear(hidden, size))
        self.books = torch.nn.Parameter(torch.zeros(settings.levels, settings.codes, inner))

    def quantise(self, inner: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes int64 (n, levels) of inner vectors (n, d), and what each level is given (levels, n, d)."""
        codes, left = [], [inner]
        for book in self.books:
            nearest = torch.cdist(left[-1].detach(), book.detach()).argmin(1)
            codes.append(nearest)
            left.append(left[-1] - book[nearest])
        return torch.stack(codes, 1), torch.stack(left[:-1])

    def loss(self, vectors: torch.Tensor, commitment: float) -> torch.Tensor:
        """Reconstruction, what draws code vectors to what they stand for, and the encoder to them."""
        inner = self.encoder(vectors)
        codes, left = self.quantise(inner)
        chosen = torch.stack([book[codes[:, level]] for level, book in enumerate(self.books)])
        books, commit = mse_loss(chosen, left.detach()), mse_loss(left, chosen.detach())
        straight = inner + (chosen.sum(0) - inner).detach()
        return mse_loss(self.decoder(straight), vectors) + books + commitment * commit


def fit(vectors: np.ndarray, settings: Settings) -> tuple[Quantiser, dict]:
    """Train on vectors (n, d) float32, from a seed alone; returns the network and its record.

    Code vectors start as k-means of what is left; those that no vector has after an epoch are put on vectors
    drawn at random. Raises ModelError where the loss is no number.
    """
    torch.manual_seed(settings.seed)
    data = standardize(vectors)
    network = Quantiser(data.shape[1], settings)
    _start(network, data, settings)

    def revive(epoch: int) -> None:
        if epoch < settings.epochs * 3 // 4:
            _revive(network, data)

    training = Training(lambda epoch: torch.randperm(len(data)).split(settings.batch),
                        lambda rows: network.loss(data[rows], settings.commitment), after_epoch=revive,
                        name="quantizer")
    schedule = Schedule(settings.epochs, settings.rate, 1e-4, None, 0, max_gradient=None)
    record = training_loop.fit(network, training, schedule, optimizers=[
        torch.optim.AdamW(network.parameters(), settings.rate, weight_decay=1e-4)])
    codes, _, error = encode(network, data)
    used = [len(np.unique(codes[:, level])) for level in range(settings.levels)]
    varied = bool(data.var(0, correction=0).mean() > 1e-12)  # vectors that differ have a share to explain
    return network, {"unexplained": round(error, 4) if varied else None, "codes_used": used,
                     "seconds": record["seconds"]}


def standardize(vectors: np.ndarray) -> torch.Tensor:
    """Vectors (n, d) around their mean, by one scale for all numbers."""
    data = torch.from_numpy(vectors)
    return (data - data.mean(0)) / data.std().clamp_min(1e-8)


@torch.no_grad()
def encode(network: Quantiser, data: torch.Tensor) -> tuple[np.ndarray, np.ndarray, float]:
    """Codes int64 (n, levels) of scaled vectors, squared distances (n, codes) of what is left before the last
    level to its code vectors, and the share of the vectors' variance that the decoded codes do not explain.
    """
    codes, left = network.quantise(network.encoder(data))
    chosen = sum(book[codes[:, level]] for level, book in enumerate(network.books))
    error = mse_loss(network.decoder(chosen), data) / data.var(0, correction=0).mean().clamp_min(1e-12)
    return codes.numpy(), torch.cdist(left[-1], network.books[-1]).square().numpy(), error.item()


@torch.no_grad()
def _start(network: Quantiser, data: torch.Tensor, settings: Settings) -> None:
    left = network.encoder(data)
    for level, book in enumerate(network.books):
        k = min(settings.codes, len(left))
        labels = torch.from_numpy(kmeans.cluster(left.numpy(), k, settings.seed + level))
        counts = torch.bincount(labels, minlength=settings.codes).clamp_min(1)
        book.zero_().index_add_(0, labels, left).div_(counts[:, None])
        left = left - book[labels]


@torch.no_grad()
def _revive(network: Quantiser, data: torch.Tensor) -> None:
    codes, left = network.quantise(network.encoder(data))
    for level, book in enumerate(network.books):
        unused = (torch.bincount(codes[:, level], minlength=len(book)) == 0).nonzero()[:, 0]
        book[unused] = left[level][torch.randint(len(data), (len(unused),))]
