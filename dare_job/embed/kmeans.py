"""k-means through faiss, on the GPU where faiss has one.

Flat k-means compares every point with every centroid. Groups keep their size, so k grows with the number
of points, and the work would grow with its square. Above ``_FLAT`` clusters the points are first divided into
the square root of k branches, at most ``_FLAT``, and each branch into its share of k by its size, again in
this way: a point is compared with a bounded number of centroids a level, and there are log k levels.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import pyarrow as pa

from dare_job.embed.medoids import quotas

_ITERATIONS = 25
_POINTS_PER_CENTROID = 1024  # faiss's 256 leaves large data with a higher inertia than scikit-learn's
_SHARED_FROM = 1e10  # n * k * d from which threads are used: on busy cores they cost more than they save
_CHEAP = 2e9  # n * k * d up to which the best of three starts is taken
_FLAT = 512  # clusters up to which there are no branches


def clusters(count: int, target_size: int, wanted: int | Literal["auto"] = "auto") -> int:
    """k for ``count`` points: the wanted number, or groups of about ``target_size``; at most count."""
    k = math.ceil(count / target_size) if wanted == "auto" else wanted
    return max(1, min(k, count))


def assign(vectors: np.ndarray, k: int, seed: int,
           advance: Callable[[int], object] = lambda points: None) -> np.ndarray:
    """Cluster (n,) int64 of each row of ``vectors`` (n, d) float32. The same seed gives the same.

    advance    called with the number of points that are done, where there are branches
    Clusters of a branch have numbers that follow each other.
    """
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if k > _FLAT:
        return _branched(vectors, k, seed, advance)
    shared = vectors.size * k > _SHARED_FROM
    return flat(vectors, k, seed, shared, starts=3 if vectors.size * k <= _CHEAP else 1)


def names(labels: np.ndarray) -> pa.Array:
    """Group names (n,) of clusters, for example 7 -> "0007"."""
    known = [f"{label:04d}" for label in range(1 + labels.max(initial=-1))]
    return pa.array(known, pa.string()).take(pa.array(labels))


def _branched(vectors: np.ndarray, k: int, seed: int, advance: Callable[[int], object]) -> np.ndarray:
    """k clusters, of which each branch has its share by its size."""
    import faiss

    branch = flat(vectors, min(_FLAT, math.ceil(math.sqrt(k))), seed)
    sizes = np.bincount(branch)
    shares = quotas(dict(enumerate(sizes.tolist())), k)
    first = dict(zip(shares, np.cumsum([0, *shares.values()]).tolist(), strict=False))
    members = np.split(np.argsort(branch, kind="stable"), np.cumsum(sizes)[:-1])
    labels = np.empty(len(vectors), dtype=np.int64)

    def divide(number: int) -> int:
        rows, inner = members[number], seed + 1 + number
        if shares[number] <= _FLAT:
            found = flat(vectors[rows], shares[number], inner)
        else:
            found = _branched(vectors[rows], shares[number], inner, lambda points: None)
        labels[rows] = first[number] + found
        return len(rows)

    workers = 1 if faiss.get_num_gpus() else faiss.omp_get_max_threads()
    with ThreadPoolExecutor(workers) as threads:  # faiss lets go of the interpreter
        for points in threads.map(divide, shares):
            advance(points)
    return labels


def flat(vectors: np.ndarray, k: int, seed: int, shared: bool = False, starts: int = 1) -> np.ndarray:
    """k-means of all points at once; ``shared``: over this thread's cores; the best of some ``starts``."""
    import faiss

    if k == 1 or not len(vectors):
        return np.zeros(len(vectors), dtype=np.int64)
    model = faiss.Kmeans(
        vectors.shape[1], k, niter=_ITERATIONS, seed=seed % 2**31, gpu=faiss.get_num_gpus() > 0,
        init_method=faiss.ClusteringInitMethod_AFK_MC2,  # k-means++ by sampling; a random start splits clouds
        nredo=starts, min_points_per_centroid=1, max_points_per_centroid=_POINTS_PER_CENTROID)
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads if shared else 1)
    try:
        model.train(vectors)
        return model.index.search(vectors, 1)[1][:, 0]
    finally:
        faiss.omp_set_num_threads(threads)
