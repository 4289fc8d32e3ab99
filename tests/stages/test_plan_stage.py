"""Plan: who is stale, with which prompt, and what a broken row costs."""

import hashlib
import json
import shutil

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dare_job import pipeline, schemas
from dare_job.data.input import preview_rows
from dare_job.errors import DataError, ThresholdError
from dare_job.spark import workers
from dare_job.stages import embed, group, plan, route
from dare_job.tables import plan_table, published, stage_inputs
from dare_job.workspace import MANIFEST

DAY = 86_400
JAN_2 = 1_767_312_000  # 2026-01-02 00:00 UTC

INTERACTIONS = [("ann", "i1", 5.0, JAN_2 - 3), ("ann", "i2", 1.0, JAN_2 - 2),
                ("ann", "i3", 4.0, JAN_2 + DAY - 1), ("bob", "i3", 4.0, JAN_2 + DAY),
                ("eve", "ghost", 4.0, JAN_2), ("fan", "long", 5.0, JAN_2 - 3), ("fan", "short", 5.0, JAN_2)]
USERS = [("ann", [("age", "25-34")]), ("bob", None), ("fan", None), ("zoë ☃", None)]
ITEMS = [("i1", "Toy Story (1995)", [("genre", "Comedy")]), ("i2", 'Say "Cheese"', None),
         ("i3", "Les Misérables", None), ("i4", None, [("genre", "Drama")]),
         ("long", "x" * 15_000, [("genre", "y" * 15_000)]), ("short", "Solaris", None)]


def rows(job, entity):
    folder = job.space.stage("plan") / f"entity={entity}"
    return {row["entity_id"]: row for row in pq.read_table(folder).to_pylist()}


def publish(job, entity, planned, day, **changes):
    """A snapshot of an earlier date with the text keys of a plan; the other entity type's at least empty."""
    table = [{"entity_id": row["entity_id"], "knowledge": "text", "text_key": row["text_key"],
              "prompt_sha256": row["prompt_sha256"], "error": None, "run_id": "old",
              **changes.get(row["entity_id"], {})} for row in planned]
    for name in schemas.ENTITIES:
        folder = job.space.knowledge(name, day)
        if name == entity or not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            written = pa.Table.from_pylist(table if name == entity else [], schema=schemas.KNOWLEDGE)
            pq.write_table(written, folder / "part-0.parquet")
            (folder / MANIFEST).write_text(json.dumps({"date": day, "run_id": "old"}))


def stale(job, entity="user"):
    return {id_ for id_, row in rows(job, entity).items() if row["stale"]}


@pytest.fixture(scope="module")
def inputs(write_tables, tmp_path_factory):
    folder = write_tables(tmp_path_factory.mktemp("input"), INTERACTIONS, USERS, ITEMS)
    return {"input": {"path": str(folder)}}


@pytest.fixture(scope="module")
def planned(job_in, inputs, tmp_path_factory):
    """A job whose plan is there, in a folder named like a pattern, and what the stage returned."""
    job = job_in(tmp_path_factory.mktemp("planned") / "o[1]{x}", inputs)
    return job, plan.run(job)


@pytest.fixture
def first(planned, make_job, inputs):
    """A copy of that job and its plan, to go on from."""
    job = make_job(inputs)
    shutil.copytree(planned[0].space.out, job.space.out)
    return job


def test_every_known_entity_has_a_row_and_the_future_has_none(planned):
    job, record = planned
    users, items = rows(job, "user"), rows(job, "item")
    assert {id_: row["interactions"] for id_, row in users.items()} == {
        "ann": 3, "bob": 0, "eve": 1, "fan": 2, "zoë ☃": 0}
    assert {id_: row["interactions"] for id_, row in items.items()} == {
        "i1": 1, "i2": 1, "i3": 1, "i4": 0, "ghost": 1, "long": 1, "short": 1}
    assert users["bob"]["error"] == users["eve"]["error"] == "empty history"
    assert items["i4"]["error"] == items["ghost"]["error"] == "empty title"
    assert items["i4"]["prompt"] is None and items["i4"]["text_key"] is None
    assert record["user"] == {"rows": 5, "stale": 5, "errors": 3, "errors_before": 0}
    assert record["item"]["errors"] == 2
    assert record["input"]["up_to_date"] == 6 and record["input"]["titled"] == 5
    prompt = users["ann"]["prompt"]
    places = [prompt.index(title) for title in ("Les Misérables", 'Say "Cheese"', "Toy Story (1995)")]
    assert places == sorted(places) and "25-34" in prompt  # newest first
    assert users["ann"]["prompt_sha256"] == hashlib.sha256(prompt.encode()).hexdigest()
    assert dict(items["i1"]["attributes"]) == {"genre": "Comedy"}
    written = pq.read_table(job.space.stage("plan") / "entity=user")
    assert written.select(schemas.PLAN.names).cast(schemas.PLAN).schema.equals(schemas.PLAN)


