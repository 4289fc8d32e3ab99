"""Publishing from hand-made tables: which row wins, what is refused, what a new cut keeps."""

import json
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from run_helpers import files, snapshot, text

from dare_job import errors, pipeline
from dare_job.job import Job
from dare_job.models.files import tokenizer_hash
from dare_job.schemas import COPIES, ENTITIES, KNOWLEDGE, PLAN
from dare_job.stages import gate, publish
from dare_job.tables import plan_table
from dare_job.workspace import Workspace, write_json

pytestmark = pytest.mark.spark
DAY, BEFORE = "2026-01-02", "2026-01-01"


def failed(identifier: str, reason: str, prompt: str | None = "s") -> dict:
    return {"entity_id": identifier, "error": reason, "finish_reason": "error", "prompt_sha256": prompt,
            "run_id": "run-1"}


def gated(job) -> dict:
    """What `dare-job run --from gate` and `dare-job run --from publish` do."""
    gate.run(job)
    return publish.run(job)


GENERATED = {"errors": 0, "tokens_per_s": 10.0, "baseline": None, "waves": {"user": [], "item": []},
             "beams": None, "busy_s": 1.0, "workers": None}


@pytest.fixture
def prepared(make_job):
    """Factory: a job whose plan, generate and old snapshot hold the given rows (of users; no items)."""
    def make(stale: dict[str, bool], new: list[dict], old: list[dict] = (), copies: list[dict] = (),
             **settings):
        job = make_job({"gates": {"max_share": {"short": None}}, **settings})  # two tokens each
        with_text = {row["entity_id"] for row in old}
        plan = [{"entity_id": name, "stale": flag, "strict": False, "interactions": 1, "cost": 8,
                 "value": 1.5 if flag else None, "age_days": 1 if name in with_text else None,
                 "error": "empty history" if name.startswith("lost") else None}
                for name, flag in stale.items()]
        to_write = sum(row["stale"] and row["error"] is None for row in plan)
        for entity in ENTITIES:
            rows = {"user": (plan, new, old, copies), "item": ([], [], [], [])}[entity]
            for folder, schema, content in (
                    (job.space.stage("plan") / f"entity={entity}", PLAN, rows[0]),
                    (plan_table.copies_folder(job.space.stage("plan"), entity), COPIES, rows[3]),
                    (job.space.stage("generate") / f"entity={entity}", KNOWLEDGE, rows[1]),
                    (job.space.knowledge(entity, BEFORE), KNOWLEDGE, rows[2])):
                folder.mkdir(parents=True, exist_ok=True)
                pq.write_table(pa.Table.from_pylist(list(content), schema=schema), folder / "part-0.parquet")
            write_json(job.space.knowledge(entity, BEFORE) / "_manifest.json", {"run_id": "before"})
        counts = {entity: {"rows": len(plan) if entity == "user" else 0, "errors": 0} for entity in ENTITIES}
        write_json(job.space.stage("plan") / "_done.json",
                   {"fingerprint": "p", "model": job.model_hash, "before": {},
                    "input": {"broken": 3, "duplicates": 2, "up_to_date": 9, "users": 7, "items": 8},
                    "refresh": {"cut": None, "sample_end": None, "curve": None,
                                "user": {"chosen": len(plan), "carried": {}, "texts": {"rows": to_write}},
                                "item": {"chosen": 0, "carried": {}, "texts": {"rows": 0}}}, **counts})
        write_json(job.space.stage("generate") / "_done.json",
                   {"fingerprint": "g", "rows": len(new), **GENERATED,
                    "errors": sum(row.get("error") is not None for row in new)})
        return job
    return make


