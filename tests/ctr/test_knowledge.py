"""Reading texts of an OUT: features, texts to be encoded, and what is wrong with either."""

import json
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ctr_tables import kinds, made, write_features, write_texts

from dare_job.data.history import end_of_day
from dare_job.errors import DataError
from dare_job.evaluate.ctr import knowledge
from dare_job.evaluate.ctr.features import Maker
from dare_job.evaluate.ctr.inputs import join, rows_of

DT = "2025-12-31"
USERS, ITEMS = [f"u{u}" for u in range(60)], [f"i{i}" for i in range(40)]


def lengths(texts: list[str]) -> tuple[np.ndarray, Maker]:
    """Stands where an encoder does: two numbers of each text."""
    numbers = [[len(text), text.count("e")] for text in texts]
    return np.array(numbers, np.float32).reshape(-1, 2), Maker("lengths")


def read(out, dt=None, entities=("user", "item"), clusters=False):
    return knowledge.read(out, dt, list(entities), clusters, lengths)


def end(day: str) -> int:
    return end_of_day(date.fromisoformat(day))


def test_features_are_read_with_vectors_and_cluster_ids(tmp_path):
    write_features(tmp_path, "user", DT, USERS, kinds(60), [np.arange(60) // 8, np.arange(60)])
    (table,) = read(tmp_path, entities=["user"])
    assert table.ids == USERS and np.array_equal(table.vectors, kinds(60)) and str(table.encoder) == "test 1"
    assert set(table.usable_from) == {end(DT)}
    (table,) = read(tmp_path, entities=["user"], clusters=True)
    assert table.vectors is None and table.clusters[9].tolist() == [1, 9]


def test_texts_without_features_are_encoded_and_empty_ones_counted(tmp_path):
    write_texts(tmp_path, "item", DT, ["a", "b", "c", "d"], ["tea", None, " \n", "see"])
    (table,) = read(tmp_path)
    assert table.ids == ["a", "d"] and table.vectors.tolist() == [[3, 1], [3, 2]] and table.missing == 2


def test_the_newest_date_is_taken_unless_one_is_named(tmp_path):
    for day in ("2025-12-30", DT):
        for entity in ("user", "item"):
            write_texts(tmp_path, entity, day, ["a"], [day])
    write_texts(tmp_path, "user", "2026-01-01", ["a"], ["half published"])
    assert {table.dt for table in read(tmp_path)} == {DT}
    assert read(tmp_path, "2025-12-30")[0].dt == "2025-12-30"
    with pytest.raises(DataError, match="texts of 2025-11-11 .user 2025-12-30, 2025-12-31, 2026-01-01; item"):
        read(tmp_path, "2025-11-11")


def test_each_text_is_safe_from_the_day_after_it_was_written(tmp_path):
    write_features(tmp_path, "user", DT, ["a", "b"], kinds(2), texts=["x", "y"])
    write_texts(tmp_path, "user", DT, ["a", "b"], ["x", "y"], ["2025-12-01", DT])
    assert read(tmp_path)[0].usable_from.tolist() == [end("2025-12-01"), end(DT)]


def test_days_may_be_dates_and_texts_categories(tmp_path):
    """As pandas and Spark write them where nobody looks."""
    folder = write_texts(tmp_path, "user", DT, ["a", "b"], ["tea", "see"])
    columns = {"entity_id": [1, 2], "knowledge": pa.array(["tea", "see"]).dictionary_encode(),
               "generated_dt": [date(2025, 12, 1), None]}
    pq.write_table(pa.table(columns), folder / "part-0.parquet")
    (table,) = read(tmp_path)
    assert table.ids == ["1", "2"] and table.vectors.tolist() == [[3, 1], [3, 2]]
    assert table.usable_from.tolist() == [end("2025-12-01"), end(DT)]


def test_other_columns_are_nobodys_business(tmp_path):
    folder = write_features(tmp_path, "user", DT, ["a", "b"], kinds(2), [[0, 1]])
    table = pq.read_table(folder / "part-0.parquet").append_column("cluster_size", pa.array(["x", "y"]))
    pq.write_table(table, folder / "part-0.parquet")
    assert read(tmp_path, clusters=True)[0].clusters.tolist() == [[0], [1]]


def test_features_that_do_not_say_which_texts_they_are_of_count_by_their_own_date(tmp_path):
    write_features(tmp_path, "user", DT, ["a", "b"], kinds(2))
    write_texts(tmp_path, "user", DT, ["a", "b"], ["x", "y"], ["2025-12-01", DT])
    (table,) = read(tmp_path)
    assert set(table.usable_from) == {end(DT)} and not table.prompts


def test_who_has_no_text_is_counted_over_both_tables(tmp_path):
    write_features(tmp_path, "user", DT, ["a", "b", "c"], [[1.0, 2.0], None, [3.0, 4.0]])
    write_texts(tmp_path, "user", DT, ["a", "d"], ["x", "y"])
    (table,) = read(tmp_path)
    assert table.ids == ["a", "c"] and table.missing == 2


def test_an_entity_type_of_another_date_is_named_with_its_dates(tmp_path):
    write_texts(tmp_path, "user", DT, ["a"], ["x"])
    write_texts(tmp_path, "item", "2025-12-30", ["a"], ["x"])
    write_features(tmp_path, "user", "2025-12-29", ["a"], kinds(1))
    for day in (DT, "2025-12-30"):
        with pytest.raises(DataError, match=f"texts of {day} .user 2025-12-29, 2025-12-31; item 2025-12-30"):
            read(tmp_path, day)
    assert [table.entity for table in read(tmp_path, DT, ["user"])] == ["user"]


def test_an_entity_type_without_any_text_is_warned_of(tmp_path, job_log):
    write_texts(tmp_path, "item", DT, ["a"], ["x"])
    assert [table.entity for table in read(tmp_path)] == ["item"]
    assert "has no user texts on any date: the set uses the others only" in job_log.pop()
    write_texts(tmp_path, "user", DT, ["u", "v"], [None, ""])
    assert [table.entity for table in read(tmp_path)] == ["item"]
    assert "all 2 user texts of 2025-12-31 are missing; the set uses the others only" in job_log.pop()
    assert not job_log


def test_cluster_ids_need_features(tmp_path):
    write_texts(tmp_path, "user", DT, ["a"], ["x"])
    with pytest.raises(DataError, match="so no cluster ids: run the stage `encode`"):
        read(tmp_path, clusters=True)
    write_features(tmp_path, "user", DT, ["a"], kinds(1), [[3]], texts=["x"])
    write_texts(tmp_path, "item", DT, ["b"], [None])  # of which `encode` makes no features
    assert [table.entity for table in read(tmp_path, clusters=True)] == ["user"]


def test_unknown_ids_and_missing_texts_are_counted_and_ignored(tmp_path):
    write_features(tmp_path, "user", DT, [*USERS[:30], "stranger"], kinds(31))
    found = made()
    (table,) = read(tmp_path)
    joined = join("strict", [table], found)
    there = np.array([int(found.users.ids[user - 1][1:]) < 30 for user in found.user])
    assert joined.counts["user"] == {"texts": 31, "unknown_ids": 1, "without_text": 0,
                                     "label_rows_with_text": round(float(there.mean()), 4)}
    side = joined.sides["user"]
    assert ((side.text > 0) == there).all() and not side.vectors[0].any()
    assert [table.ids[row] for row in rows_of(table, found)[there][:20]] == [
        found.users.ids[user - 1] for user in found.user[there][:20]]


def test_vectors_are_centred_and_scaled_over_the_known_ids(tmp_path):
    write_features(tmp_path, "user", DT, [*USERS, "stranger"], [*kinds(60), [1e6] * 4])
    scaled = join("strict", read(tmp_path), made()).sides["user"].vectors[1:61]
    assert np.abs(scaled.mean(0)).max() < 1e-5 and scaled.std() == pytest.approx(1, abs=1e-4)


def test_cluster_ids_leave_0_to_those_without(tmp_path):
    write_features(tmp_path, "user", DT, USERS[:2], kinds(2), [[0, 1], [0, 5]])
    side = join("cluster", read(tmp_path, clusters=True), made()).sides["user"]
    assert side.vectors is None and side.clusters.tolist() == [[0, 0], [1, 1], [2, 6]]


def test_days_end_where_the_runs_that_wrote_the_texts_ended_them(tmp_path):
    """The text of the 30th was written in New York and is carried by a run in Berlin."""
    zones = {"2025-12-30": "America/New_York", DT: "Europe/Berlin"}
    for day, zone in zones.items():
        folder = write_texts(tmp_path, "user", day, ["a", "b"], ["x", "y"], ["2025-12-30", day])
        manifest = {"settings": {"input": {"day_boundary": zone}}}
        (folder / "_manifest.json").write_text(json.dumps(manifest))
    ends = [end_of_day(date.fromisoformat(day), zone) for day, zone in zones.items()]
    assert read(tmp_path)[0].usable_from.tolist() == ends
    assert ends == [end("2025-12-30") + 5 * 3600, end(DT) - 3600]
