"""Tables of an OUT that are damaged, are not what they say, or have columns of another type are named."""

from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ctr_tables import kinds, write_features, write_texts

from dare_job.errors import DataError
from dare_job.evaluate.ctr import knowledge

DT = "2025-12-31"


def read(out, clusters=False):
    return knowledge.read(out, None, ["user", "item"], clusters,
                          lambda texts: (np.ones((len(texts), 2), np.float32), None))


def duplicate(out):
    write_features(out, "user", DT, ["a", "b", "a"], kinds(3))


def duplicate_text(out):
    write_texts(out, "user", DT, ["a", "b", "b"], ["x", "y", "z"])


def ragged(out):
    write_features(out, "user", DT, ["a", "b"], [[1.0, 2.0], [1.0]])


def two_sizes(out):
    write_features(out, "user", DT, ["a"], kinds(1, 4))
    write_features(out, "item", DT, ["a"], kinds(1, 3))


def not_finite(out):
    write_features(out, "user", DT, ["a", "b"], [[1.0, 2.0], [1.0, float("nan")]])


def of_other_texts(out):
    write_features(out, "user", DT, ["a", "b"], kinds(2), [[0, 1]], texts=["x", "old"])
    write_texts(out, "user", DT, ["a", "b"], ["x", "y"])


def of_texts_that_are_gone(out):
    write_features(out, "user", DT, ["a", "b", "c"], kinds(3), texts=["x", "y", "z"])
    write_texts(out, "user", DT, ["a", "b"], ["x", None])


def damaged(out):
    (write_texts(out, "user", DT, ["a"], ["x"]) / "part-0.parquet").write_bytes(b"PAR1 no")


def dates_apart(out):
    write_texts(out, "user", DT, ["a"], ["x"])
    write_texts(out, "item", "2025-12-30", ["a"], ["x"])


def all_missing(out):
    write_texts(out, "user", DT, ["a", "b"], [None, " "])
    write_texts(out, "item", DT, ["c"], [None])


def nothing(out):
    pass


@pytest.mark.parametrize("write, message", [
    (duplicate, "ids with more than one row: a"),
    (duplicate_text, "ids with more than one row: b"),
    (ragged, "the column vector .* must hold lists of numbers, all of one size"),
    (two_sizes, r"different sizes \(user 4, item 3\)"),
    (not_finite, "the vector of 'b' has a number that is not finite"),
    (of_other_texts,
     r"1 of 2 features do not belong .* 'b'\): run `dare-job run --from encode --date 2025-12-31` with the "
     "same options"),
    (of_texts_that_are_gone, r"2 of 3 features do not belong to the published texts \(such as 'b'\)"),
    (damaged, "entity=user/dt=2025-12-31: a file is damaged"),
    (dates_apart, r"not all .* a common date \(user 2025-12-31; item 2025-12-30\)"),
    (all_missing, "all 2 user texts of 2025-12-31 are missing, all 1 item texts of 2025-12-31 are missing"),
    (nothing, "found no texts; expected OUT/features or OUT/knowledge")])
def test_what_is_wrong_is_named(tmp_path, write, message):
    write(tmp_path)
    with pytest.raises(DataError, match=message):
        read(tmp_path)


def features_with(**columns):
    """Writes features of two users with other columns."""
    def write(out):
        folder = write_features(out, "user", DT, ["a", "b"], kinds(2), [[0, 1]])
        table = pq.read_table(folder / "part-0.parquet")
        for name, column in columns.items():
            made = column if isinstance(column, pa.Array) else pa.array(column)
            table = table.set_column(table.column_names.index(name), name, made)
        pq.write_table(table, folder / "part-0.parquet")
    return write


def texts_with(**columns):
    def write(out):
        folder = write_texts(out, "user", DT, ["a", "b"], ["x", "y"])
        plain = {"entity_id": ["a", "b"], "knowledge": ["x", "y"], "generated_dt": [DT, DT]}
        pq.write_table(pa.table(plain | columns), folder / "part-0.parquet")
    return write


@pytest.mark.parametrize("write, clusters, message", [
    (features_with(vector=[1.5, 2.5]), False, r"the column vector \(double\) must hold lists of numbers"),
    (features_with(vector=["1,2", "3,4"]), False, r"the column vector \(string\) must hold lists of numbers"),
    (features_with(vector=[["a"], ["b"]]), False, r"vector \(list<.*string.*>\) must hold lists of numbers"),
    (features_with(vector=pa.array([[], []], pa.list_(pa.float32()))), False, "must hold lists of numbers"),
    (features_with(vector=[[1.0, None], [2.0, 3.0]]), False, "the vector of 'a' has a number that is not"),
    (features_with(cluster_0=["1", "2"]), True, "the columns cluster_0 must hold integers from 0"),
    (features_with(cluster_0=[1.0, 2.0]), True, "the columns cluster_0 must hold integers from 0"),
    (features_with(cluster_0=[1, None]), True, "must hold integers from 0 .* one in each row"),
    (features_with(cluster_0=[2**33, 1]), True, "must hold integers from 0 to 2147483646"),
    (features_with(entity_id=[["a"], ["b"]]), False, "the column entity_id is list<.*>; text is expected"),
    (texts_with(knowledge=[["x"], ["y"]]), False, "the column knowledge is list<.*>; text is expected"),
    (texts_with(generated_dt=[datetime(2025, 12, 31)] * 2), False,
     "is not a date: .*; write it as YYYY-MM-DD"),
    (texts_with(generated_dt=["31.12.2025", DT]), False, "is not a date: .*; write it as YYYY-MM-DD")])
def test_columns_of_another_type_are_named_with_their_folder(tmp_path, write, clusters, message):
    write(tmp_path)
    with pytest.raises(DataError, match=message):
        read(tmp_path, clusters)


def test_cluster_ids_of_other_texts_are_refused_too(tmp_path):
    of_other_texts(tmp_path)
    with pytest.raises(DataError, match="1 of 2 features do not belong to the published texts"):
        read(tmp_path, clusters=True)