def test_which_row_is_published(prepared):
    job = prepared(
        {"new": True, "fresh": False, "failed": True, "failed-first": True, "waiting": True, "never": True},
        [text("new", "tonight"), failed("failed", "too long"), failed("failed-first", "too long")],
        [text("new", "old", BEFORE), text("fresh", "old", BEFORE), text("failed", "old", BEFORE),
         text("waiting", "old", BEFORE), text("gone", "old", BEFORE)], limits={"max_error_share": 1})
    manifest = gated(job)["user"]
    rows = snapshot(job.space.out, "user", DAY)
    assert {name: (row["knowledge"], row["error"], row["generated_dt"]) for name, row in rows.items()} == {
        "new": ("tonight", None, DAY), "fresh": ("old", None, BEFORE), "failed": ("old", "too long", BEFORE),
        "failed-first": (None, "too long", None), "waiting": ("old", None, BEFORE)}
    assert {row["run_id"] for row in rows.values()} == {"run-1"}
    assert manifest["counts"] == {"rows": 5, "written": 1, "copied": 0, "errors": 2, "without_text": 1,
                                  "carried": 3, "guarded": 0, "skipped_fresh": 1, "errors_before": 0,
                                  "pending": 1}
    record = manifest["refresh"]  # of the five rows to write, though the plan chose all of them
    assert record["chosen"] == 1 and record["carried"] == {"failed": 2, "limit": 2}
    assert record["ages"] == {"1-2 days": [1, 2], "no text": [0, 2]}
    assert (record["value"], record["value_left"]) == (1.5, 6.0)
    assert manifest["rejects"] == {"broken": 3, "duplicate": 2}
    assert manifest["input"] == {"interactions": 9, "users": 7, "items": 8}


def test_a_row_with_the_prompt_of_a_text_of_before_gets_that_text(prepared):
    """Whatever it had before, and with the date of the run, which would have written the same. The other row
    is as it was."""
    shared = [{"entity_id": name, "text_of": "fresh", "written_rank": plan_table.CURRENT}
              for name in ("first", "changed")]
    earlier = text("fresh", "old", BEFORE) | {"text_interactions": 1, "target_steps": 2}
    job = prepared({"fresh": False, "first": True, "changed": True, "waiting": True, "lost": True},
                   [text("waiting", "tonight"), failed("lost", "empty history", None)],
                   [earlier, text("changed", "another", BEFORE)], shared)
    manifest = gated(job)["user"]
    rows = snapshot(job.space.out, "user", DAY)
    columns = ("knowledge", "generated_dt", "copied", "target_steps", "carried_reason")
    assert {name: tuple(row[column] for column in columns) for name, row in rows.items()} == {
        "fresh": ("old", BEFORE, None, 2, None), "first": ("old", DAY, True, None, None),
        "changed": ("old", DAY, True, None, None), "waiting": ("tonight", DAY, None, 1, None),
        "lost": (None, None, None, None, None)}
    counts = manifest["counts"]
    assert (counts["written"], counts["copied"], counts["carried"], counts["without_text"]) == (1, 2, 1, 1)


def test_ids_of_another_tokenizer_are_not_carried_over(prepared):
    job = prepared({"new": True, "kept": False}, [text("new", "tonight")], [text("kept", "old", BEFORE)])
    gated(job)
    rows = snapshot(job.space.out, "user", DAY)
    assert rows["new"]["token_ids"] == [1, 2]
    assert (rows["kept"]["knowledge"], rows["kept"]["token_ids"]) == ("old", None)
    same = prepared({"kept": False}, [], [text("kept", "old", BEFORE)])
    write_json(same.space.knowledge("user", BEFORE) / "_manifest.json",
               {"run_id": "before", "tokenizer": tokenizer_hash(same.model_path)})
    assert publish._snapshot(same, "user").collect()[0].token_ids == [1, 2]


def test_dates_of_texts_are_published_as_dates_and_those_that_cannot_be_read_as_missing_ones(prepared):
    """Texts that came with the input may have others."""
    dates = {"text": "05.12.2025", "time": "2025-12-05T08:00:00", "date": "2025-12-06"}
    job = prepared(dict.fromkeys(dates, False), [], [text(name, "old", day) for name, day in dates.items()])
    found = {row.entity_id: row.generated_dt for row in publish._snapshot(job, "user").collect()}
    assert found == {"text": BEFORE, "time": "2025-12-05", "date": "2025-12-06"}


