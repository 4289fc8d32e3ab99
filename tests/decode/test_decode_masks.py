"""Attention masks: those that compiled code fills on a CPU are those of tensor operations."""

import numpy as np
import pytest
import torch

from dare_job.decode.model import masks
from dare_job.decode.model.support import Traits
from dare_job.decode.model.tree import PaddedLayout, build
from pools.tree import ROOT, DraftBatch


@pytest.mark.parametrize(("window", "kind"), [
    (None, None), (3, "sliding_attention"), (8, "sliding_attention"), (3, "chunked_attention"),
    (8, "chunked_attention")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_of_compiled_code_equal_those_of_tensors(window, kind, dtype):
    """The CPU fills masks in a loop, other devices use tensor operations."""
    rng = np.random.default_rng(0)
    parents = np.array([[ROOT, ROOT, 0, 1, 1, 3], [ROOT, 0, ROOT, 2, 3, 4], [ROOT] * 6], np.int32)
    tokens = np.arange(18, dtype=np.int32).reshape(3, 6)
    drafts = DraftBatch(tokens, parents, np.array([6, 4, 1], np.int32), None, None)
    tree = build(np.zeros(3, np.int64), drafts, np.full(3, 9))
    lengths, columns = rng.integers(0, 12, 3), 21
    kinds = ("full_attention",) if window is None else ("full_attention", kind)
    traits = Traits(kinds, window, None, "", None)
    positions, ours = masks.tree_on_cpu(traits, tree, lengths, columns, dtype)
    theirs = masks.tree(traits, PaddedLayout.of(tree, lengths), tree.ancestors, tree.depths,
                        torch.from_numpy(lengths), columns, dtype)
    for kind in kinds if window else [None]:
        a, b = (ours[kind], theirs[kind]) if kind else (ours, theirs)
        assert torch.equal(a, b) and a.dtype == dtype
    assert torch.equal(positions, tree.depths + torch.from_numpy(lengths)[tree.rows])
