"""k-means through faiss, on the GPU where faiss has one."""

import math
from typing import Literal

import numpy as np

_ITERATIONS = 25
_POINTS_PER_CENTROID = 1024  # faiss's 256 leaves large data with a higher inertia than scikit-learn's
_SHARED_FROM = 1e10  # n * k * d from which threads are used: on busy cores they cost more than they save
_CHEAP = 2e9  # n * k * d up to which the best of three starts is taken


def clusters(count: int, target_size: int, wanted: int | Literal["auto"] = "auto") -> int:
    """k for ``count`` points: the wanted number, or groups of about ``target_size``; at most count."""
    k = math.ceil(count / target_size) if wanted == "auto" else wanted
    return max(1, min(k, count))


def assign(vectors: np.ndarray, k: int, seed: int) -> np.ndarray:
    """Cluster (n,) int64 of each row of ``vectors`` (n, d) float32. The same seed gives the same."""
    import faiss

    if k == 1 or not len(vectors):
        return np.zeros(len(vectors), dtype=np.int64)
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    model = faiss.Kmeans(
        vectors.shape[1], k, niter=_ITERATIONS, seed=seed, gpu=faiss.get_num_gpus() > 0,
        init_method=faiss.ClusteringInitMethod_AFK_MC2,  # k-means++ by sampling; a random start splits clouds
        nredo=3 if vectors.size * k <= _CHEAP else 1,
        min_points_per_centroid=1, max_points_per_centroid=_POINTS_PER_CENTROID)
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads if vectors.size * k > _SHARED_FROM else 1)
    try:
        model.train(vectors)
        return model.index.search(vectors, 1)[1][:, 0]
    finally:
        faiss.omp_set_num_threads(threads)


def names(labels: np.ndarray) -> list[str]:
    """Group names of clusters, for example 7 -> "0007"."""
    return [f"{label:04d}" for label in labels.tolist()]
