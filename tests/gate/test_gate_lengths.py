"""Lengths of the texts of the same entities on two dates."""

import numpy as np
import pyarrow as pa
import pytest

from dare_job.publish.gate import lengths


def sample(tokens: dict[str, int]) -> pa.Table:
    drawn = lengths.Sample(len(tokens))
    for name, count in tokens.items():
        drawn.add(pa.array([name]), np.array([count]), pa.array([f"text of {name}"]))
    return drawn.table()


def before(*batches: dict[str, int | None]):
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"entity_id": pa.array(batch, pa.string()),
                                          "tokens": pa.array(batch.values(), pa.int32())})


def test_only_entities_with_text_on_both_dates_are_compared():
    new = sample({"a": 10, "b": 20, "new": 5, "empty": 0, "failed": 7})
    pairs = lengths.pair(new, before({"b": 40, "gone": 3}, {"empty": 4, "failed": None, "a": 10}))
    assert pairs.ids.to_pylist() == ["a", "b"] and pairs.texts.to_pylist() == ["text of a", "text of b"]
    assert (pairs.new.tolist(), pairs.old.tolist()) == ([10, 20], [10, 40])
    assert pairs.ratio.tolist() == [1.0, 0.5] and pairs.median_ratio() == 0.75


@pytest.mark.parametrize("none", [sample({}), sample({"a": 3})])
def test_nothing_in_common_is_no_pair(none):
    assert len(lengths.pair(none, before({"b": 3})).new) == 0


def test_outside_counts_longer_and_shorter_alike():
    pairs = lengths.Pairs(None, None, np.array([130, 131, 100, 99]), np.array([100, 100, 130, 130]))
    assert pairs.outside(1.3).tolist() == [False, True, False, True]


@pytest.mark.parametrize(("new", "old", "distance"), [
    ([1, 2, 3, 4], [4, 3, 2, 1], 0.0), ([1, 2, 3, 4], [5, 6, 7, 8], 1.0), ([1, 1, 9, 9], [5, 5, 5, 5], 0.5),
    ([1, 2, 3, 4], [2, 3, 4, 5], 0.25)])
def test_the_distance_of_two_sets_of_lengths(new, old, distance):
    assert lengths.Pairs(None, None, np.array(new), np.array(old)).distance() == distance


def test_the_distance_is_that_of_scipy():
    from scipy.stats import ks_2samp

    random = np.random.default_rng(1)
    new, old = random.integers(1, 60, 500), random.integers(1, 50, 500)
    assert lengths.Pairs(None, None, new, old).distance() == pytest.approx(ks_2samp(new, old).statistic)


def test_a_large_table_is_sampled_alike_each_time(monkeypatch):
    monkeypatch.setattr(lengths, "SAMPLE", 100)

    def drawn():
        few = lengths.Sample(10_000)
        for begin in range(0, 10_000, 1000):
            ids = pa.array([f"u{n}" for n in range(begin, begin + 1000)])
            few.add(ids, np.full(1000, 5), ids)
        return few.table()["id"].to_pylist()

    assert 50 < len(drawn()) < 150 and drawn() == drawn()
    assert max(int(name[1:]) for name in drawn()) > 9000
