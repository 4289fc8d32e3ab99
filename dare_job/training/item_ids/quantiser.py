"""RQ-VAE: an autoencoder whose latent vector is a sum of code vectors, each of the residual of those before.

Zeghidour et al. 2021 (residual quantization), Rajput et al. 2023 (item ids, TIGER). It knows vectors only.
"""

import numpy as np
import torch
from torch.nn.functional import mse_loss

from dare_job.embed import kmeans
from dare_job.training import loop
from dare_job.training.item_ids.settings import Settings


class Quantiser(torch.nn.Module):
    """Encoder and decoder of two layers, and code books (levels, codes, inner)."""

    def __init__(self, size: int, settings: Settings):
        super().__init__()
        hidden, inner = settings.hidden, settings.inner
        linear, relu = torch.nn.Linear, torch.nn.ReLU
        self.encoder = torch.nn.Sequential(linear(size, hidden), relu(), linear(hidden, inner))
        self.decoder = torch.nn.Sequential(linear(inner, hidden), relu(), linear(hidden, size))
        self.books = torch.nn.Parameter(torch.zeros(settings.levels, settings.codes, inner))

    def quantise(self, inner: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes int64 (n, levels) of latent vectors (n, d), and each level's residuals (levels, n, d)."""
        codes, residuals = [], [inner]
        for book in self.books:
            nearest = torch.cdist(residuals[-1].detach(), book.detach()).argmin(1)
            codes.append(nearest)
            residuals.append(residuals[-1] - book[nearest])
        return torch.stack(codes, 1), torch.stack(residuals[:-1])

    def loss(self, vectors: torch.Tensor, commitment: float) -> torch.Tensor:
        """Reconstruction loss, code book loss and commitment loss of vectors (n, size)."""
        inner = self.encoder(vectors)
        codes, residuals = self.quantise(inner)
        chosen = torch.stack([book[codes[:, level]] for level, book in enumerate(self.books)])
        books, commit = mse_loss(chosen, residuals.detach()), mse_loss(residuals, chosen.detach())
        straight = inner + (chosen.sum(0) - inner).detach()
        return mse_loss(self.decoder(straight), vectors) + books + commitment * commit


def fit(vectors: np.ndarray, settings: Settings) -> tuple[Quantiser, dict]:
    """Train on vectors (n, d) float32; the same seed gives the same network.

    Code vectors start as k-means centroids of the residuals. Code vectors that no item uses after an epoch
    move to the residuals of random items. The record: unexplained (share of variance), codes_used (per
    level), seconds.

    Raises
    ------
    ModelError
        The loss is not finite.
    """
    torch.manual_seed(settings.seed)
    data = standardize(vectors)
    network = Quantiser(data.shape[1], settings)
    _start(network, data, settings)

    def revive(epoch: int) -> None:
        if epoch < settings.epochs * 3 // 4:
            _revive(network, data)

    training = loop.Training(
        lambda epoch: torch.randperm(len(data)).split(settings.batch),
        lambda rows: network.loss(data[rows], settings.commitment), after_epoch=revive, name="quantizer")
    schedule = loop.Schedule(settings.epochs, settings.rate, 1e-4, None, 0, max_gradient=None)
    record = loop.fit(network, training, schedule, optimizers=[
        torch.optim.AdamW(network.parameters(), settings.rate, weight_decay=1e-4)])
    codes, _, error = encode(network, data)
    used = [len(np.unique(codes[:, level])) for level in range(settings.levels)]
    varied = bool(data.var(0, correction=0).mean() > 1e-12)  # equal vectors have no variance to explain
    return network, {"unexplained": round(error, 4) if varied else None, "codes_used": used,
                     "seconds": record["seconds"]}


def standardize(vectors: np.ndarray) -> torch.Tensor:
    """Center vectors (n, d), and divide them by their standard deviation over all entries."""
    data = torch.from_numpy(vectors)
    return (data - data.mean(0)) / data.std().clamp_min(1e-8)


@torch.no_grad()
def encode(network: Quantiser, data: torch.Tensor) -> tuple[np.ndarray, np.ndarray, float]:
    """Encode standardized vectors.

    Returns
    -------
    codes : int64 (n, levels)
    distances : (n, codes)
        Squared distances of the last level's residuals to its code vectors.
    unexplained
        Share of the variance that the decoded codes do not explain.
    """
    codes, residuals = network.quantise(network.encoder(data))
    chosen = sum(book[codes[:, level]] for level, book in enumerate(network.books))
    error = mse_loss(network.decoder(chosen), data) / data.var(0, correction=0).mean().clamp_min(1e-12)
    return codes.numpy(), torch.cdist(residuals[-1], network.books[-1]).square().numpy(), error.item()


@torch.no_grad()
def _start(network: Quantiser, data: torch.Tensor, settings: Settings) -> None:
    residuals = network.encoder(data)
    for level, book in enumerate(network.books):
        k = min(settings.codes, len(residuals))
        labels = torch.from_numpy(kmeans.cluster(residuals.numpy(), k, settings.seed + level))
        counts = torch.bincount(labels, minlength=settings.codes).clamp_min(1)
        book.zero_().index_add_(0, labels, residuals).div_(counts[:, None])
        residuals = residuals - book[labels]


@torch.no_grad()
def _revive(network: Quantiser, data: torch.Tensor) -> None:
    codes, residuals = network.quantise(network.encoder(data))
    for level, book in enumerate(network.books):
        unused = (torch.bincount(codes[:, level], minlength=len(book)) == 0).nonzero()[:, 0]
        book[unused] = residuals[level][torch.randint(len(data), (len(unused),))]
