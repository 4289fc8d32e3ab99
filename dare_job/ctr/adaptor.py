"""The hybrid-expert adaptor of KAR (arXiv:2306.10933): text vectors to what CTR models use."""

import torch
from torch import Tensor, nn


class HybridExpertAdaptor(nn.Module):
    """Experts that users and items share, and experts of each, mixed by a gate.

    For the vector r of a text of side s (user or item), with shared experts S_1 .. S_m and the side's own
    experts D_1 .. D_n, each a network of one hidden layer:

        a      = softmax(W_s r + b_s)                                              (m + n)
        f_s(r) = sum_j a_j S_j(r) + sum_k a_(m + k) D_k(r)                         (out)

    Where there is no text, f_s is a learned vector of its own.

    sides    names of the sides, each with vectors of ``size`` numbers
    dropout  share of a vector's numbers that an expert does not see in training
    """

    def __init__(self, sides: list[str], size: int, out: int = 32, hidden: int = 64, shared: int = 2,
                 dedicated: int = 2, dropout: float = 0.2):
        super().__init__()
        self.shared = nn.ModuleList(_expert(size, hidden, out, dropout) for _ in range(shared))
        self.dedicated = nn.ModuleDict({
            side: nn.ModuleList(_expert(size, hidden, out, dropout) for _ in range(dedicated))
            for side in sides})
        self.gate = nn.ModuleDict({side: nn.Linear(size, shared + dedicated) for side in sides})
        self.none = nn.ParameterDict({side: nn.Parameter(torch.zeros(out)) for side in sides})

    def forward(self, side: str, vectors: Tensor, there: Tensor) -> Tensor:
        """vectors (B, size), there (B,) bool: whether a text is there; returns (B, out)."""
        experts = [*self.shared, *self.dedicated[side]]
        weights = self.gate[side](vectors).softmax(-1)  # (B, m + n)
        written = torch.stack([expert(vectors) for expert in experts], 1)  # (B, m + n, out)
        mixed = torch.einsum("be,beo->bo", weights, written)
        return torch.where(there[:, None], mixed, self.none[side])


def _expert(size: int, hidden: int, out: int, dropout: float) -> nn.Module:
    return nn.Sequential(nn.Dropout(dropout), nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, out))