def test_an_id_that_would_be_there_twice_is_refused_before_anything_is_shown(prepared):
    job = prepared({"a": True, "b": True}, [text("a", "x"), text("b", "x"), text("b", "y")])
    with pytest.raises(errors.DataError, match="user 'b' would be published twice"):
        gated(job)
    assert not job.space.knowledge("user").exists() and not job.space.knowledge("item").exists()


def test_too_many_errors_leave_the_published_date_as_it_was(prepared):
    job = prepared({"a": True, "b": True}, [text("a", "x"), text("b", "x")])
    gated(job)
    before = files(job.space.out / "knowledge")
    folder = job.space.stage("generate") / "entity=user"
    rows = [text("a", "x"), failed("b", "out of memory")]
    pq.write_table(pa.Table.from_pylist(rows, schema=KNOWLEDGE), folder / "part-0.parquet")
    with pytest.raises(errors.ThresholdError, match="1 of 2 rows.*1 x out of memory"):
        gated(job)
    assert files(job.space.out / "knowledge") == before


def test_rows_that_no_gate_let_through_are_not_published(prepared):
    job = prepared({"a": True}, [text("a", "x")])
    with pytest.raises(errors.DataError, match="run `dare-job run --from gate --date 2026-01-02` with "
                                               "the same options first"):
        publish.run(job)
    gated(job)
    before = files(job.space.out / "knowledge")
    bad = prepared({"a": True}, [failed("a", "out of memory")])
    with pytest.raises(errors.DataError, match="does not match the current rows or limits"):
        publish.run(bad)
    with pytest.raises(errors.ThresholdError):
        gate.run(bad)
    with pytest.raises(errors.ThresholdError, match="1 of 1 rows with a prompt failed"):
        publish.run(bad)
    now = files(job.space.out / "knowledge")
    assert now == before | {name: file for name, file in now.items() if f"dt={BEFORE}" in name}


def test_what_the_gate_found_is_in_the_manifest(prepared):
    manifests = gated(prepared({"a": True, "b": True}, [text("a", "x"), text("b", " ")]))
    assert manifests["user"]["gates"]["empty"]["value"] == 0.5
    assert manifests["user"]["gates"]["empty"]["why"] == "fewer than 3 rows"
    assert manifests["item"]["gates"]["empty"]["value"] is None
    assert pipeline.summarise(prepared({}, []), manifests)["gates"]["empty"] == 0.5


def test_rows_without_a_prompt_never_count_as_failed(prepared):
    """Most users may have no history; on a quiet night they are all there is."""
    lost = [f"lost{n}" for n in range(40)]
    job = prepared({"fresh": False, **dict.fromkeys(lost, True)},
                   [failed(name, "empty history", None) for name in lost], [text("fresh", "old", BEFORE)])
    assert gated(job)["user"]["counts"]["errors"] == 40


def test_a_row_without_a_prompt_that_is_not_tried_again_keeps_its_error_and_its_text(prepared):
    """Also a row that never had a text, which is no row of the date before."""
    old = [failed("lost-new", "empty history", None), text("fresh", "old", BEFORE) | {"error": "too long"},
           text("lost-old", "old", BEFORE) | {"error": "empty history"}]
    manifest = gated(prepared(dict.fromkeys(("lost-new", "lost-old", "fresh"), False), [], old))["user"]
    rows = snapshot(prepared({}, []).space.out, "user", DAY)
    assert {name: (row["knowledge"], row["error"], row["generated_dt"]) for name, row in rows.items()} == {
        "lost-new": (None, "empty history", None), "lost-old": ("old", "empty history", BEFORE),
        "fresh": ("old", None, BEFORE)}
    assert manifest["counts"] == {"rows": 3, "written": 0, "copied": 0, "errors": 2, "without_text": 1,
                                  "carried": 2, "guarded": 0, "skipped_fresh": 1, "errors_before": 2,
                                  "pending": 0}


