"""Ids are handed out once, kept for ever, and a damaged map is refused."""

import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dare_job.errors import DataError, InfrastructureError
from dare_job.publish.features import ids
from dare_job.schemas import IDS
from dare_job.storage import lock


def extend(root, *names: str, min_rows: int = 0) -> dict[str, int]:
    found = ids.extended(root, "user", pa.array(names, pa.string()), min_rows)
    return dict(zip(found["entity_id"].to_pylist(), found["id"].to_pylist(), strict=True))


def test_new_entities_get_the_next_ids(tmp_path):
    assert extend(tmp_path, "c", "a") == {"a": 1, "c": 2}
    assert extend(tmp_path, "b", "c") == {"a": 1, "c": 2, "b": 3}
    path = tmp_path / "entity=user" / "ids.parquet"
    before = path.stat().st_mtime_ns, path.read_bytes()
    assert extend(tmp_path, "a") == {"a": 1, "c": 2, "b": 3}  # absent entities keep their ids
    assert (path.stat().st_mtime_ns, path.read_bytes()) == before
    assert pq.read_schema(path).equals(IDS)
    assert [path.name for path in path.parent.iterdir()] == ["ids.parquet"]


def write(root, names, numbers) -> None:
    (root / "entity=user").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"entity_id": pa.array(names, pa.string()), "id": pa.array(numbers, pa.int32())}),
                   root / "entity=user" / "ids.parquet")


@pytest.mark.parametrize(("names", "numbers", "said"), [
    (["a", "b"], [1, 3], "does not count from 1 to 2"), (["a", "b"], [0, 1], "does not count from 1"),
    (["a", "a"], [1, 2], "has two ids for 'a'"), (["a", None], [1, 2], "has rows without an id"),
    (["a"], [1], "contains 1 of 2 entities that have an id")])
def test_an_invalid_file_of_ids_is_refused(tmp_path, names, numbers, said):
    write(tmp_path, names, numbers)
    with pytest.raises(DataError, match=f"ids.parquet {said}.*restore it from a copy"):
        extend(tmp_path, "z", min_rows=2)


def test_a_damaged_or_lost_file_is_refused(tmp_path):
    extend(tmp_path, "a", "b")
    path = tmp_path / "entity=user" / "ids.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="ids.parquet is damaged"):
        extend(tmp_path, "a")
    pq.write_table(pa.table({"entity_id": ["a"]}), path)
    with pytest.raises(DataError, match="ids.parquet is damaged"):
        extend(tmp_path, "a")
    path.unlink()
    with pytest.raises(DataError, match="contains 0 of 2 entities"):
        extend(tmp_path, "a", min_rows=2)


def test_two_commands_do_not_number_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_PATIENCE_S", 0.1)
    code = ("import sys; from pathlib import Path; from dare_job.storage import lock\n"
            "with lock.held(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()\n")
    (tmp_path / "entity=user").mkdir()
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "entity=user")], text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ))
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InfrastructureError, match="another command numbers entities"):
            extend(tmp_path, "a")
    finally:
        other.communicate()
    assert extend(tmp_path, "a") == {"a": 1}
