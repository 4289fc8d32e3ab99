"""Does this model, whatever its name, give a tree's nodes the logits of a plain forward?"""

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from dare_job.decode.tree import build
from dare_job.errors import ModelError
from pools.tree import ROOT, DraftBatch

_LENGTHS = (13, 8)  # tokens before the root, of two rows
_WINDOW_LIMIT = 64  # longer windows are not filled: the check would cost more than loading
_PARENTS = np.array([[ROOT, ROOT, 0, 1, 1, 3], [ROOT, 0, ROOT, 2, 3, 4]], np.int32)
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}  # of the logits' spread, r.m.s.


def cache_shapes(model: PreTrainedModel) -> list[tuple[int, int, int]]:
    """(heads, key_dim, value_dim) of every layer's cache. Raises ModelError where there is no such cache."""
    name = type(model).__name__
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    ids = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    try:
        with torch.inference_mode():
            model(input_ids=ids, past_key_values=cache, use_cache=True)
        return [(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]) for layer in cache.layers]
    except (TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise ModelError(f"{name} is not supported: no plain cache of keys and values ({error})") from error


@torch.inference_mode()
def compare(target) -> None:
    """One forward over two rows' trees against plain forwards of each branch.

    Raises ModelError naming the architecture when they differ by more than rounding.
    """
    name = type(target.model).__name__
    try:
        tree_logits, plain_logits = _both(target)
    except (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError) as error:
        raise ModelError(f"{name} is not supported: it cannot run a token tree ({error})") from error
    spread = plain_logits.std().clamp_min(1e-6)
    difference = ((tree_logits - plain_logits).square().mean().sqrt() / spread).item()
    if not difference <= _TOLERANCE[target.dtype]:
        raise ModelError(
            f"{name} is not supported: over a token tree its logits differ from a plain forward by "
            f"{difference:.2g} of their spread"
        )


def _both(target) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = np.array(_LENGTHS)
    window = target.traits.window
    if window is not None and window <= _WINDOW_LIMIT:
        lengths = lengths + window
    if target.traits.context is not None:  # room for the root and three levels of drafts
        lengths = np.clip(lengths, 1, target.traits.context - 4)
    rng = np.random.default_rng(0)
    texts = rng.integers(0, target.vocabulary, (2, lengths.max() + 1))
    tokens = rng.integers(0, target.vocabulary, _PARENTS.shape).astype(np.int32)
    drafts = DraftBatch(tokens, _PARENTS, np.full(2, 6, np.int32), np.zeros(tokens.shape, np.float32),
                        np.zeros(tokens.shape, np.uint8))
    tree = build(texts[np.arange(2), lengths], drafts, np.full(2, 3))
    cache = target.new_cache(2)
    target.prefill(cache, np.arange(2), texts[:, : lengths.max()], lengths)
    logits = target.forward(cache, tree.to(target.device), lengths).float()
    plain = [_plain(target, texts[r, : lengths[r] + 1], tree, r) for r in range(2)]
    return logits, torch.stack(plain)


def _plain(target, text: np.ndarray, tree, row: int) -> torch.Tensor:
    """Logits (Q, V) of each node's own prefix."""
    out = []
    with target.as_transformers() as model:
        for node in range(tree.tokens.shape[1]):
            path = tree.tokens[row, tree.ancestors[row, node]][1:]
            ids = torch.cat((torch.from_numpy(text), path))[None].to(target.device)
            out.append(model(input_ids=ids, use_cache=False).logits[0, -1].float())
    return torch.stack(out)
