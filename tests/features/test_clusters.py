"""Cluster ids are a hierarchy, the same for the same vector, and say when they no longer fit."""

import numpy as np
import pytest

from dare_job.errors import DataError
from dare_job.publish.features import clusters


def clouds(count: int, seed: int = 0, shift: float = 0.0) -> np.ndarray:
    """Points around twelve centres that each have four more around them."""
    random = np.random.default_rng(7)
    centres = random.normal(size=(12, 1, 8)) * 5 + random.normal(size=(12, 4, 8))
    chosen = np.random.default_rng(seed).integers(0, 48, count)
    noise = np.random.default_rng(seed + 1).normal(size=(count, 8)) * 0.1
    return (centres.reshape(48, 8)[chosen] + noise + shift).astype(np.float32)


@pytest.fixture(scope="module")
def books():
    return clusters.fit(clouds(3000), [12, 16], seed=0)


def test_an_id_holds_the_id_of_the_level_above(books):
    ids, _ = books.paths(clouds(500, seed=5))
    assert ids.dtype == np.int32 and ids.shape == (500, 2)
    assert (ids[:, 1] // 16 == ids[:, 0]).all()
    assert ids.min() >= 0 and ids[:, 0].max() < 12 and ids[:, 1].max() < 12 * 16
    assert len(np.unique(ids[:, 0])) > 6


def test_the_error_is_the_squared_distance_from_the_sum_of_the_centroids(books):
    vectors = clouds(50, seed=5)
    ids, left = books.paths(vectors)
    near = books.levels[0][ids[:, 0]] + books.levels[1][ids[:, 1] % 16]
    np.testing.assert_allclose(left, ((vectors - near) ** 2).sum(1), rtol=1e-4, atol=1e-6)
    alone = np.concatenate([books.paths(vector[None])[0] for vector in vectors])
    assert (alone == ids).all()  # the path does not depend on the batch
    only_first = ((vectors - books.levels[0][ids[:, 0]]) ** 2).sum(1)
    assert left.mean() < 0.5 * only_first.mean()


def test_the_same_vectors_and_seed_give_the_same_codebooks(books):
    assert clusters.fit(clouds(3000), [12, 16], seed=0).sha256 == books.sha256
    assert clusters.fit(clouds(3000), [12, 16], seed=1).sha256 != books.sha256


def test_the_error_rises_where_vectors_move_away(books):
    at_first = books.paths(clouds(3000))[1].mean()
    assert books.paths(clouds(3000, seed=9))[1].mean() == pytest.approx(at_first, rel=0.15)
    assert books.paths(clouds(3000, seed=9, shift=1.0))[1].mean() > 2 * at_first


def test_fewer_vectors_than_clusters_are_clusters_of_their_own():
    vectors = clouds(5)
    found = clusters.fit(vectors, [8, 8], seed=0)
    ids, left = found.paths(vectors)
    assert [len(level) for level in found.levels] == [5, 1]  # nothing is left for a second level
    assert len(np.unique(ids[:, 0])) == 5 and left.max() < 1e-9
    assert (ids[:, 1] // 8 == ids[:, 0]).all()
    assert clusters.fit(np.ones((9, 4), np.float32), [4], seed=0).paths(np.ones((1, 4)))[1][0] == 0


def test_codebooks_come_back_from_their_file_and_damage_is_reported(books, tmp_path):
    path = tmp_path / clusters.name(books)
    clusters.write(path, books)
    found = clusters.read(path, books.sha256)
    assert found.sha256 == books.sha256 and found.sizes == (12, 16)
    with pytest.raises(DataError, match="SHA-256 differs.*encode.refit=true"):
        clusters.read(path, "0" * 64)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match="cannot be read as codebooks.*encode.refit=true"):
        clusters.read(path, books.sha256)
    with pytest.raises(DataError, match="none.safetensors cannot be read"):
        clusters.read(tmp_path / "none.safetensors", books.sha256)
