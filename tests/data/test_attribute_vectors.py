"""Item vectors by attributes: which values count, and what that says about histories."""

import numpy as np
import pyarrow as pa
import pytest

from dare_job.data.item_vectors import ItemVectors
from dare_job.embed import attributes
from dare_job.embed.attributes import DIM, attribute_vectors
from dare_job.refresh.value import RECENCY
from dare_job.schemas import ATTRIBUTES

HISTORY = pa.list_(pa.struct([("item_id", pa.string())]))


def maps(rows):
    return pa.array([None if row is None else list(row.items()) for row in rows], ATTRIBUTES)


def cosines(vectors):
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
    return unit @ unit.T


def test_kinds_that_change_move_a_history_and_other_items_of_a_kind_do_not():
    genres = {"a": "crime", "b": "crime", "c": "love", "d": "love", "e": "war", "f": "war"}
    vectors = attribute_vectors([maps([{"genre": genre} for genre in genres.values()])])
    rows = [[{"item_id": item} for item in history] for history in ("ab", "ac", "aabc", "abef")]
    moved = ItemVectors(pa.array(list(genres)), vectors).moved(pa.array(rows, HISTORY), 2).to_pylist()
    older, newer = (1 - weight / (1 + RECENCY**2) ** 0.5 for weight in (RECENCY, 1))  # what is still there
    assert moved == [pytest.approx(expected, abs=1e-6) for expected in (
        [0, 0, 1], [0, older, 1], [0, older, older], [0, newer, 1])]


def test_lists_are_several_values_and_the_name_of_an_attribute_belongs_to_them():
    found = cosines(attribute_vectors([maps([
        {"genre": "crime"}, {"genre": "crime, love"}, {"genre": "love"}, {"theme": "love"}, {"theme": "love"},
        {"genre": "war"}, {"genre": "war", "theme": "love"}])]))
    half = 0.5 ** 0.5
    assert found[0, 1:4].tolist() == pytest.approx([half, 0, 0])
    assert found[1, 2:4].tolist() == pytest.approx([half, 0]) and found[3, 4] == pytest.approx(1)
    assert found[6, [2, 3, 5]].tolist() == pytest.approx([0, half, half])


def test_values_that_make_no_kinds_do_not_count():
    """Of a single item, of all items, and traffic; descriptions and missing values."""
    long = "a long story, " * 20
    rows = [{"id": f"i{number}", "type": "film", "traffic": "7" if number < 2 else "8", "plot": long,
             "named": "twice, twice" if number == 2 else None} for number in range(4)]
    assert not attribute_vectors([maps(rows)]).any()
    genres = ["crime", "crime", "love", "love"]
    counted = [row | {"genre": genre} for row, genre in zip(rows, genres, strict=True)]
    assert cosines(attribute_vectors([maps(counted)])) == pytest.approx(np.kron(np.eye(2), np.ones((2, 2))))


def test_where_few_items_have_a_kind_there_are_no_vectors():
    """Else nothing would be known of most histories, which vectors by interactions know."""
    few = [{"genre": "crime"}, {"genre": "crime"}]
    assert attribute_vectors([maps([*few, {}, None])]).any(axis=1).tolist() == [True, True, False, False]
    assert not attribute_vectors([maps([*few, {}, None, {"genre": "war"}])]).any()


@pytest.mark.parametrize("rows", [[], [None], [None, {}], [{"genre": "crime"}]])
def test_without_kinds_there_are_no_vectors(rows):
    vectors = attribute_vectors([maps(rows)])
    assert len(vectors) == len(rows) and not vectors.any()
    assert not attribute_vectors([]).size


def many(values):
    """Items with up to three of ``values`` values, drawn so that neighbours share some."""
    rng = np.random.default_rng(0)
    return [{f"name{place}": f"v{number}" for place, number in enumerate(
        rng.integers(values, size=rng.integers(1, 4)).tolist())} for _ in range(40 * values)]


def test_vectors_depend_on_an_items_values_and_not_on_order_or_chunks(monkeypatch):
    rows = many(30)  # 90 values
    vectors = attribute_vectors([maps(rows)])
    assert vectors.shape == (len(rows), DIM)
    order = np.random.default_rng(1).permutation(len(rows))
    monkeypatch.setattr(attributes, "_PAIRS", 7)
    other = maps([rows[place] for place in order])
    chunks = [other[:5], other[5:5], other[5:]]
    assert np.array_equal(attribute_vectors(chunks), vectors[order])
    single = next(place for place, row in enumerate(rows) if row == {"name0": "v3"})
    assert np.packbits(vectors[single] > 0).tobytes().hex() == "90a6e56ea634e94f"


def test_random_signs_keep_distances():
    """Of 70 kinds, between means of 20 items of which the newest 10 changed, as of orthogonal vectors."""
    kind = np.arange(700) % 70
    signs = attribute_vectors([maps([{"genre": f"v{number}"} for number in kind.tolist()])])
    chosen = np.random.default_rng(2).integers(700, size=(300, 30)).astype(str).tolist()
    histories = pa.array([[{"item_id": item} for item in row] for row in chosen], HISTORY)
    ids = pa.array(np.arange(700).astype(str))
    found, exact = (np.array(ItemVectors(ids, vectors).moved(histories, 20).to_pylist())[:, 10]
                    for vectors in (signs, np.eye(70)[kind]))
    ratio = found / exact
    assert signs.shape[1] == DIM and 0.9 < ratio.mean() < 1.1 and ratio.std() < 0.3
