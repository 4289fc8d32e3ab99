"""LightGCN (He et al., arXiv:2002.02126) on torch's sparse matrices. Independent of stages.

The normalized adjacency is one symmetric CSR matrix, so its backward pass is a product with the same matrix.
Autograd would transpose it at every step, which is eight times slower on 943 x 1,682 x 100 k pairs.

``Pairs`` is the bipartite graph of interactions as integer pairs.
"""

import warnings
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch.nn import functional

from dare_job.storage import paths
from dare_job.storage.paths import AnyPath

_L2 = 1e-4


@dataclass(frozen=True)
class Pairs:
    """P distinct pairs of U users and I items, sorted by user and item.

    Attributes
    ----------
    users, items : string (U,) and (I,)
        Ids in ascending order.
    user, item : int64 (P,)
        Indices into users and items.
    last : bool (P,)
        Whether the pair is the user's latest interaction (ties: the greatest item id).
    """

    users: pa.Array
    items: pa.Array
    user: np.ndarray
    item: np.ndarray
    last: np.ndarray

    def without(self, dropped: np.ndarray) -> "Pairs":
        """The same users and items without some pairs. ``dropped``: indices of pairs (D,)."""
        user, item, last = (np.delete(part, dropped) for part in (self.user, self.item, self.last))
        return replace(self, user=user, item=item, last=last)


def read_pairs(path: AnyPath, before: int) -> Pairs:
    """Read the pairs of an INTERACTIONS table with timestamps before ``before`` (seconds since 1970)."""
    table = paths.parquet_dataset(path, exclude_invalid_files=False).to_table(
        columns=["user_id", "item_id", "timestamp"], filter=pc.field("timestamp") < before)
    users, user = _codes(table["user_id"])
    items, item = _codes(table["item_id"])
    order = np.lexsort((item, table["timestamp"].to_numpy(), user))
    latest = np.zeros(len(user), dtype=bool)
    if len(order):
        latest[order[np.append(np.flatnonzero(np.diff(user[order])), len(order) - 1)]] = True
    packed, place = np.unique(user * max(len(items), 1) + item, return_inverse=True)
    last = np.zeros(len(packed), dtype=bool)
    last[place[latest]] = True
    return Pairs(users, items, *np.divmod(packed, max(len(items), 1)), last)


def hold_out(pairs: Pairs, seed: int, max_users: int = 1000, min_pairs: int = 5) -> np.ndarray:
    """Indices (D,) of the last pair of up to ``max_users`` users with at least ``min_pairs`` pairs each.

    Every item keeps at least one pair.
    """
    degree = np.bincount(pairs.user, minlength=len(pairs.users))
    chosen = np.flatnonzero(pairs.last & (degree[pairs.user] >= min_pairs))
    if len(chosen) > max_users:
        chosen = np.sort(np.random.default_rng(seed).choice(chosen, max_users, replace=False))
    rest = np.bincount(pairs.item, minlength=len(pairs.items))
    rest -= np.bincount(pairs.item[chosen], minlength=len(pairs.items))
    return chosen[rest[pairs.item[chosen]] > 0]


def _codes(column: pa.ChunkedArray) -> tuple[pa.Array, np.ndarray]:
    """Distinct values in ascending order (D,), and the index of each row's value (n,) int64."""
    coded = column.combine_chunks().dictionary_encode()
    order = pc.sort_indices(coded.dictionary).to_numpy()
    return coded.dictionary.take(pa.array(order)), np.argsort(order)[coded.indices.to_numpy()]


class LightGCN(torch.nn.Module):
    """One trained vector per node. A node's embedding is the mean of 0 to ``layers`` propagations."""

    def __init__(self, nodes: int, dim: int, layers: int, random: torch.Generator):
        """Initialize with ``random`` only, without torch's global generator."""
        super().__init__()
        self.layers = layers
        self.weight = torch.nn.Parameter(torch.empty(nodes, dim))
        torch.nn.init.xavier_uniform_(self.weight, generator=random)

    def forward(self, graph: torch.Tensor) -> torch.Tensor:
        """Embeddings (N, d) on a symmetric, normalized ``graph`` (N, N)."""
        x = self.weight
        total = share = x / (self.layers + 1)
        for _ in range(self.layers):
            share = _Product.apply(graph, share)
            total = total + share
        return total


def step_loss(model: LightGCN, graph: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
    """BPR loss -mean(ln sigmoid(u.i - u.j)), plus L2 of the vectors / B. ``nodes`` (3, B): u, i, j."""
    # embedding() instead of indexing, whose backward pass sorts
    user, item, other = functional.embedding(nodes, model(graph))  # (B, d) each
    ranking = -functional.logsigmoid((user * item).sum(-1) - (user * other).sum(-1)).mean()
    return ranking + _L2 / nodes.shape[1] * functional.embedding(nodes.unique(), model.weight).square().sum()


def adjacency(pairs: Pairs) -> torch.Tensor:
    """Normalized adjacency D^-1/2 A D^-1/2 of the bipartite graph, CSR (U + I, U + I), float32."""
    shift = len(pairs.users)
    count = shift + len(pairs.items)
    row = np.concatenate([pairs.user, pairs.item + shift])
    column = np.concatenate([pairs.item + shift, pairs.user])
    order = np.lexsort((column, row))
    row, column = row[order], column[order]
    degree = np.bincount(row, minlength=count)
    values = (1 / np.sqrt(degree[row] * degree[column].astype(np.float64))).astype(np.float32)
    start = np.concatenate([[0], np.cumsum(degree)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # CSR support is marked as beta
        return torch.sparse_csr_tensor(*map(torch.from_numpy, (start, column, values)), (count, count),
                                       check_invariants=False)


class _Product(torch.autograd.Function):
    """graph @ x with a backward pass for symmetric graphs."""

    @staticmethod
    def forward(ctx, graph, x):
        ctx.graph = graph
        return graph @ x

    @staticmethod
    def backward(ctx, gradient):
        return None, ctx.graph @ gradient


def recall_at_k(users: np.ndarray, items: np.ndarray, train: Pairs, test_users: np.ndarray,
                test_items: np.ndarray, k: int = 20) -> float:
    """Recall@k: share of held-out pairs whose item is among the user's k best items.

    Parameters
    ----------
    users, items
        Vectors (U, d), (I, d).
    train
        Pairs that are excluded from the ranking.
    test_users, test_items
        Held-out pairs, (D,) each.
    """
    start = np.searchsorted(train.user, np.arange(len(train.users) + 1))
    hits, k = 0, min(k, len(items))
    for user, item in zip(test_users, test_items, strict=True):
        scores = items @ users[user]
        scores[train.item[start[user]:start[user + 1]]] = -np.inf
        hits += int(item in np.argpartition(-scores, k - 1)[:k])
    return hits / max(len(test_users), 1)
