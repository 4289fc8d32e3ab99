"""A model's log-probabilities along many ids behind one history, in one forward with gradients.

The ids are branches of a tree behind the prompt: a node attends to the prompt and to its own branch. Shapes:
B users, S branches, L levels, C codes of the largest level.
"""

from collections.abc import Sequence

import numpy as np
import torch

from dare_job.recommend.ids.vocabulary import Recommender

NEVER = -60.0  # log-probability of places that a level's codes do not fill


def log_probabilities(model: torch.nn.Module, recommender: Recommender, histories: Sequence[np.ndarray],
                      codes: torch.Tensor) -> torch.Tensor:
    """Float32 (B, S, L, C): of the codes of level l behind codes[:, :, :l]. codes int64 (B, S, L).

    Normalised over the whole vocabulary. A level with fewer than C codes is filled with ``NEVER``.
    """
    ids, there = _prompts(recommender, histories, model.device)
    users, branches, length = codes.shape
    first = torch.tensor(recommender.first_code_token, device=ids.device)
    nodes = (codes + first)[..., :-1].reshape(users, -1)
    logits = model(
        input_ids=torch.cat((ids, nodes), 1),
        attention_mask=_additive(_seen(there, branches, length - 1), model.dtype),
        position_ids=torch.cat((_places(there), _depths(there, branches, length - 1)), 1),
        use_cache=False, logits_to_keep=1 + nodes.shape[1]).logits
    widest, found = max(recommender.ids.sizes), []
    inner = logits[:, 1:].unflatten(1, (branches, length - 1)) if length > 1 else None
    for level in range(length):
        behind = logits[:, :1].expand(-1, branches, -1) if level == 0 else inner[:, :, level - 1]
        logs = _log_codes(behind, recommender, level)
        found.append(torch.nn.functional.pad(logs, (0, widest - logs.shape[-1]), value=NEVER))
    return torch.stack(found, 2)


def _seen(there: torch.Tensor, branches: int, depth: int) -> torch.Tensor:
    """Which token sees which, bool (B, P + S * depth, P + S * depth)."""
    users, width = there.shape
    found = torch.zeros(users, width + branches * depth, width + branches * depth, dtype=torch.bool)
    found[:, :width, :width] = torch.ones(width, width, dtype=torch.bool).tril()
    if depth:
        found[:, width:, width:] = torch.block_diag(*[torch.ones(depth, depth).tril()] * branches).bool()
    found = found.to(there.device)
    found[:, width:, :width] = True
    found[:, :, :width] &= there[:, None]
    return found


def _depths(there: torch.Tensor, branches: int, depth: int) -> torch.Tensor:
    """Positions int64 (B, S * depth) of the branches' nodes."""
    depths = torch.arange(depth, device=there.device).repeat(branches)
    return there.sum(1, keepdim=True) + depths


def _prompts(recommender: Recommender, histories: Sequence[np.ndarray],
            device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids int64 (B, P), padded on the left, and which of them are there, bool (B, P)."""
    found = [recommender.prompt(history) for history in histories]
    width = max(map(len, found))
    ids = torch.tensor([[*[0] * (width - len(prompt)), *prompt] for prompt in found], device=device)
    lengths = torch.tensor([len(prompt) for prompt in found], device=device)
    return ids, torch.arange(width, device=device) >= width - lengths[:, None]


def _places(there: torch.Tensor) -> torch.Tensor:
    """Positions int64 (B, P) of tokens that are there, from 0."""
    return (there.cumsum(1) - 1).clamp_min(0)


def _log_codes(logits: torch.Tensor, recommender: Recommender, level: int) -> torch.Tensor:
    """Log-probabilities float32 (..., C) of a level's codes, of logits (..., V), among all tokens."""
    first = recommender.first_code_token[level]
    return logits.float().log_softmax(-1)[..., first:first + recommender.ids.sizes[level]]


def _additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An attention mask (B, 1, Q, K) to be added to scores, of which key a query sees, bool (B, Q, K)."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(
        ~seen, torch.finfo(dtype).min)[:, None]
