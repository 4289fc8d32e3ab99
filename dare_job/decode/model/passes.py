"""Forward passes without gradients, and the logits of several of them in one order."""

from functools import wraps

import numpy as np
import torch


def without_gradients(method):
    """Enter ``torch.inference_mode`` only if the caller has not: entering takes noticeable time per step."""
    entering = torch.inference_mode()(method)

    @wraps(method)
    def call(*args, **kwargs):
        return (method if torch.is_inference_mode_enabled() else entering)(*args, **kwargs)

    return call


def in_order(parts: list[tuple[np.ndarray, torch.Tensor]]) -> torch.Tensor:
    """Return the logits (T, V) of several forward passes, each with its logits' places int64 among them."""
    order, logits = np.argsort(np.concatenate([places for places, _ in parts])), [part for _, part in parts]
    joined = logits[0] if len(logits) == 1 else torch.cat(logits)
    return joined if (np.diff(order) > 0).all() else joined[torch.from_numpy(order).to(joined.device)]
