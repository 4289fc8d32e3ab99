"""A damaged vector is reported with the folder that it came from."""

import numpy as np
import pyarrow as pa
import pytest

from dare_job import schemas
from dare_job.errors import DataError
from dare_job.publish.features import write
from dare_job.publish.features.inputs import Origin, matrix

ORIGIN = Origin("work/vectors", "features/dt=2026-01-01", 2)
WHOLE = [0.5, 1.0]


def rows(vectors: list[list | None], reused: list[bool]) -> pa.Table:
    count = len(vectors)
    ids = pa.array(range(count), pa.int32())
    return pa.table({
        "entity_id": [f"u{number}" for number in range(count)], "id": ids,
        "file": pa.array([0] * count, pa.int32()), "text_sha256": ["0" * 64] * count,
        "vector": pa.array(vectors, pa.list_(pa.float32())), "reused": reused})


def test_vectors_become_a_matrix():
    found = matrix(rows([WHOLE, [2.0, 3.0]], [True, False]), "entity_id", ORIGIN)
    assert found.dtype == np.float32 and found.tolist() == [WHOLE, [2.0, 3.0]]
    chunks = pa.concat_tables([rows([WHOLE], [True]), rows([[2.0, 3.0]], [True])])
    assert matrix(chunks, "entity_id", ORIGIN).tolist() == [WHOLE, [2.0, 3.0]]


@pytest.mark.parametrize("vector", [
    None, [], [1.0, 2.0, 3.0], [1.0, None], [float("nan"), 1.0], [float("-inf"), 1.0]])
@pytest.mark.parametrize(("reused", "folder", "fix"), [
    (True, "features/dt=2026-01-01", "restore that folder from a copy, or remove it"),
    (False, "work/vectors", "remove that folder")])
def test_a_damaged_one_ends_the_writing(tmp_path, vector, reused, folder, fix):
    layout = write.Layout(str(tmp_path), "part-0", schemas.features(2, 0), None, 2, ORIGIN)
    table = rows([WHOLE, WHOLE, WHOLE, vector, WHOLE], [True, True, False, reused, True])
    with pytest.raises(DataError, match=f"^{folder}: the vector of 'u3' is missing, .* 2 dimensions: {fix}"):
        write.write_file(table, layout)
