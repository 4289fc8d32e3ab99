"""Publishing from hand-made tables: which row wins, what is refused, what a new cut keeps."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from run_helpers import files, snapshot

from dare_job import errors
from dare_job.spark import chunks, cut
from dare_job.stages import publish
from dare_job.tables import ENTITIES, KNOWLEDGE, PLAN
from dare_job.workspace import write_json

pytestmark = pytest.mark.spark
DAY, BEFORE = "2026-01-02", "2026-01-01"


def text(identifier: str, words: str, day: str = DAY) -> dict:
    """A row of KNOWLEDGE that holds a text."""
    return {"entity_id": identifier, "knowledge": words, "token_ids": [1, 2], "tokens": 2, "target_steps": 1,
            "accepted_tokens": 0, "relaxed_tokens": 0, "finish_reason": "eos", "generated_dt": day,
            "source_run_id": f"run-{day}", "prompt_sha256": "s", "text_key": "k", "run_id": f"run-{day}"}


def failed(identifier: str, reason: str, prompt: str | None = "s") -> dict:
    return {"entity_id": identifier, "error": reason, "finish_reason": "error", "prompt_sha256": prompt,
            "run_id": "run-1"}


@pytest.fixture
def prepared(make_job):
    """Factory: a job whose plan, generate and old snapshot hold the given rows (of users; no items)."""
    def make(stale: dict[str, bool], new: list[dict], old: list[dict] = (), **settings):
        job = make_job(settings)
        plan = [{"entity_id": name, "stale": flag, "interactions": 1} for name, flag in stale.items()]
        for entity in ENTITIES:
            rows = {"user": (plan, new, old), "item": ([], [], [])}[entity]
            for folder, schema, content in (
                    (job.space.stage("plan") / f"entity={entity}", PLAN, rows[0]),
                    (job.space.stage("generate") / f"entity={entity}", KNOWLEDGE, rows[1]),
                    (job.space.knowledge(entity, BEFORE), KNOWLEDGE, rows[2])):
                folder.mkdir(parents=True, exist_ok=True)
                pq.write_table(pa.Table.from_pylist(list(content), schema=schema), folder / "part-0.parquet")
            write_json(job.space.knowledge(entity, BEFORE) / "_manifest.json", {"run_id": "before"})
        write_json(job.space.stage("plan") / "_done.json", {"fingerprint": "p", "input": {"broken": 3}})
        write_json(job.space.stage("generate") / "_done.json",
                   {"fingerprint": "g", "tokens_per_s": 10.0, "baseline": None})
        return job
    return make


def test_which_row_is_published(prepared):
    job = prepared(
        {"new": True, "fresh": False, "failed": True, "failed-first": True, "waiting": True, "never": True},
        [text("new", "tonight"), failed("failed", "too long"), failed("failed-first", "too long")],
        [text("new", "old", BEFORE), text("fresh", "old", BEFORE), text("failed", "old", BEFORE),
         text("waiting", "old", BEFORE), text("gone", "old", BEFORE)], limits={"max_error_share": 1})
    manifest = publish.run(job)["user"]
    rows = snapshot(job.space.out, "user", DAY)
    assert {name: (row["knowledge"], row["error"], row["generated_dt"]) for name, row in rows.items()} == {
        "new": ("tonight", None, DAY), "fresh": ("old", None, BEFORE), "failed": ("old", "too long", BEFORE),
        "failed-first": (None, "too long", None), "waiting": ("old", None, BEFORE)}
    assert {row["run_id"] for row in rows.values()} == {"run-1"}
    assert manifest["counts"] == {"rows": 5, "written": 1, "errors": 2, "without_text": 1, "carried": 3,
                                  "skipped_fresh": 1, "pending": 1}
    assert manifest["rejects"] == 3


def test_an_id_that_would_be_there_twice_is_refused_before_anything_is_shown(prepared):
    job = prepared({"a": True, "b": True}, [text("a", "x"), text("b", "x"), text("b", "y")])
    with pytest.raises(errors.DataError, match="user 'b' would be published twice"):
        publish.run(job)
    assert not job.space.knowledge("user").exists() and not job.space.knowledge("item").exists()


def test_too_many_errors_leave_the_published_date_as_it_was(prepared):
    job = prepared({"a": True, "b": True}, [text("a", "x"), text("b", "x")])
    publish.run(job)
    before = files(job.space.out / "knowledge")
    folder = job.space.stage("generate") / "entity=user"
    rows = [text("a", "x"), failed("b", "out of memory")]
    pq.write_table(pa.Table.from_pylist(rows, schema=KNOWLEDGE), folder / "part-0.parquet")
    with pytest.raises(errors.ThresholdError, match="1 of 2 rows.*1 x out of memory"):
        publish.run(job)
    assert files(job.space.out / "knowledge") == before


def test_rows_without_a_prompt_do_not_stop_an_idle_night(prepared):
    """An empty history fails every night; on a night without other rows it is all there is."""
    names = [f"u{n}" for n in range(40)]
    job = prepared({**dict.fromkeys(names, False), "lost": True}, [failed("lost", "empty history", None)],
                   [text(name, "old", BEFORE) for name in names], limits={"max_error_share": 0.05})
    assert publish.run(job)["user"]["counts"]["errors"] == 1


def test_a_new_cut_keeps_finished_rows_whose_text_would_be_the_same(make_job, spark):
    job = make_job({"spark": {"rows_per_commit": 2, "shards": 2}})

    def tonight(keys: dict[str, str]):
        rows = [("user", name, "prompt", "s", key, None, "global", "global") for name, key in keys.items()]
        columns = "entity string, entity_id string, prompt string, prompt_sha256 string, text_key string, "
        return lambda: spark.createDataFrame(rows, columns + "error string, pool string, pool_kind string")

    work = cut.prepare(job, "first", tonight({f"u{n}": "k" for n in range(6)}))
    assert (work.shards, work.rows, work.kept) == (2, 6, 0)
    rows = sorted(cut.remaining(job, work).toPandas().to_dict("records"), key=lambda row: row["entity_id"])
    assert cut.prepare(job, "first", None) == work
    for row in rows[:2]:  # two chunks of one row each stand for what a killed run left
        chunks.write(work.entities[0] / chunks.name(row["shard"], 90 + row["position"]),
                     [text(row["entity_id"], "done")])
    again = cut.prepare(job, "second", tonight({"u0": "k", "u1": "other", "u2": "k", "u7": "k"}))
    assert (again.rows, again.kept) == (4, 1)
    left = {row.entity_id for row in cut.remaining(job, again).collect()}
    assert left == {"u1", "u2", "u7"}
    kept = pq.read_table(next(again.entities[0].glob("kept-*"))).to_pylist()
    assert [row["entity_id"] for row in kept] == ["u0"]
    assert json.loads((again.folder / cut.RECORD).read_text())["fingerprint"] == "second"
