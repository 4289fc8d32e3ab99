"""The statistics of one pass over a snapshot equal those computed from all of its rows at once."""

from collections import Counter

import published
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from dare_job.publish.gate.failures import ErrorReasons
from dare_job.publish.report import collect, page
from dare_job.schemas import KNOWLEDGE
from dare_job.tables import published as tables_published


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = published.rich(tmp_path_factory.mktemp("collect") / "out")
    return out / "knowledge" / "entity=user" / f"dt={published.DAY}"


@pytest.fixture(scope="module")
def rows(folder):
    return ds.dataset(folder).to_table().to_pylist()


@pytest.fixture(scope="module", params=[1 << 16, 7], ids=["one batch a file", "many batches"])
def found(folder, request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect, "_BATCH", request.param)
        yield collect.collect(folder, "user", published.DAY)


def generated(rows):
    return [row for row in rows if row["generated_dt"] == published.DAY]


def test_counts_of_rows_dates_and_ends(found, rows):
    assert (found.rows, found.fresh) == (len(rows), len(generated(rows)))
    assert found.written == Counter(row["generated_dt"] for row in rows)
    assert found.finished == Counter(row["finish_reason"] for row in generated(rows))


def test_accepted_lengths_and_times_by_kind_of_pool(found, rows):
    assert {kind.name for kind in found.kinds()} == set(published.KINDS)
    for kind in found.kinds():
        mine = [row for row in generated(rows) if row["pool_kind"] == kind.name]
        lengths = Counter(emitted - 1 for row in mine for emitted in row["step_tokens"][1:])
        assert kind.texts == len(mine)
        assert {n: count for n, count in enumerate(kind.accepted.counts.tolist()) if count} == lengths
        assert kind.accepted.mean() == pytest.approx(
            sum(row["accepted_tokens"] for row in mine) / sum(row["target_steps"] for row in mine))
        assert kind.latency.total == len(mine)


def test_sums_by_pool(found, rows):
    names = ("tokens", "target_steps", "accepted_tokens")
    expected = {row["pool"]: Counter() for row in generated(rows)}
    for row in generated(rows):
        expected[row["pool"]].update({name: row[name] for name in names} | {"texts": 1})
    names = ("texts", *names)
    assert {pool["pool"]: {name: pool[name] for name in names} for pool in found.pools()} == expected
    assert sum(pool["decode_ms"] for pool in found.pools()) == pytest.approx(
        sum(row["decode_ms"] for row in generated(rows)), rel=1e-5)


def test_slowest_and_worst_rows(found, rows):
    slow = sorted((row["decode_ms"] for row in generated(rows)), reverse=True)
    assert [row["decode_ms"] for row in found.slowest.rows()] == slow[:collect.LISTED]
    rates = sorted(row["accepted_tokens"] / row["target_steps"] for row in generated(rows)
                   if row["target_steps"] >= collect.MIN_STEPS)
    worst = found.worst.rows()
    assert [row["accepted_tokens"] / row["target_steps"] for row in worst] == rates[:collect.LISTED]
    assert worst[0]["entity_id"] == published.HOSTILE_ID


def test_errors_that_differ_in_numbers_alone_are_one(found):
    top = found.reasons.most_common(10)
    assert top[0]["rows"] == 7
    assert top[0]["reason"] == "prompt of … tokens, more than the model's …"
    assert len(top[0]["ids"]) == 3 and top[0]["example"].startswith("prompt of 20")
    assert found.reasons.rows == sum(reason["rows"] for reason in top) == 9 and len(found.reasons) == 3


def test_a_listed_row_is_found_again_at_its_place(found):
    for top in (found.slowest, found.sampled):
        whole = found.texts(top.rows())
        assert [row["entity_id"] for row in whole] == [row["entity_id"] for row in top.rows()]
        assert all(row["knowledge"] and row["token_ids"] for row in whole)


def test_distinct_errors_are_bounded(monkeypatch):
    monkeypatch.setattr("dare_job.publish.gate.failures._MAX_REASONS", 2)
    reasons = ErrorReasons()
    names = pa.array(["a", "b", "c", "d"])
    reasons.add(names, names)
    rows = {row["reason"]: row["rows"] for row in reasons.most_common(9)}
    assert rows == {"a": 1, "b": 1, "other errors": 2}


def test_columns_that_an_older_snapshot_lacks_count_as_missing(tmp_path):
    old = pa.Table.from_pylist([published.text("a"), published.text("b")], schema=KNOWLEDGE)
    kept = ["entity_id", "knowledge", "tokens", "generated_dt", "run_id"]
    pq.write_table(old.select(kept), tmp_path / "part-0.parquet")
    found = collect.collect(tmp_path, "user", published.DAY)
    assert (found.rows, found.fresh) == (2, 2)
    assert found.slowest.rows() == found.worst.rows() == []
    assert {row["entity_id"] for row in found.sampled.rows()} == {"a", "b"}
    assert [(kind.name, kind.texts, kind.accepted.total, kind.latency.total) for kind in found.kinds()] == [
        ("none", 2, 0, 0)]


def test_a_snapshot_without_files_is_empty(tmp_path):
    assert collect.collect(tmp_path, "user", published.DAY).rows == 0
    assert tables_published.dataset(tmp_path).count_rows() == 0


def test_routes_are_counted_by_kind_and_reason(tmp_path):
    rows = [{"entity_id": str(n), "pool": "global", "pool_kind": "global", "reason": f"why {n % 2}"}
            for n in range(5)]
    published.route(tmp_path, "item", rows)
    assert [(row["entity"], row["kind"], row["reason"], row["rows"], row["share"])
            for row in page.route_rows(tmp_path, published.DAY)] == [
        ("item", "global", "why 0", 3, 0.6), ("item", "global", "why 1", 2, 0.4)]
