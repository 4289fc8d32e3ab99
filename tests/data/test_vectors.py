"""k-means and ready-made vectors."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dare_job.embed import kmeans, vectors
from dare_job.errors import DataError
from dare_job.schemas import VECTORS


def test_kmeans_finds_separate_clouds_and_is_seeded():
    random = np.random.default_rng(0)
    centres = random.normal(0, 10, (5, 8))
    points = (centres.repeat(40, axis=0) + random.normal(0, 0.1, (200, 8))).astype(np.float32)
    labels = kmeans.cluster(points, 5, seed=1)
    assert [len(set(labels[start:start + 40])) for start in range(0, 200, 40)] == [1] * 5
    assert len(set(labels)) == 5
    assert np.array_equal(labels, kmeans.cluster(points, 5, seed=1))


def test_many_clusters_come_in_branches_of_their_own_size(monkeypatch):
    random = np.random.default_rng(0)
    centres = random.normal(0, 1, (50, 8))
    points = (centres[random.integers(0, 50, 20_000)] + random.normal(0, 0.4, (20_000, 8))).astype(np.float32)
    whole = _inertia(points, kmeans.flat_kmeans(points, 400, seed=1))
    for flat, leaf in ((256, 64), (8, 4)):  # branches once, and branches of branches
        monkeypatch.setattr(kmeans, "_MAX_FLAT", flat)
        monkeypatch.setattr(kmeans, "_CLUSTERS_PER_BRANCH", leaf)
        done = []
        labels = kmeans.cluster(points, 400, 1, done.append)
        assert sum(done) == len(points) and np.array_equal(labels, kmeans.cluster(points, 400, 1))
        sizes = np.bincount(labels, minlength=400)
        assert len(sizes) == 400 and (sizes > 0).mean() > 0.98 and sizes.max() < 5 * 50
        assert _inertia(points, labels) < 1.02 * whole


def _inertia(points, labels):
    parts = (points[labels == label] for label in np.unique(labels))
    return sum(((part - part.mean(axis=0)) ** 2).sum() for part in parts)


@pytest.mark.parametrize(("count", "target", "wanted", "k"), [
    (1001, 500, "auto", 3), (10, 500, "auto", 1), (10, 500, 4, 4), (3, 2, 8, 3), (0, 500, "auto", 1)])
def test_number_of_clusters(count, target, wanted, k):
    assert kmeans.cluster_count(count, target, wanted) == k


def test_names_sort_as_numbers():
    assert kmeans.cluster_names(np.array([0, 7, 12345])).to_pylist() == ["0000", "0007", "12345"]


def test_vectors_survive_a_round_trip(tmp_path):
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    vectors.write_vectors(tmp_path / "v" / "part-0.parquet", ["d", "c", "b", "a"], table)
    assert pq.read_schema(tmp_path / "v" / "part-0.parquet").equals(VECTORS)
    ids, read = vectors.read_vectors(tmp_path / "v")
    assert ids.to_pylist() == ["d", "c", "b", "a"] and np.array_equal(read, table)


@pytest.mark.parametrize(("rows", "message"), [
    ([("a", [1.0, 2.0]), ("b", [1.0])],
     r"row 2 \(entity_id 'b'\) has another dimension than the first row's 2"),
    ([("a", []), ("b", [1.0])], r"row 1 \(entity_id 'a'\) has an empty vector"),
    ([("a", [1.0]), ("b", None)], r"row 2 \(entity_id 'b'\) has no vector"),
    ([(None, [1.0])], "row 1 .* has no entity_id"),
    ([("a", [1.0, float("nan")])], "missing or non-finite value"),
    ([("a", [1.0, None])], "missing or non-finite value"),
    ([("a", [1.0]), ("a", [2.0])], "entity_id 'a' occurs more than once"),
])
def test_bad_vectors_name_their_row(tmp_path, rows, message):
    ids = pa.array([row[0] for row in rows], pa.string())
    lists = pa.array([row[1] for row in rows], pa.list_(pa.float64()))
    pq.write_table(pa.table({"entity_id": ids, "vector": lists}), tmp_path / "v.parquet")
    with pytest.raises(DataError, match=message):
        vectors.read_vectors(tmp_path / "v.parquet")


def test_rows_are_counted_over_the_files_of_a_folder(tmp_path):
    for part, ids in enumerate((["a", "b"], ["c", "d"])):
        vectors.write_vectors(tmp_path / "v" / f"part-{part}.parquet", ids, np.full((2, 3), part, np.float32))
    ids, found = vectors.read_vectors(tmp_path / "v")
    assert ids.to_pylist() == ["a", "b", "c", "d"] and found[:, 0].tolist() == [0, 0, 1, 1]
    table = np.array([[0, 0, 0], [0, np.inf, 0]])
    vectors.write_vectors(tmp_path / "v" / "part-2.parquet", ["e", "f"], table)
    with pytest.raises(DataError, match=r"row 6 \(entity_id 'f'\) has a missing or non-finite value"):
        vectors.read_vectors(tmp_path / "v")


def test_integer_ids_and_fixed_size_lists_are_taken(tmp_path):
    lists = pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2))
    pq.write_table(pa.table({"entity_id": [3, 4], "vector": lists}), tmp_path / "v.parquet")
    ids, read = vectors.read_vectors(tmp_path / "v.parquet")
    assert ids.to_pylist() == ["3", "4"] and read.tolist() == [[1, 2], [3, 4]]


def test_missing_files_and_columns_are_named(tmp_path):
    with pytest.raises(DataError, match="no such file of vectors"):
        vectors.read_vectors(tmp_path / "absent.parquet")
    pq.write_table(pa.table({"id": ["a"], "vector": [[1.0]]}), tmp_path / "v.parquet")
    with pytest.raises(DataError, match="must have the columns entity_id and vector|entity_id"):
        vectors.read_vectors(tmp_path / "v.parquet")
    pq.write_table(pa.table({"entity_id": ["a"], "vector": ["text"]}), tmp_path / "v.parquet")
    with pytest.raises(DataError, match="must hold lists of numbers, not string"):
        vectors.read_vectors(tmp_path / "v.parquet")