def test_a_row_that_fails_every_night_is_counted_once(prepared):
    """Against the rows of a quiet night a prompt beyond the model's context would be most of them."""
    old = text("long", "old", BEFORE) | {"error": "too long"}
    many = dict.fromkeys([f"fresh{n}" for n in range(30)], False)
    job = prepared({"long": True, **many}, [failed("long", "too long")], [old])
    assert gated(job)["user"]["counts"]["errors"] == 1
    other = prepared({"long": True}, [failed("long", "out of memory")], [old])
    with pytest.raises(errors.ThresholdError, match="1 of 1 rows with a prompt failed"):
        gated(other)


def test_a_baseline_measured_later_changes_the_manifest_alone(prepared):
    job = prepared({"a": True}, [text("a", "x")])
    gated(job)
    before = files(job.space.out / "knowledge")
    record = {"fingerprint": "g", "rows": 1, **GENERATED, "baseline": {"tokens_per_s": 4.0}}
    for measured in (record, record | {"baseline": None}):
        write_json(job.space.stage("generate") / "_done.json", measured)
        assert gated(job)["item"]["baseline"] == {"tokens_per_s": 4.0}
        assert files(job.space.out / "knowledge") == before
    assert json.loads((job.space.knowledge("user") / "_manifest.json").read_text())["baseline"]


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_finished_rows_that_went_missing_are_named(prepared, damage):
    job = prepared({"a": True}, [text("a", "x")])
    gate.run(job)
    damage(job.space.stage("generate") / "entity=user" / "part-0.parquet")
    for stage in (gate, publish):
        with pytest.raises(errors.DataError, match="of 1 finished rows: run `dare-job run --from generate"):
            stage.run(job)


@pytest.mark.parametrize(("left", "named"), [
    (["generate/_cut.json", "generate/_done.json"], [DAY]), (["generate/_cut.json"], [DAY]), ([], [])],
    ids=["before the gate", "in generate", "planned alone"])
def test_a_night_that_was_cut_off_is_named_by_the_next(prepared, monkeypatch, caplog, left, named):
    job = prepared({"a": True}, [text("a", "x")])
    job.space.stage("generate").joinpath("_done.json").unlink()
    for name in left:
        write_json(job.space.work / name, {})
    tomorrow = Job(job.config, Workspace(job.space.out, date.fromisoformat("2026-01-03")), "run-2")
    assert tomorrow.space.interrupted_dates() == named
    monkeypatch.setattr(pipeline._LOG, "propagate", True)
    monkeypatch.setattr(pipeline.log, "to_stderr", lambda form: None)
    pipeline._name_unpublished(tomorrow)
    assert (f"`dare-job run --date {DAY}`" in caplog.text) is bool(named)


def test_a_date_counts_once_both_entity_types_are_published(prepared, monkeypatch, caplog):
    job = prepared({"a": True}, [text("a", "x")])
    gate.run(job)
    tomorrow = Workspace(job.space.out, date.fromisoformat("2026-01-03"))
    rename = publish.atomic_folder._move_into_place

    def killed(new, old):
        assert (new / "_manifest.json").exists()  # data and manifest appear by one rename
        if "entity=item" in str(old):
            raise KeyboardInterrupt
        return rename(new, old)

    monkeypatch.setattr(publish.atomic_folder, "_move_into_place", killed)
    with pytest.raises(KeyboardInterrupt):
        publish.run(job)
    assert (job.space.knowledge("user") / "_manifest.json").exists()
    assert [tomorrow.previous(entity).name for entity in ENTITIES] == [f"dt={BEFORE}"] * 2
    assert tomorrow.interrupted_dates() == [DAY] and job.space.interrupted_dates() == []
    monkeypatch.setattr(pipeline._LOG, "propagate", True)
    monkeypatch.setattr(pipeline.log, "to_stderr", lambda form: None)
    pipeline._name_unpublished(Job(job.config, tomorrow, "run-2"))
    assert f"`dare-job run --date {DAY}`" in caplog.text

    monkeypatch.setattr(publish.atomic_folder, "_move_into_place", rename)
    publish.run(job)
    assert [tomorrow.previous(entity).name for entity in ENTITIES] == [f"dt={DAY}"] * 2
    assert tomorrow.interrupted_dates() == []
