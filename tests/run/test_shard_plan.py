"""The cut of tonight's rows: what a new one keeps, what a limit means, what is repaired."""

import json

import pyarrow.parquet as pq
import pytest
from run_helpers import files, text

from dare_job.generate import shard_plan
from dare_job.tables import chunk_files

pytestmark = pytest.mark.spark
COLUMNS = ("entity string, entity_id string, prompt string, prompt_sha256 string, text_key string, "
           "error string, pool string, pool_kind string, own_ids array<int>, strict boolean, "
           "rank int")


@pytest.fixture
def cutting(make_job, spark):
    """Factory: the cut of users by text key, for a limit; and a writer of the rows that remain."""
    def make(fingerprint: str, keys: dict[str, str], limit: int | None = None):
        def tonight(limit):
            rows = [("user", name, "prompt", "s", key, None, "global", "global", None, False, 0)
                    for name, key in sorted(keys.items())[:limit]]
            return spark.createDataFrame(rows, COLUMNS)

        job = make_job({"spark": {"rows_per_commit": 1, "shards": 2}}, limit=limit)
        work = shard_plan.load_or_create(job, fingerprint, tonight)
        return work, sorted(row.entity_id for row in shard_plan.remaining_rows(job, work).collect()), job
    return make


def write(job, work, rows: int | None = None) -> None:
    """Stands for the workers: commits rows of the cut that are left, by default all, at 0.5 s a token."""
    left = sorted(shard_plan.remaining_rows(job, work).collect(), key=lambda row: row.entity_id)
    for row in left[:rows]:
        chunk_files.write(work.entities[0] / chunk_files.name(row.shard, row.chunk),
                     [text(row.entity_id, "done") | {"text_key": row.text_key}], 1.0)


def finished(work) -> set[str]:
    return {row["entity_id"] for path in work.entities[0].glob("*.parquet")
            for row in pq.read_table(path).to_pylist()}


def test_a_new_cut_keeps_finished_rows_whose_text_would_be_the_same(cutting):
    work, left, job = cutting("first", {f"u{n}": "k" for n in range(6)})
    assert (work.shards, work.rows, work.kept) == (2, 6, 0) and len(left) == 6
    assert cutting("first", {})[0] == work
    write(job, work, 2)
    again, left, _ = cutting("second", {"u0": "k", "u1": "other", "u2": "k", "u7": "k"})
    assert (again.rows, again.kept) == (4, 1) and left == ["u1", "u2", "u7"]
    kept = pq.read_table(next(again.entities[0].glob("kept-*"))).to_pylist()
    assert [row["entity_id"] for row in kept] == ["u0"]
    assert json.loads((again.folder / shard_plan.SHARD_PLAN).read_text())["fingerprint"] == "second"
    totals = chunk_files.Tally(again.entities).update()  # of 2 rows, 4 tokens and 2 s, half are left
    assert (totals.tokens, totals.busy_s, totals.tokens_per_s) == (2, 1.0, 2.0)


@pytest.mark.slow
def test_a_limit_adds_rows_and_never_takes_finished_ones_away(cutting):
    keys = {f"u{n}": "k" for n in range(6)}
    work, left, job = cutting("same", keys, 2)
    assert left == ["u0", "u1"]
    write(job, work)
    again, left, job = cutting("same", keys, 2)
    assert again == work and left == [] and finished(work) == {"u0", "u1"}
    work, left, job = cutting("same", keys)
    assert finished(work) == {"u0", "u1"} and left == ["u2", "u3", "u4", "u5"]
    write(job, work, 3)
    work, left, job = cutting("same", keys, 3)  # not all was finished: a cut of its own
    assert left == [] and finished(work) == {"u0", "u1", "u2", "u3", "u4"} and work.rows == 5
    work, left, job = cutting("same", keys)
    write(job, work)
    complete = files(work.folder)
    assert cutting("same", keys, 1)[0] == work and files(work.folder) == complete
    changed = cutting("other plan", keys | {"u7": "k"}, 1)[0]
    assert finished(changed) == set(keys) and changed.rows == 6


@pytest.mark.slow
def test_rows_that_failed_are_tried_again_once_the_gate_asks_for_it(cutting):
    work, left, job = cutting("first", {"u0": "k", "u1": "k"})
    write(job, work, 1)
    (row,) = shard_plan.remaining_rows(job, work).collect()
    chunk_files.write(work.entities[0] / chunk_files.name(row.shard, row.chunk),
                 [{"entity_id": "u1", "error": "out of memory", "run_id": "run-1"}])
    assert cutting("first", {"u0": "k", "u1": "k"})[1] == []
    (work.folder / shard_plan.RETRY).write_text("{}")
    again, left, _ = cutting("first", {"u0": "k", "u1": "k"})
    assert (again.rows, again.kept) == (2, 1) and left == ["u1"]


@pytest.mark.slow
def test_unreadable_and_lost_files_are_written_again(cutting):
    keys = {f"u{n}": "k" for n in range(4)}
    work, _, job = cutting("first", keys)
    write(job, work)
    empty, short = sorted(work.entities[0].glob("part-*"))[:2]
    empty.write_bytes(b"")
    short.write_bytes(short.read_bytes()[:-5])
    again, left, _ = cutting("first", keys)
    assert again == work and not empty.exists() and not short.exists()
    assert len(left) == 2 and len(finished(again)) == 2
    kept, _, _ = cutting("second", keys)
    next(kept.entities[0].glob("kept-*")).write_bytes(b"")
    again, left, job = cutting("second", keys)  # rows that are in no chunk of the cut: cut anew
    assert (again.rows, again.kept) == (4, 0) and left == sorted(keys)
    next((again.folder / "cut").glob("*.parquet")).unlink()
    assert cutting("second", keys)[1] == sorted(keys)
