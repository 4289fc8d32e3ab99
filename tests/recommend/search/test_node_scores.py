"""Scores of trie nodes over pages are those without pages, whichever prompts and nodes are read together."""

import numpy as np
import pytest
import torch
from small import FIRST, model, queries, trie

from dare_job.decode.model.target import Target
from dare_job.decode.trie_search.node_scores import RENORMALISED, NodeScores
from dare_job.decode.trie_search.trie import NONE, Vocabulary


@pytest.mark.parametrize("scores", ["raw", RENORMALISED])
def test_prompts_and_nodes_over_pages(scores):
    ids, rng = trie(), np.random.default_rng(4)
    readers = []
    for paged in (False, True):
        target = Target(model(), check=False, paged=paged)
        assert (target.paged is not None) == paged
        readers.append(NodeScores(target, Vocabulary(ids, FIRST), scores))
        readers[-1].begin([query.prompt for query in queries(4)])
    inner = np.arange(1, ids.first_leaf)
    passes = [([0, 2], 3), ([0, 1, 2], 2), ([3], 0), ([0, 1, 2, 3], 4)]  # rows, nodes of each
    for rows, count in passes:
        rows = np.array(rows)
        nodes = np.stack([np.append(rng.choice(inner, count, replace=False), NONE) for _ in rows])
        for reader in readers:
            reader.read(rows, nodes)
        wanted = np.concatenate((np.zeros((len(rows), 1), np.int64), nodes[:, :count]), 1)
        for ours, theirs in zip(*(reader.children(rows, wanted) for reader in readers), strict=True):
            assert torch.equal(ours, theirs) if ours.dtype != torch.float32 else torch.allclose(
                ours, theirs, atol=1e-4)
    assert [read.tolist() for read in readers[0].reads] == [read.tolist() for read in readers[1].reads]