def test_an_endless_title_costs_no_user_its_prompt(planned):
    prompt = rows(planned[0], "user")["fan"]["prompt"]
    assert "x" * 199 + "…" in prompt and "Solaris" in prompt and len(prompt) < 2000
    assert "x" * 999 + "…" in rows(planned[0], "item")["long"]["prompt"]


def test_stages_in_a_folder_named_like_a_pattern(planned):
    job = planned[0]
    assert embed.run(job)["user"] and group.run(job)["user"]["rows"] == 5
    assert route.run(job)["user"]["rows"] == 5


def test_only_what_changed_is_stale(first, make_job, inputs):
    """Settings that change no text make none stale."""
    old = rows(first, "user")
    gone = {"entity_id": "gone", "text_key": "key", "prompt_sha256": "sha"}
    publish(first, "user", [old["ann"], gone, old["eve"], old["zoë ☃"]], "2026-01-02",
            eve={"knowledge": None, "error": "empty history"}, **{"zoë ☃": {"error": "out of memory"}})
    publish(first, "item", [rows(first, "item")[id_] for id_ in ("i1", "i2")], "2026-01-02",
            i2={"error": "out of memory"})

    same = make_job({**inputs, "decode": {"nodes": 64, "batch_size": 2}, "seed": 5}, day="2026-01-03")
    record = plan.run(same)
    # eve still has no history, and bob had no row; the error of zoë was another one
    assert stale(same) == {"bob", "fan", "zoë ☃"}
    assert record["user"] == {"rows": 6, "stale": 3, "errors": 2, "errors_before": 1}
    # the text of i2 had failed
    assert stale(same, "item") == {"i2", "i3", "i4", "ghost", "long", "short"}
    kept = rows(same, "user")["gone"]
    assert (kept["stale"], kept["prompt"], kept["text_key"], kept["interactions"]) == (False, None, "key", 0)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("settings", "model", "both"), [
    ({}, "model-2", True), ({"history": {"max_items": 1}}, "model-1", False)])
def test_another_model_makes_all_stale_and_another_history_the_users(
        first, make_job, inputs, settings, model, both):
    publish(first, "user", [rows(first, "user")["ann"]], "2026-01-02")
    publish(first, "item", [rows(first, "item")["i1"]], "2026-01-02")
    second = make_job({**inputs, **settings}, day="2026-01-03", model=model)
    plan.run(second)
    assert "ann" in stale(second) and ("i1" in stale(second, "item")) is both


@pytest.mark.slow
def test_prompts_of_ones_own_from_a_jinja_file(make_job, inputs, tmp_path, job_log):
    """It is the template of its side; a changed one makes that side stale, and no other."""
    file = tmp_path / "own.jinja"
    file.write_text("Last: {{ history[-1].title }}\n"
                    "{% if 'age' in attributes %}Age {{ attributes.age }}{% endif %}")
    settings = {**inputs, "prompts": {"user": str(file), "item": "once", "domain": "books"}}
    first = make_job(settings)
    plan.run(first)
    assert rows(first, "user")["ann"]["prompt"] == "Last: Les Misérables\nAge 25-34"
    assert rows(first, "item")["i1"]["prompt"].startswith("Summarise this book")
    publish(first, "user", [rows(first, "user")["ann"]], "2026-01-02")
    publish(first, "item", [rows(first, "item")["i1"]], "2026-01-02")
    (line,) = [line for line in job_log if "will write nonsense" in line]
    assert f"prompts.user = {file}, prompts.item = once: the embedded model knows only the" in line

    file.write_text("Seen: {{ history[-1].title }}")
    changed = make_job(settings, day="2026-01-03")
    plan.run(changed)
    assert "ann" in stale(changed) and "i1" not in stale(changed, "item")


def test_the_embedded_models_wording_is_warned_of_with_another_model(make_job, inputs, job_log):
    plan._warn_of_wording(make_job({**inputs, "model": {"name": "some/model"}, "prompts": {"item": "kar"}}))
    (line,) = [line for line in job_log if "made for the embedded model" in line]
    assert line.startswith("prompts.user = sample: ")
    assert "not for some/model; choose one of brief, kar, " in line
    job_log.clear()
    plan._warn_of_wording(make_job(inputs))
    assert not job_log


def test_an_input_that_leaves_most_without_a_prompt_is_warned_of(make_job, write_tables, tmp_path, job_log):
    """As where one table has ids with leading zeros and the other has not: all users had no interactions."""
    folder = write_tables(tmp_path / "in", [("bob", "007", 4.0, JAN_2)], [], [("7", "Seven", None)])
    plan.run(make_job({"input": {"path": str(folder)}}))
    for message in ("1 of 1 users get no text: they have no interaction before the end of ",
                    "1 of 2 items get no text: the table items lacks them, or their title is empty"):
        assert any(line.startswith(message) for line in job_log), job_log


