"""A recommender with random weights, and the interactions of a small shop."""

from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dare_job.recommend.item_ids import ItemIds
from dare_job.recommend.vocabulary import Recommender

SIZES, FIRST = (5, 6, 4), (3, 8, 14)


def item_ids(items: int = 40, seed: int = 0) -> ItemIds:
    """Item ids of i0, i1, ...; the last two items share one."""
    rng = np.random.default_rng(seed)
    distinct = np.stack(np.unravel_index(rng.permutation(int(np.prod(SIZES)))[:items - 1], SIZES), 1)
    codes = np.concatenate((distinct, distinct[-1:])).astype(np.int32)
    return ItemIds(tuple(f"i{number}" for number in range(items)), codes, SIZES)


def write(folder: Path, seed: int = 0, width: int = 32, ids: ItemIds | None = None,
          positions: int = 128) -> Path:
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=24, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=positions, bos_token_id=0,
        eos_token_id=1, pad_token_id=2))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    model.save_pretrained(folder)
    Recommender(folder, ids or item_ids(), FIRST, 8, begin=(0,)).write(folder)
    return folder


def interactions(users: int = 23, seed: int = 1) -> list[tuple]:
    """(user_id, item_id, rating, timestamp); u0 has no item with an id."""
    rng = np.random.default_rng(seed)
    rows = [(f"u{user}", f"i{item}", None, 1_700_000_000 + 60 * at)
            for user in range(1, users) for at, item in enumerate(rng.integers(0, 40, 1 + user % 6))]
    return [*rows, ("u0", "unknown", None, 1_700_000_000)]
