"""Clusters in branches against flat k-means: sum of squared distances, sizes, seconds.

    python -m dare_job.bench.scale.kmeans --points 500000 --dim 64 --clusters 1000
"""

import argparse
import json
import time

import numpy as np

from dare_job.embed import kmeans


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m dare_job.bench.scale.kmeans")
    parser.add_argument("--points", type=int, default=500_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--clusters", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    print(json.dumps(compare(options.points, options.dim, options.clusters, options.seed)))


def compare(points: int, dim: int, k: int, seed: int) -> dict:
    """Both ways, on points around centres (a thousand each) and on noise without any."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((max(1, points // 1000), dim), dtype=np.float32)
    noise = random.standard_normal((points, dim), dtype=np.float32)
    clouds = centres[random.integers(0, len(centres), points)] + 0.5 * noise
    found: dict = {"points": points, "dim": dim, "clusters": k}
    for name, vectors in (("clouds", clouds), ("noise", noise)):
        for way in ("branches", "flat"):
            begun = time.perf_counter()
            labels = (kmeans.assign if way == "branches" else kmeans.flat)(vectors, k, seed)
            seconds = time.perf_counter() - begun
            sizes = np.bincount(labels, minlength=k)
            found[f"{name}, {way}"] = {
                "seconds": round(seconds, 1), "inertia": round(inertia(vectors, labels, k), 1),
                "smallest": int(sizes.min()), "largest": int(sizes.max()),
                "std of sizes": round(float(sizes.std()), 1)}
        both = [found[f"{name}, {way}"]["inertia"] for way in ("branches", "flat")]
        found[f"{name}: branches over flat"] = round(both[0] / both[1], 4)
    return found


def inertia(vectors: np.ndarray, labels: np.ndarray, k: int) -> float:
    """Sum of squared distances to the means of the clusters."""
    order = np.argsort(labels, kind="stable")
    border = np.searchsorted(labels[order], np.arange(k + 1))
    parts = (vectors[order[start:end]] for start, end in zip(border, border[1:], strict=False) if end > start)
    return sum(float(((part - part.mean(axis=0)) ** 2).sum(dtype=np.float64)) for part in parts)


if __name__ == "__main__":
    main()