@pytest.mark.slow
def test_a_second_run_does_nothing_and_a_changed_input_or_text_of_before_is_noticed(
        make_job, write_input, tmp_path, monkeypatch):
    """Also where the same folder is written otherwise."""
    job = make_job({"input": {"path": str(write_input(INTERACTIONS, USERS, ITEMS))}})
    came_with = tmp_path / "input" / "knowledge" / "entity=user" / "dt=2026-01-01"
    came_with.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([{"entity_id": "ann", "knowledge": "text"}]), came_with / "a.parquet")
    done = plan.run(job)
    files = {file: file.stat().st_mtime_ns for file in job.space.work.rglob("*.parquet")}
    assert plan.run(job) == done
    monkeypatch.chdir(tmp_path)
    assert plan.run(make_job({"input": {"path": "input"}})) == done
    assert {file: file.stat().st_mtime_ns for file in job.space.work.rglob("*.parquet")} == files
    written_otherwise = make_job({"input": {"path": "input"}, "out": "out"})
    assert stage_inputs.require_plan(written_otherwise)["before"]["user"] == [str(came_with), None]
    came_with.rename(came_with.with_name("dt=2025-12-31"))
    with pytest.raises(DataError, match=r"text of users \(now .*dt=2025-12-31.*, before .*dt=2026-01-01"):
        stage_inputs.require_plan(written_otherwise)
    write_input([*INTERACTIONS, ("new", "i1", 3.0, JAN_2)], USERS, ITEMS)
    assert plan.run(job)["user"]["rows"] == 6
    assert "Toy Story" in rows(job, "user")["new"]["prompt"]


def test_text_of_another_table_version_is_refused_by_name(make_job, write_input):
    job = make_job({"input": {"path": str(write_input(INTERACTIONS, USERS, ITEMS))}})
    publish(job, "user", [], "2026-01-01")
    (job.space.knowledge("user", "2026-01-01") / MANIFEST).write_text(json.dumps({"schema_version": 2}))
    with pytest.raises(DataError, match="dt=2026-01-01 has table version 2, .* reads only version 3"):
        plan.run(job)


@pytest.mark.slow
def test_an_empty_input_is_not_kept_and_the_corrected_one_goes_on(make_job, write_input):
    """Nothing of the date is there, as if the command had not run."""
    titled, day_3 = [("i1", "Toy Story", None)], JAN_2 + DAY
    job = make_job({"input": {"path": str(write_input([], USERS, titled))}})
    for tables, message in (
            ([[], USERS, titled], "has no interactions \\(4 users, 1 items"),
            ([[("ann", "i1", 5.0, day_3), ("ann", "i1", 5.0, day_3 + 1)], USERS, titled],
             "no interactions up to 2026-01-02: its 2 interactions are from 2026-01-03 00:00:00 UTC to "
             "2026-01-03 00:00:01 UTC"),
            ([[("ann", "i1", 5.0, JAN_2)], USERS, [("i1", " ", None)]], "no item with a title")):
        write_input(*tables)
        with pytest.raises(DataError, match=message):
            plan.run(job)
        assert not job.space.stage("plan").exists() and not job.space.stage("input").exists()
    write_input([("ann", "i1", 5.0, JAN_2)], USERS, titled)
    assert plan.run(job)["user"]["stale"] == 4


@pytest.mark.slow
def test_an_input_far_smaller_than_that_of_the_previous_date_stops_the_run(make_job, write_input):
    path = write_input([("ann", "i1", 5.0, JAN_2)] * 49, USERS, ITEMS)
    job, lax = (make_job({"input": {"path": str(path)}, "limits": {"min_input_share": share}})
                for share in (0.5, 0.49))
    publish(job, "user", [], "2026-01-01")
    manifest = job.space.knowledge("user", "2026-01-01") / MANIFEST
    counts = {"interactions": 100, "users": len(USERS), "items": 13}
    manifest.write_text(json.dumps({"input": counts}))
    write_input([], USERS, ITEMS)
    with pytest.raises(DataError, match="; 2026-01-01 had 100 interactions, 4 users, 13 items"):
        plan.run(job)
    write_input([("ann", "i1", 5.0, JAN_2)] * 49, USERS, ITEMS)
    with pytest.raises(ThresholdError, match="only 49 interactions .before: 100. and 6 items .before: 13.: "
                                             "less than limits.min_input_share = 0.5 of the input of 2026"):
        plan.run(job)
    assert not job.space.stage("input").exists()
    manifest.write_text(json.dumps({"input": counts | {"items": 12}}))
    plan.run(lax)
    with pytest.raises(ThresholdError, match="only 49 interactions"):  # although the input has been read
        plan.run(job)
    manifest.write_text(json.dumps({}))  # written by an earlier version
    plan.run(job)


