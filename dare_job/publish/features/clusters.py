"""Residual k-means: maps a vector to a path of codes that can be looked up in an embedding table.

The first codebook clusters the vectors, each further one the residuals after subtracting the nearest
centroid. The cluster id of a level is the id of the level above times the size of the level, plus the code.
The nearest centroid is computed in float64, so that the path of a vector does not depend on the batch.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from dare_job.embed import kmeans
from dare_job.errors import DataError
from dare_job.storage import paths as storage_paths
from dare_job.storage.paths import AnyPath

POINTS_PER_CENTROID = 256  # more vectors hardly improve k-means
_BLOCK = 65_536  # vectors per batch


@dataclass(frozen=True)
class Codebooks:
    """Centroids by level.

    Attributes
    ----------
    sizes
        Requested size of each level.
    levels : float32 (k, d)
        Centroids of each level. k is the level's size, or less if there were fewer texts.
    """

    sizes: tuple[int, ...]
    levels: tuple[np.ndarray, ...]

    @property
    def sha256(self) -> str:
        """SHA-256 of the sizes and the centroids (float32), as in the manifest."""
        digest = hashlib.sha256(repr(self.sizes).encode())
        for level in self.levels:
            digest.update(repr(level.shape).encode() + np.ascontiguousarray(level, "<f4").tobytes())
        return digest.hexdigest()

    def paths(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cluster ids (n, levels) int32 of vectors (n, d), and squared residual norms (n,) float64."""
        ids = np.zeros((len(vectors), len(self.levels)), np.int32)
        errors = np.zeros(len(vectors))
        for start in range(0, len(vectors), _BLOCK):
            block = slice(start, start + _BLOCK)
            residual, path = vectors[block].astype(np.float64), 0
            for level, (size, centroids) in enumerate(zip(self.sizes, self.levels, strict=True)):
                code = _nearest(residual, centroids)
                path = path * size + code
                ids[block, level] = path
                residual -= centroids[code]
            errors[block] = np.einsum("nd,nd->n", residual, residual)
        return ids, errors


def fit(vectors: np.ndarray, sizes: list[int], seed: int) -> Codebooks:
    """Fit codebooks to vectors (n, d) float32, n > 0. The result is deterministic for a seed.

    If there are fewer vectors than clusters, a level has one centroid per vector.
    """
    levels, residual = [], vectors.astype(np.float32)
    for number, size in enumerate(sizes):
        labels = kmeans.cluster(residual, min(size, len(residual)), seed + number)
        used, labels = np.unique(labels, return_inverse=True)
        sums = np.zeros((len(used), residual.shape[1]))
        np.add.at(sums, labels, residual)
        centroids = (sums / np.bincount(labels)[:, None]).astype(np.float32)
        levels.append(centroids)
        residual = residual - centroids[_nearest(residual, centroids)]
    return Codebooks(tuple(sizes), tuple(levels))


def _nearest(vectors: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Row number of the nearest centroid, (n,) int64."""
    table = centroids.astype(np.float64)
    return np.argmin(np.einsum("kd,kd->k", table, table) - 2 * (vectors @ table.T), axis=1)


def name(codebooks: Codebooks) -> str:
    """File name of codebooks; readers of the table ignore names that start with ``_``."""
    return f"_codebook-{codebooks.sha256[:12]}.safetensors"


def write(path: AnyPath, codebooks: Codebooks) -> None:
    """Write centroids as tensors ``level_0``, ``level_1``, ... and ``sizes``."""
    from safetensors.numpy import save

    tensors = {f"level_{number}": level for number, level in enumerate(codebooks.levels)}
    with storage_paths.atomic_writer(path, f".{path.name}.partial") as file:
        file.write(save(tensors | {"sizes": np.array(codebooks.sizes, np.int64)}))


def read(path: AnyPath, sha256: str) -> Codebooks:
    """Read codebooks.

    Raises
    ------
    DataError
        The file is missing or damaged, or differs from the manifest.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    fix = "restore it from a copy, or fit new clusters with encode.refit=true"
    try:
        tensors = load(path.read_bytes())
        sizes = tuple(tensors["sizes"].tolist())
        codebooks = Codebooks(sizes, tuple(tensors[f"level_{number}"] for number in range(len(sizes))))
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DataError(f"{path} cannot be read as codebooks ({error}): {fix}") from None
    if codebooks.sha256 != sha256:
        raise DataError(f"{path} is damaged (SHA-256 differs from the manifest's): {fix}")
    return codebooks
