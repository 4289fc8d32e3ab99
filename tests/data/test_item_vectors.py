"""How far histories move, against the definition row by row."""

import numpy as np
import pyarrow as pa
import pytest

from dare_job.data.item_vectors import ItemVectors
from dare_job.refresh.value import RECENCY

EVENT = pa.struct([("item_id", pa.string()), ("rating", pa.float64())])


def histories(rows):
    rows = [row if row is None else [{"item_id": item} for item in row] for row in rows]
    return pa.array(rows, pa.list_(EVENT))


@pytest.mark.parametrize("shown", [12, 4])
def test_the_distance_to_what_was_shown_before_the_newest_entries(shown):
    rng = np.random.default_rng(0)
    names, vectors = [f"i{n}" for n in range(20)], rng.normal(size=(20, 8))
    unit = {name: vector / np.linalg.norm(vector) for name, vector in zip(names, vectors, strict=True)}
    unit |= {"unknown": np.zeros(8)}
    rows = [list(rng.choice([*names, "unknown"], size)) for size in rng.integers(1, 14, 30)]
    rows += [None, [], ["i3"]]
    found = ItemVectors(pa.array(names), vectors).moved(histories(rows), shown).to_pylist()
    for row, moved in zip(rows, found, strict=True):
        row = row or []
        assert len(moved) == min(len(row), shown) + 1
        for new, value in enumerate(moved):
            now, then = (sum((RECENCY**place * unit[item] for place, item in enumerate(part[-shown:][::-1])),
                             np.zeros(8)) for part in (row, row[:len(row) - new]))
            norms = np.linalg.norm(then) * np.linalg.norm(now)
            expected = 0.0 if not now.any() else 1 - (then @ now / norms if norms else 0.0)
            assert value == pytest.approx(np.clip(expected, 0, 1), abs=1e-6)


def test_a_slice_of_a_batch_and_items_without_vectors():
    known = ItemVectors(pa.array(["a", "b"]), np.array([[1.0, 0.0], [0.0, 2.0]]))
    rows = histories([["a"], ["a", "b"], ["x", "y"], ["b"]])
    assert known.moved(rows.slice(1, 2), 9).to_pylist() == [
        [pytest.approx(0, abs=1e-6), pytest.approx(1 - 0.9 / 1.81 ** 0.5), 1.0], [0.0, 0.0, 0.0]]
    assert known.moved(rows.slice(4), 9).to_pylist() == []
    nothing = ItemVectors(pa.array([], pa.string()), np.zeros((0, 1)))
    assert nothing.moved(rows, 9).to_pylist() == [[0.0] * 2, [0.0] * 3, [0.0] * 3, [0.0] * 2]
