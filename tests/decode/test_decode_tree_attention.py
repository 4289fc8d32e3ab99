"""Attention of packed trees on a CPU: in blocks of queries, and row by row, as torch computes it at once."""

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from dare_job.decode.model import masks, tree_attention
from dare_job.decode.model.support import Traits
from dare_job.decode.model.tree import PaddedLayout, build
from pools.tree import ROOT, DraftBatch

FULL = Traits(("full_attention",), None, None, "", None)


def states(rows: int, heads: int, length: int, dim: int = 16) -> torch.Tensor:
    return torch.randn(rows, heads, length, dim)


def at_once(query, key, value, mask):
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True,
                                        is_causal=mask is None).transpose(1, 2)


@pytest.mark.parametrize(("heads", "groups"), [(6, 2), (4, 4), (5, 1)])
@pytest.mark.parametrize("start", [0, 37])
def test_a_prompt_in_blocks(heads, groups, start):
    torch.manual_seed(0)
    query = states(2, heads, 150)
    key, value = states(2, groups, start + 150), states(2, groups, start + 150)
    mask = masks.prompt(FULL, 2, start, start + 150, torch.float32, "cpu") if start else None
    ours, _ = tree_attention.tree_sdpa(None, query, key, value, mask)
    torch.testing.assert_close(ours, at_once(query, key, value, mask))


@pytest.mark.parametrize("sizes", [(0, 31, 2, 0), (1, 0, 0, 1)])
def test_uneven_trees_row_by_row(sizes, monkeypatch):
    """Each row gets what it gets alone, and what all get with padding; it never reads other columns."""
    torch.manual_seed(1)
    rng, rows, nodes = np.random.default_rng(1), len(sizes), max(sizes)
    lengths = np.array([40, 9, 25, 3])
    parents = np.array([[rng.integers(ROOT, i) if i else ROOT for i in range(nodes)]] * rows, np.int32)
    drafts = DraftBatch(np.ones((rows, nodes), np.int32), parents, np.array(sizes, np.int32),
                        np.ones((rows, nodes), np.float32), np.zeros((rows, nodes), np.uint8))
    tree = build(np.zeros(rows, np.int64), drafts, np.full(rows, 99))
    layout, columns = PaddedLayout.of(tree, lengths), 40 + tree.width
    assert layout.padding > 1.25 and [row[2] for row in layout.parts] == [
        length + size + 1 for length, size in zip(lengths, sizes, strict=True)]
    _, mask = masks.tree_on_cpu(FULL, tree, lengths, columns, torch.float32)
    query = states(1, 4, len(tree))
    key, value = states(rows, 2, columns), states(rows, 2, columns)
    for row, (*_, end) in enumerate(layout.parts):  # columns that the row does not have
        key[row, :, end:] = value[row, :, end:] = torch.nan

    def attended(limit: float):
        monkeypatch.setattr(tree_attention, "_MAX_PADDING", limit)
        return tree_attention.run_packed(layout, tree_attention.tree_sdpa, None, query, key, value, mask)[0]

    by_row = attended(1.25)
    for row, (start, end, seen) in enumerate(layout.parts):
        alone = at_once(query[:, :, start:end], key[row : row + 1, :, :seen], value[row : row + 1, :, :seen],
                        mask[row : row + 1, :, : end - start, :seen])
        torch.testing.assert_close(by_row[:, start:end], alone)
    key, value = key.nan_to_num(), value.nan_to_num()
    torch.testing.assert_close(attended(99.0), by_row)
