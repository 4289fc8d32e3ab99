"""Sequences from both kinds of files, and how they are cut."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recommend_world import some_ids

from dare_job.errors import ConfigError, DataError
from dare_job.training.recommender.sequences import read
from dare_job.training.recommender.settings import LEAVE_ONE_OUT, Source

IDS = some_ids()


def _text(folder, train="a 1 2 3\nb 4\nc 1 2\n", valid="a 5\nb\nc\n", test="a\nb 6 7\nc\n"):
    for part, lines in (("train", train), ("valid", valid), ("test", test)):
        (folder / f"sequential_{part}.txt.gz").write_bytes(gzip.compress(lines.encode()))
    return folder


def _rows(part):
    return [row.tolist() for row in part]


def test_text(tmp_path):
    data = read(_text(tmp_path), IDS)
    assert data.users == ("a", "b", "c")
    assert _rows(data.train) == [[0, 1, 2], [3], [0, 1]] and _rows(data.valid) == [[4], [], []]
    assert [(one.tolist(), two.tolist()) for one, two in data.tests()] == [([3], [5, 6])]
    assert [(one.tolist(), two.tolist()) for one, two in data.tests("valid")] == [([0, 1, 2], [4])]
    assert data.popularity(8).tolist() == [2, 2, 1, 1, 0, 0, 0, 0]


def test_numbers_from_another_first_one(tmp_path):
    assert _rows(read(_text(tmp_path), IDS, first_item=0).train)[0] == [1, 2, 3]


def test_leave_one_out(tmp_path):
    data = read(_text(tmp_path), IDS).leave_one_out()
    assert _rows(data.train) == [[0, 1], [3], [0, 1]]
    assert _rows(data.valid) == [[2], [5], []] and _rows(data.test) == [[4], [6], []]


def test_parquet_is_cut_by_time(tmp_path):
    times = [30, 10, 20, 50, 40, 60, 90, 80, 70, 100]
    pq.write_table(pa.table({"user_id": [1, 1, 2, 2, 1, 1, 1, 2, 1, 2], "item_id": list(range(10)),
                             "timestamp": times}), tmp_path / "interactions.parquet")
    data = read(tmp_path, IDS)
    assert data.users == ("1", "2")
    assert _rows(data.train) == [[1, 0, 4, 5, 8], [2, 3, 7]]
    assert _rows(data.valid) == [[6], []] and _rows(data.test) == [[], [9]]


@pytest.mark.parametrize("content, message", [
    ({"train": "a 1 2 999\n"}, "line 1: '998'"), ({"train": "a 1 x\n"}, "line 1"),
    ({"train": "a 1\n"}, "no user has two items")])
def test_wrong_text(tmp_path, content, message):
    with pytest.raises(DataError) as error:
        read(_text(tmp_path, **content), IDS)
    assert message in str(error.value)


def test_missing(tmp_path):
    with pytest.raises(ConfigError, match="neither"):
        read(tmp_path, IDS)
    (tmp_path / "sequential_train.txt").write_text("a 1 2\n")
    with pytest.raises(DataError, match="sequential_valid.txt is missing"):
        read(tmp_path, IDS)


def _interactions(folder, items, **columns):
    table = {"user_id": ["u"] * len(items), "item_id": items, "timestamp": list(range(len(items)))} | columns
    pq.write_table(pa.table(table), folder / "interactions.parquet")
    return folder


def test_items_without_an_id_are_left_out_and_named(tmp_path, job_log):
    data = read(_interactions(tmp_path, ["0", "strange", "1", "2", "odd"]), IDS)
    assert _rows(data.train) == [[0, 1]] and _rows(data.test) == [[]] and _rows(data.valid) == [[2]]
    assert "2 of 5 interactions are with items without an id, such as 'strange'" in job_log[0]
    assert data.leave_one_out().counts == {"interactions": 5, "broken": 0, "below_min_rating": 0,
                                           "without_id": 2}
    with pytest.raises(DataError, match=r"2 of 3 .* without an id, such as 'strange'\. If these are"):
        read(_interactions(tmp_path, ["0", "strange", "odd"]), IDS)
    with pytest.raises(DataError, match="no user has two items with ids"):
        read(_interactions(tmp_path, ["0", "odd"]), IDS)


@pytest.mark.parametrize("column", [
    {"user_id": ["u", None, "u", "u"]}, {"user_id": ["u", " ", "u", "u"]}, {"item_id": ["0", None, "2", "3"]},
    {"item_id": [0.0, float("nan"), 2.0, 3.0]}, {"item_id": [0.0, 1.5, 2.0, 3.0]},
    {"timestamp": [1, None, 3, 4]}, {"timestamp": [1.0, float("nan"), 3.0, 4.5]},
    {"timestamp": ["1", "late", "3", "4"]}, {"timestamp": [1, 2 * 10**12, 3, 4]},
    {"rating": ["5", "good", "2", "1"]}, {"rating": [None, float("inf"), 1.0, 2.0]}])
def test_a_broken_row_costs_no_other(tmp_path, job_log, column):
    data = read(_interactions(tmp_path, ["0", "1", "2", "3"], **column), IDS)
    assert data.users == ("u",) and _rows(data.train) == [[0, 2]] and _rows(data.valid) == [[3]]
    assert "skipped 1 of 4 interactions without a user, an item or a time" in job_log[0]


def test_files_of_other_types_are_one_table(tmp_path):
    """Seconds, milliseconds and microseconds; ids as numbers and as text; ratings or none."""
    folder = tmp_path / "interactions"
    folder.mkdir()
    parts = [
        {"user_id": [1, 1], "item_id": [0, 1], "timestamp": pa.array([10, 20], pa.int32()), "rating": [5, 1]},
        {"user_id": ["1"], "item_id": ["2"], "timestamp": pa.array([30_500], pa.timestamp("ms"))},
        {"user_id": [1.0], "item_id": [3.0], "timestamp": pa.array([40 * 10**6], pa.timestamp("us", "UTC")),
         "rating": ["4.5"]},
        {"user_id": ["1"], "item_id": pa.array(["4"]).dictionary_encode(), "timestamp": ["50"],
         "rating": [3.5]}]
    for number, part in enumerate(reversed(parts)):
        pq.write_table(pa.table(part), folder / f"part-{number}.parquet")
    assert _rows(Source(tmp_path, LEAVE_ONE_OUT).read(IDS).train) == [[0, 1, 2]]
    data = Source(tmp_path, LEAVE_ONE_OUT, min_rating=4).read(IDS)
    assert _rows(data.train) == [[0]] and _rows(data.valid) == [[2]] and _rows(data.test) == [[3]]
    assert data.counts["below_min_rating"] == 2
    pq.write_table(pa.table({"user_id": ["1"], "item": ["2"]}), folder / "part-9.parquet")
    with pytest.raises(DataError, match=r"part-9\.parquet has no column item_id, timestamp"):
        Source(tmp_path).read(IDS)
    (folder / "part-9.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"part-9\.parquet is not a readable Parquet file"):
        Source(tmp_path).read(IDS)


def test_what_was_rated_below_was_not_taken(tmp_path):
    ratings = {"rating": [5.0, 1.0, None, 3.5, 3.4]}
    folder = _interactions(tmp_path, ["0", "1", "2", "3", "4"], **ratings)
    assert Source(folder).read(IDS).popularity(5).tolist() == [1, 1, 1, 1, 0]
    kept = Source(folder, LEAVE_ONE_OUT, min_rating=3.5).read(IDS)
    assert [_rows(part) for part in (kept.train, kept.valid, kept.test)] == [[[0]], [[2]], [[3]]]
    assert Source(_interactions(tmp_path, ["0", "1", "2"]), min_rating=3.5).read(IDS).counts[
        "below_min_rating"] == 0  # nothing was rated
    with pytest.raises(ConfigError, match="--min-rating: the sequences of .* have no ratings"):
        Source(_text(tmp_path), min_rating=3.5).read(IDS)


@pytest.mark.parametrize("content", [
    b"a 1 2\n", gzip.compress(b"a 1 2\n" * 99, mtime=0)[:-12],
    gzip.compress("a 1 \u00e9\n".encode("latin-1"), mtime=0)])
def test_a_damaged_text_file_is_named(tmp_path, content):
    (_text(tmp_path) / "sequential_valid.txt.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"sequential_valid\.txt\.gz cannot be read"):
        read(tmp_path, IDS)


def test_a_user_with_several_lines_has_the_items_of_all(tmp_path):
    assert _rows(read(_text(tmp_path, train="a 1 2\nb 4\na 3\n"), IDS).train)[0] == [0, 1, 2]


def test_empty_lines_and_users_of_one_part(tmp_path):
    data = read(_text(tmp_path, train="a 1 2\n\n", valid="z 3\n", test="\n"), IDS)
    assert data.users == ("a", "z") and np.array_equal(data.valid[1], [2]) and not len(data.train[1])
