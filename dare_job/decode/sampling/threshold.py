"""The threshold of K-SEQ (Sun et al., arXiv 2310.15141)."""

import torch


def threshold(p: torch.Tensor, q: torch.Tensor, n: int) -> torch.Tensor:
    """rho (R,) in [1, n] with 1 - (1 - beta)^n = rho beta, beta the sum of min(p / rho, q).

    By Newton's steps, halving where they leave the bracket. Both sides are taken from 1, where they are sums
    of what is left and lose no digits.
    """
    rho, low, high = p.new_ones(len(p)), p.new_ones(len(p)), p.new_full((len(p),), n)
    for _ in range(100):
        over, under = p > q * rho[:, None], q > p / rho[:, None]
        heavy, light = (p * over).sum(-1), (q * over).sum(-1)
        covered, drawn = (p * under).sum(-1), (q * under).sum(-1)
        missed = (drawn - covered / rho).clamp_min(0)  # 1 - beta
        excess = (heavy - rho * light).clamp_min(0) - missed**n
        low, high = torch.where(excess >= 0, rho, low), torch.where(excess < 0, rho, high)
        slope = light + n * missed ** (n - 1) * covered / rho**2
        step = rho + excess / torch.where(slope > 0, slope, 1.0)
        step = torch.where((step >= low) & (step <= high), step, (low + high) / 2)
        moved, rho = (step - rho).abs(), step
        if not (moved > 1e-15 * n).any():
            break
    return rho
