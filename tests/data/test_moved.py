"""How far histories move, against the definition row by row."""

import numpy as np
import pyarrow as pa
import pytest

from dare_job.data.moved import ItemVectors

EVENT = pa.struct([("item_id", pa.string()), ("rating", pa.float64())])


def histories(rows):
    rows = [row if row is None else [{"item_id": item} for item in row] for row in rows]
    return pa.array(rows, pa.list_(EVENT))


def test_each_place_of_a_history_has_its_distance_to_the_end():
    rng = np.random.default_rng(0)
    names, vectors = [f"i{n}" for n in range(20)], rng.normal(size=(20, 8))
    unit = {name: vector / np.linalg.norm(vector) for name, vector in zip(names, vectors, strict=True)}
    unit |= {"unknown": np.zeros(8)}
    rows = [list(rng.choice([*names, "unknown"], size)) for size in rng.integers(1, 12, 30)]
    rows += [None, [], ["i3"]]
    found = ItemVectors(pa.array(names), vectors).moved(histories(rows)).to_pylist()
    assert [len(each) for each in found] == [len(row or ()) for row in rows]
    for row, moved in zip(rows, found, strict=True):
        for place, value in enumerate(moved):
            then, now = (np.mean([unit[item] for item in row[:end]], axis=0) for end in (place + 1, len(row)))
            norms = np.linalg.norm(then) * np.linalg.norm(now)
            expected = 0.0 if not now.any() else 1 - (then @ now / norms if norms else 0.0)
            assert value == pytest.approx(np.clip(expected, 0, 1), abs=1e-6)


def test_a_slice_of_a_batch_and_items_without_vectors():
    known = ItemVectors(pa.array(["a", "b"]), np.array([[1.0, 0.0], [0.0, 2.0]]))
    rows = histories([["a"], ["a", "b"], ["x", "y"], ["b"]])
    assert known.moved(rows.slice(1, 2)).to_pylist() == [
        [pytest.approx(1 - 0.5 ** 0.5), pytest.approx(0, abs=1e-6)], [0.0, 0.0]]
    assert known.moved(rows.slice(4)).to_pylist() == []
    nothing = ItemVectors(pa.array([], pa.string()), np.zeros((0, 1)))
    assert nothing.moved(rows).to_pylist() == [[0.0], [0.0, 0.0], [0.0, 0.0], [0.0]]
