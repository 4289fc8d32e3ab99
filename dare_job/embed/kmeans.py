"""k-means with faiss, on a GPU if faiss supports one, and the choice of representative points.

Flat k-means compares every point with every centroid. The group size is fixed, so k grows with the number of
points and the work with its square. Above ``_MAX_FLAT`` clusters, points are first divided into at most
``_MAX_FLAT`` branches of about ``_CLUSTERS_PER_BRANCH`` clusters each; larger branches are divided again. A
point is then compared with a bounded number of centroids on each of log k levels. Branch borders can split
clusters, so two final rounds assign each point to the nearest of all centroids, searched in the ``_PROBES``
nearest of about sqrt(k) inverted lists.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Literal, TypeVar

import numpy as np
import pyarrow as pa

Key = TypeVar("Key")
_ITERATIONS = 25
_POINTS_PER_CENTROID = 1024  # faiss's 256 leaves large data with a higher inertia than scikit-learn's
_MIN_THREADED_WORK = 1e10  # n * k * d; for less work, threads cost more than they save on busy cores
_MAX_RESTART_WORK = 2e9  # n * k * d up to which the best of three starts is used
_MAX_FLAT = 512  # maximum clusters without branches
_CLUSTERS_PER_BRANCH = 64
_ROUNDS, _PROBES = 2, 8  # final rounds after branches; with them the inertia equals that of flat k-means
_BLOCK = 1_000_000  # points per search


def quotas(sizes: Mapping[Key, int], count: int) -> dict[Key, int]:
    """Distribute ``count`` over groups in proportion to their sizes, by largest remainders.

    Every group gets at least one while ``count`` lasts, and at most its size. Ties go to the larger group,
    then to the smaller key. Keys must be sortable. The result omits groups that get none.
    """
    order = sorted((key for key in sizes if sizes[key] > 0), key=lambda key: (-sizes[key], key))
    total = sum(sizes[key] for key in order)
    count = min(count, total)
    if count < len(order):
        return dict.fromkeys(order[:count], 1)
    shares = {key: max(1, count * sizes[key] // total) for key in order}
    remainder = {key: count * sizes[key] % total for key in order}
    missing = count - sum(shares.values())
    for key in sorted(order, key=lambda key: -remainder[key]):  # stable: ties stay in order
        if missing > 0 and shares[key] < sizes[key]:
            shares[key] += 1
            missing -= 1
    while missing < 0:  # take the minimum of one for small groups from the largest shares
        largest = max(order, key=lambda key: shares[key] / sizes[key] if shares[key] > 1 else 0.0)
        shares[largest] -= 1
        missing += 1
    return shares


def farthest_points(vectors: np.ndarray, count: int) -> list[int]:
    """Farthest-point sampling of vectors (n, d): min(count, n) row numbers.

    The first is the medoid, the row nearest to the mean (L2); each other is the row farthest from those
    already chosen. Ties go to the first row. A smaller ``count`` gives a prefix of the result.
    """
    if not len(vectors) or count < 1:
        return []
    points = np.asarray(vectors, np.float64)
    distances = _squared(points, points.mean(axis=0))
    chosen = [int(distances.argmin())]
    nearest = np.full(len(points), np.inf)
    while len(chosen) < min(count, len(points)):
        np.minimum(nearest, _squared(points, points[chosen[-1]]), out=nearest)
        nearest[chosen[-1]] = -1.0  # never chosen again, even if all other rows are equal to it
        chosen.append(int(nearest.argmax()))
    return chosen


def _squared(points: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Squared distances (n,). Without a matrix product, so they do not depend on the number of threads."""
    return ((points - centre) ** 2).sum(axis=1)


def cluster_count(count: int, target_size: int, clusters: int | Literal["auto"] = "auto") -> int:
    """k for ``count`` points: ``clusters``, or by ``target_size`` if that is "auto"; at most ``count``."""
    k = math.ceil(count / target_size) if clusters == "auto" else clusters
    return max(1, min(k, count))


def cluster(vectors: np.ndarray, k: int, seed: int,
            advance: Callable[[int], object] = lambda points: None) -> np.ndarray:
    """k-means of vectors (n, d), with branches above ``_MAX_FLAT`` clusters: each row's cluster, (n,) int64.

    Reproducible for the same seed.

    Parameters
    ----------
    advance
        Called with the number of points in each finished branch, for a progress bar.
    """
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if k <= _MAX_FLAT:
        starts = 3 if vectors.size * k <= _MAX_RESTART_WORK else 1
        return flat_kmeans(vectors, k, seed, _threads(vectors, k), starts)
    return _refine(vectors, _hierarchical(vectors, k, seed, _threads(vectors, k), advance), k)


