"""LightGCN: the loss by hand, the product's gradient, and that it learns what popularity cannot."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from dare_job.embed import lightgcn
from dare_job.training import lightgcn as training


def made(tmp_path, rows, before=2**40):
    """rows of (user, item, timestamp)"""
    names = ["user_id", "item_id", "timestamp"]
    table = pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=names)
    pq.write_table(table, tmp_path / "interactions.parquet")
    return lightgcn.read_pairs(tmp_path / "interactions.parquet", before)


def test_pairs_are_distinct_sorted_and_up_to_the_date(tmp_path):
    rows = [("b", "y", 3), ("b", "x", 5), ("b", "x", 1), ("a", "z", 2), ("a", "y", 9)]
    graph = made(tmp_path, rows, before=9)
    assert (graph.users.to_pylist(), graph.items.to_pylist()) == (["a", "b"], ["x", "y", "z"])
    assert list(zip(graph.user.tolist(), graph.item.tolist(), strict=True)) == [(0, 2), (1, 0), (1, 1)]
    assert graph.last.tolist() == [True, True, False]  # b met x again at 5, after y


def test_adjacency_and_loss_of_two_pairs_by_hand(tmp_path):
    """Users a, b; items x, y; a-x, b-x, b-y. One layer: e = (x0 + A x0) / 2."""
    graph = made(tmp_path, [("a", "x", 1), ("b", "x", 1), ("b", "y", 1)])
    a, b = 1 / math.sqrt(2), 1 / 2  # deg(a) deg(x) = 2, deg(b) deg(x) = 4, deg(b) deg(y) = 2
    expected = torch.tensor([[0, 0, a, 0], [0, 0, b, a], [a, b, 0, 0], [0, a, 0, 0]])
    matrix = lightgcn.adjacency(graph)
    assert matrix.layout == torch.sparse_csr
    torch.testing.assert_close(matrix.to_dense(), expected)

    model = lightgcn.LightGCN(4, 2, 1, torch.Generator().manual_seed(0))
    start = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [-1.0, 1.0]])
    model.weight.data.copy_(start)
    e = (start + expected @ start) / 2
    nodes = torch.tensor([[0, 1], [2, 2], [3, 3]])  # a prefers x to y, b prefers x to y
    margins = [float(e[user] @ (e[2] - e[3])) for user in (0, 1)]
    bpr = sum(math.log1p(math.exp(-margin)) for margin in margins) / 2  # averaged once over the two
    l2 = 1e-4 * float((start ** 2).sum()) / 2  # all four nodes once, over the two pairs
    loss = lightgcn.step_loss(model, matrix, nodes)
    assert math.isclose(loss.item(), bpr + l2, rel_tol=1e-5)


def test_gradient_equals_autograd_through_a_dense_matrix(tmp_path):
    graph = made(tmp_path, [("a", "x", 1), ("b", "x", 1), ("b", "y", 1)])
    matrix = lightgcn.adjacency(graph)
    model = lightgcn.LightGCN(4, 3, 2, torch.Generator().manual_seed(1))
    weight = torch.arange(12.0).reshape(4, 3)
    (model(matrix) * weight).sum().backward()
    x = model.weight.detach().clone().requires_grad_()
    dense = matrix.to_dense()
    (((x + dense @ x + dense @ (dense @ x)) / 3) * weight).sum().backward()
    torch.testing.assert_close(model.weight.grad, x.grad)


def clustered(tmp_path, users=120, items=60, communities=4, each=8):
    """Every user meets items of one community only; popularity cannot tell which."""
    random = np.random.default_rng(0)
    size = items // communities
    rows = []
    for user in range(users):
        chosen = random.choice(size, each, replace=False) + (user % communities) * size
        rows += [(f"u{user}", f"i{item:03d}", place) for place, item in enumerate(chosen)]
    return made(tmp_path, rows)


def test_it_beats_popularity_and_is_the_same_twice(tmp_path):
    graph = clustered(tmp_path)
    out = lightgcn.hold_out(graph, seed=0)
    known = graph.without(out)
    assert len(out) == 120 and len(known.user) == len(graph.user) - 120
    settings = training.Training(dim=16, layers=2, epochs=40, batch_size=256)
    first, second = (training.train(known, settings) for _ in range(2))
    assert np.array_equal(first.users, second.users) and np.array_equal(first.items, second.items)
    assert first.users.dtype == np.float32 and first.loss[-1] < first.loss[0]
    asked = (graph.user[out], graph.item[out])
    learned = lightgcn.recall_at_k(first.users, first.items, known, *asked, k=5)
    popular = np.bincount(known.item, minlength=60).astype(np.float32)[:, None]
    by_popularity = lightgcn.recall_at_k(np.ones((120, 1), np.float32), popular, known, *asked, k=5)
    # eight of fifteen items are left in a community, of which five are shown: 0.6 is the most to hope for
    assert by_popularity < 0.25 < 0.45 < learned


def test_another_seed_is_another_start():
    random = [torch.Generator().manual_seed(seed) for seed in (0, 0, 1)]
    weights = [lightgcn.LightGCN(5, 4, 2, g).weight for g in random]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