def test_a_run_without_stale_rows_publishes_without_vectors_pools_and_workers(
        planned, make_job, inputs, monkeypatch):
    job = make_job(inputs)
    for entity in schemas.ENTITIES:
        known = rows(planned[0], entity).values()
        publish(job, entity, known, "2026-01-01", **{
            row["entity_id"]: {"knowledge": None, "error": row["error"]} for row in known if row["error"]})
    monkeypatch.setattr(workers, "map_in_dedicated_workers", lambda *given: pytest.fail("a worker started"))
    summary = pipeline.run(job)
    assert (summary["written"], summary["errors"], summary["skipped_fresh"]) == (0, 5, 7)
    assert {folder.name for folder in job.space.work.iterdir() if folder.is_dir()} == {
        "input", "plan", "generate", "gate", "logs"}
    folders = [job.space.knowledge(entity) for entity in schemas.ENTITIES]
    counts = [published.read_manifest(folder)["counts"] for folder in folders]
    assert [(each["rows"], each["errors_before"]) for each in counts] == [(5, 3), (7, 2)]
    is_text = pc.field("knowledge") == "text"
    assert [published.dataset(folder).count_rows(filter=is_text) for folder in folders] == [2, 5]
    before = {file: file.stat().st_mtime_ns for file in job.space.out.rglob("*.parquet")}
    assert pipeline.run(job)["written"] == 0
    assert {file: file.stat().st_mtime_ns for file in job.space.out.rglob("*.parquet")} == before


def test_todo_takes_the_first_stale_rows_that_have_a_prompt(planned):
    found = plan_table.rows_to_generate(planned[0], "item")
    assert found["entity_id"].to_pylist() == ["i1", "i2", "i3", "long", "short"]
    assert plan_table.rows_to_generate(planned[0], "item", 2)["entity_id"].to_pylist() == ["i1", "i2"]


def test_a_bad_input_leaves_nothing_and_stages_say_what_to_run_first(make_job, write_input):
    folder = write_input([("ann", "i1", float("inf"), JAN_2)])
    job = make_job({"input": {"path": str(folder)}})
    with pytest.raises(DataError, match="1 of 1 rows of interactions"):
        plan.run(job)
    assert not job.space.stage("plan").exists() and not job.space.stage("input").exists()
    with pytest.raises(DataError, match="run `dare-job run --from plan --date 2026-01-02` with "
                                        "the same options first"):
        embed.run(job)


@pytest.mark.spark
@pytest.mark.slow
def test_the_zone_of_the_day_boundary_decides_which_events_count_in_runs_and_previews(
        make_job, write_input):
    last = JAN_2 + 23 * 3600  # midnight in Berlin
    events = [("ann", "i1", 4.0, last - 1), ("ann", "i2", 4.0, last), ("ann", "i3", 4.0, last + 3600)]
    folder = write_input(events, [], [(f"i{n}", f"Film {n}", None) for n in (1, 2, 3)])
    known = {"Europe/Berlin": ["Film 1"], "America/New_York": ["Film 1", "Film 2", "Film 3"]}
    for zone, titles in known.items():
        job = make_job({"input": {"path": str(folder), "day_boundary": zone}})
        plan.run(job)
        (row,) = rows(job, "user").values()
        assert row["interactions"] == len(titles)
        assert [f"Film {n}" for n in (1, 2, 3) if f"Film {n}" in row["prompt"]] == titles
        chosen = preview_rows.choose(job.config, job.space.day, 1)
        assert [item for item, _ in chosen.histories["ann"]] == [f"i{title[-1]}" for title in titles]
        (preview,) = [row for row in preview_rows.prompts(chosen, job.config) if row.entity == "user"]
        assert preview.prompt == row["prompt"]


@pytest.mark.slow
@pytest.mark.spark
def test_a_late_rerun_with_later_events_plans_the_same_prompts(make_job, write_input):
    settings = {"input": {"day_boundary": "Asia/Tokyo"}}
    end = JAN_2 + 15 * 3600
    events = [("ann", "i1", 4.0, end - 1)]
    items = [("i1", "Film 1", None), ("i2", "Film 2", None)]
    planned = []
    for later in ([], [("ann", "i2", 4.0, end), ("bob", "i2", 4.0, end)]):
        settings["input"]["path"] = str(write_input([*events, *later], [("ann", None)], items))
        job = make_job(settings)
        plan.run(job)
        planned.append(rows(job, "user")["ann"])
    assert planned[0] == planned[1]