def cluster_names(labels: np.ndarray) -> pa.Array:
    """Group names (n,) of clusters, for example "0007" for 7."""
    names = [f"{label:04d}" for label in range(1 + labels.max(initial=-1))]
    return pa.array(names, pa.string()).take(pa.array(labels))


def flat_kmeans(vectors: np.ndarray, k: int, seed: int, threads: int = 1, starts: int = 1) -> np.ndarray:
    """k-means of vectors float32 (n, d) without branches: the cluster of each, int64 (n,).

    It is the result with the lowest inertia of ``starts`` starts.
    """
    import faiss

    if k == 1 or not len(vectors):
        return np.zeros(len(vectors), dtype=np.int64)
    model = faiss.Kmeans(
        vectors.shape[1], k, niter=_ITERATIONS, seed=seed % 2**31, gpu=faiss.get_num_gpus() > 0,
        init_method=faiss.ClusteringInitMethod_AFK_MC2,  # k-means++ by sampling; random starts split clusters
        nredo=starts, min_points_per_centroid=1, max_points_per_centroid=_POINTS_PER_CENTROID)
    with _faiss_threads(threads):
        model.train(vectors)
        return model.index.search(vectors, 1)[1][:, 0]


def _hierarchical(vectors: np.ndarray, k: int, seed: int, threads: int, advance: Callable[[int], object]):
    """Divide the points into branches and cluster each; the clusters per branch depend on its size. (n,)"""
    branch = flat_kmeans(vectors, min(_MAX_FLAT, math.ceil(k / _CLUSTERS_PER_BRANCH)), seed, threads)
    sizes = np.bincount(branch)
    shares = quotas(dict(enumerate(sizes.tolist())), k)
    first = dict(zip(shares, np.cumsum([0, *shares.values()]).tolist(), strict=False))
    members = np.split(np.argsort(branch, kind="stable"), np.cumsum(sizes)[:-1])
    labels = np.empty(len(vectors), dtype=np.int64)

    def divide(number: int) -> int:
        rows, inner = members[number], seed + 1 + number
        if shares[number] <= _MAX_FLAT:
            clusters = flat_kmeans(vectors[rows], shares[number], inner)
        else:
            clusters = _hierarchical(vectors[rows], shares[number], inner, 1, lambda points: None)
        labels[rows] = first[number] + clusters
        return len(rows)

    with ThreadPoolExecutor(threads) as pool:  # faiss releases the GIL
        for points in pool.map(divide, shares):
            advance(points)
    return labels


def _refine(vectors: np.ndarray, labels: np.ndarray, k: int) -> np.ndarray:
    """Reassign points over all clusters for some rounds. A centroid without points does not move."""
    import faiss

    means = np.zeros((k, vectors.shape[1]), dtype=np.float32)
    for _ in range(_ROUNDS):
        sizes = np.bincount(labels, minlength=k)
        sums = np.stack([np.bincount(labels, column, k) for column in vectors.T], axis=1)  # (k, d)
        means[sizes > 0] = sums[sizes > 0] / sizes[sizes > 0, None]
        index = faiss.index_factory(vectors.shape[1], f"IVF{math.ceil(math.sqrt(k))},Flat")
        index.cp.min_points_per_centroid, index.nprobe = 1, _PROBES
        with _faiss_threads(_threads(vectors, index.nlist)):
            index.train(means)
            index.add(means)
            labels = np.concatenate([index.search(vectors[start:start + _BLOCK], 1)[1][:, 0]
                                     for start in range(0, len(vectors), _BLOCK)])
    return labels


def _threads(vectors: np.ndarray, k: int) -> int:
    """Number of threads for an amount of work; one if faiss uses a GPU."""
    import faiss

    shared = vectors.size * k > _MIN_THREADED_WORK and not faiss.get_num_gpus()
    return faiss.omp_get_max_threads() if shared else 1


@contextmanager
def _faiss_threads(threads: int) -> Iterator[None]:
    """Set the number of faiss threads for calls from this thread."""
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
