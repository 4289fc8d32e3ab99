"""Sequences from both kinds of files, and how they are cut."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recommend_world import some_ids

from dare_job.errors import ConfigError, DataError
from dare_job.recommend.train.sequences import read

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


@pytest.mark.parametrize("content, said", [
    ({"train": "a 1 2 999\n"}, "line 1: '998'"), ({"train": "a 1 x\n"}, "line 1"),
    ({"train": "a 1\n"}, "no user has two items")])
def test_wrong_text(tmp_path, content, said):
    with pytest.raises(DataError) as error:
        read(_text(tmp_path, **content), IDS)
    assert said in str(error.value)


def test_missing(tmp_path):
    with pytest.raises(ConfigError, match="neither"):
        read(tmp_path, IDS)
    (tmp_path / "sequential_train.txt").write_text("a 1 2\n")
    with pytest.raises(DataError, match="sequential_valid.txt is missing"):
        read(tmp_path, IDS)


def test_an_item_without_an_id(tmp_path):
    pq.write_table(pa.table({"user_id": ["u", "u"], "item_id": ["0", "strange"], "timestamp": [1, 2]}),
                   tmp_path / "interactions.parquet")
    with pytest.raises(DataError, match="'strange' has no id"):
        read(tmp_path, IDS)


def test_empty_lines_and_users_of_one_part(tmp_path):
    data = read(_text(tmp_path, train="a 1 2\n\n", valid="z 3\n", test="\n"), IDS)
    assert data.users == ("a", "z") and np.array_equal(data.valid[1], [2]) and not len(data.train[1])
