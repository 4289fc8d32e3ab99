"""Plan with the section refresh: who is written under a budget, who waits and why, and identical prompts."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refresh_rows import DEC_9, JAN_9, USERS, interactions, planned, publish_old, rated, shared, written

from dare_job.errors import ConfigError
from dare_job.refresh import learned
from dare_job.refresh.learned import Coefficients
from dare_job.refresh.value import AGE_PART, RECENCY, STEP_COST, TOKENS_PER_STEP, aged, new_share, value
from dare_job.stages import plan
from dare_job.tables import stage_inputs
from dare_job.workspace import MANIFEST, done_record

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def inputs(write_tables, tmp_path_factory):
    rows = interactions()
    rows += [("twin-a", "u0-0", 5.0, DEC_9), ("twin-b", "u0-0", 5.0, DEC_9)]  # the prompt of u0
    items = [(item, f"Film {item}", None) for item in sorted({row[1] for row in rows})]
    users = [(user, [("traffic", "1000")] if user == "u3" else None) for user in USERS]
    folder = write_tables(tmp_path_factory.mktemp("input"), rows, users, items)
    return {"input": {"path": str(folder)}, "prompts": {"item": None}}


def test_identical_prompts_are_written_once_and_for_nobody_where_their_text_is_there(make_job, inputs):
    """Without limits, everything else is written too; a text that is there is shared whatever the budget."""
    record, rows = planned(make_job(inputs, day="2026-01-08"))
    twins = {"u0", "twin-a", "twin-b"}
    first = min(twins, key=lambda name: rows[name]["rank"])
    assert written(rows) == {*USERS[1:], first} and shared(rows) == dict.fromkeys(twins - {first}, first)
    found = record["refresh"]["user"]
    assert (found["copied"], found["chosen"], found["carried"]) == (2, 8, {})
    job = make_job({**inputs, "refresh": {"max_rows": 0}}, day="2026-01-10")
    publish_old(job, "2026-01-09", {"u0": {"text_key": rows["u0"]["text_key"]}})
    record, rows = planned(job)
    assert not rows["u0"]["stale"] and written(rows) == set()
    assert shared(rows) == {"twin-a": "u0", "twin-b": "u0"}
    found = record["refresh"]["user"]
    assert (found["copied"], found["chosen"], found["carried"]) == (2, 0, {"budget": 7})


@pytest.mark.parametrize("kinds", [("attribute", "global"), ("global", "attribute"), ()])
def test_of_rows_without_a_text_those_come_first_whose_kind_of_pool_drafts_well(
        make_job, write_tables, tmp_path, kinds):
    """Two users with one interaction each, one of them with an attribute: the better kind has 8 tokens per
    step, the other one. Without a record the default holds: 4."""
    rows = [(user, user, 5.0, DEC_9) for user in ("attribute", "global")]
    folder = write_tables(tmp_path / "input", rows, [("attribute", [("age", "30")])],
                          [(row[1], "Film", None) for row in rows])
    job = make_job({"input": {"path": str(folder)}, "prompts": {"item": None}, "refresh": {"max_rows": 1}},
                   day="2026-01-10")
    publish_old(job, "2026-01-09", {})
    if kinds:
        rated(job, "2026-01-09", kinds={kinds[0]: [500, 4000], kinds[1]: [500, 500]})
    _, found = planned(job)
    longest, per_step = job.config.decode.max_new_tokens, dict(zip(kinds, (8, 1), strict=False))
    for user, row in found.items():
        steps = -(-longest // per_step.get(user, TOKENS_PER_STEP))
        assert row["cost"] == row["tokens"] - longest + STEP_COST * steps
    assert not kinds or written(found) == {kinds[0]}
    assert planned(job)[1] == found


@pytest.mark.slow
def test_after_a_change_of_the_prompt_set_rows_come_first_whose_pool_drafts_well(
        make_job, inputs, monkeypatch):
    """The pools of the rows are those of the night before. Pools of another night have other members."""
    monkeypatch.setattr("dare_job.refresh.choice.SAMPLE_ONE_IN", 1 << 30)
    kept = dict.fromkeys((*USERS[:6], "twin-a", "twin-b"), {"text_interactions": 8})
    for place, (good, dated) in enumerate((("u6", "2026-01-09"), ("u7", "2026-01-09"), (None, "2026-01-08"))):
        job = make_job({**inputs, "out": f"{inputs['input']['path']}/pools-{place}",
                        "refresh": {"max_rows": 1}}, day="2026-01-10")
        publish_old(job, "2026-01-09", kept | {
            user: {"prompt_set": "another", "pool": f"pool-{user}"} for user in ("u6", "u7")})
        rated(job, "2026-01-09", date=dated, pools={f"pool-{user}": 8.0 if user == good else 1.0
                                                    for user in ("u6", "u7")})
        _, rows = planned(job)
        longest = job.config.decode.max_new_tokens
        for user in ("u6", "u7"):
            per_step = (8 if user == good else 1) if good else 4
            assert rows[user]["cost"] == rows[user]["tokens"] - longest + STEP_COST * -(-longest // per_step)
        assert rows["u5"]["cost"] == rows["u5"]["tokens"] - 10 + STEP_COST * 5  # the steps of its text
        assert good is None or written(rows) == {good}


@pytest.mark.slow
def test_sampled_texts_are_not_shared(make_job, inputs):
    record, rows = planned(make_job({**inputs, "decode": {"mode": "sample"}}, day="2026-01-10"))
    assert record["refresh"]["user"]["copied"] == 0 and written(rows) == {*USERS, "twin-a", "twin-b"}


def test_a_budget_goes_to_rows_without_text_then_to_the_most_valuable(make_job, inputs, monkeypatch):
    monkeypatch.setattr("dare_job.refresh.choice.SAMPLE_ONE_IN", 1 << 30)
    job = make_job({**inputs, "refresh": {"max_rows": 3}}, day="2026-01-10")
    publish_old(job, "2026-01-08", {user: {} for user in USERS[1:]})
    record, rows = planned(job)
    # u0 and its twins have no text and share one; u3 has traffic; u7 has the most new interactions
    assert written(rows) - {"twin-a", "twin-b"} >= {"u3"} and len(written(rows)) == 3
    assert sum(rows[name]["text_of"] is not None for name in ("u0", "twin-a", "twin-b")) == 2
    assert rows["u1"]["carried_reason"] == "budget" and rows["u1"]["unseen_interactions"] == 1
    assert record["refresh"]["user"]["carried"] == {"budget": 5}
    curve = record["refresh"]["curve"]
    assert curve["chosen_rows"] == 3 and curve["rows"][-1] == 8
    assert curve["value"] == sorted(curve["value"])
    again = planned(job)[1]
    assert again == rows


def test_what_holds_a_row_back_and_what_does_not(make_job, inputs):
    job = make_job({**inputs, "refresh": {
        "max_rows": 0, "min_new_interactions": 3, "min_days": 2, "max_days": 30}}, day="2026-01-10")
    publish_old(job, "2026-01-09", {
        "u1": {"generated_dt": "2025-12-01"},  # overdue: written whatever the budget
        "u2": {"generated_dt": "2026-01-05"},  # two new interactions
        "u5": {"generated_dt": "2026-01-09"},  # one day old
        "u6": {"failures": 2, "failed_dt": "2026-01-08"},  # waits four days
        "u7": {"generated_dt": "2026-01-05", "text_interactions": 99}})  # a clock ran backwards
    _, rows = planned(job)
    reasons = {name: rows[name]["carried_reason"] for name in ("u0", "u1", "u2", "u5", "u6", "u7")}
    assert reasons == {"u0": "budget", "u1": None, "u2": "few new interactions", "u5": "written recently",
                       "u6": "failed before", "u7": "few new interactions"}
    assert rows["u7"]["unseen_interactions"] == 0
    assert stage_inputs.has_rows_to_write(plan.run(job))


@pytest.mark.slow
def test_learned_coefficients_are_the_value(make_job, inputs, tmp_path):
    """By age alone, the oldest texts are worth most; another file's content makes another plan."""
    file = tmp_path / "value.json"
    old = {user: {"generated_dt": f"2026-01-0{9 - number}"} for number, user in enumerate(USERS)}
    job = make_job({**inputs, "refresh": {"max_share": 0.5, "priority": str(file)}}, day="2026-01-10")
    publish_old(job, "2026-01-09", old)
    with pytest.raises(ConfigError, match="refresh.priority: .*value.json cannot be read"):
        plan.run(job)
    file.write_text(learned.document(Coefficients(0.0, 0.0, 1.0, 0.0, 1.0), {}))
    _, rows = planned(job)
    days = {user: 10 - int(old[user]["generated_dt"][-2:]) for user in USERS}
    for user in USERS:
        expected = (1001 if user == "u3" else 1) ** 0.5 * aged(days[user])
        assert rows[user]["value"] == pytest.approx(expected, rel=1e-6)
    first = done_record(job.space.stage("plan"))["fingerprint"]
    file.write_text(learned.document(Coefficients(1.0, 0.0, 1.0, 0.0, 1.0), {}))
    planned(job)
    assert done_record(job.space.stage("plan"))["fingerprint"] != first


@pytest.mark.slow
def test_an_input_that_forgets_old_interactions_hides_no_new_ones(make_job, write_tables, tmp_path):
    """As many interactions as when the text was written, of which all or none are later than its date. The
    date ends when it does in the zone of the input."""
    rows = [(user, f"{user}-{place}", 5.0, JAN_9 + hours * 3600 + place) for place in range(3)
            for user, hours in (("all", -9), ("none", -10))]
    folder = write_tables(tmp_path / "input", rows, [], [(row[1], f"Film {row[1]}", None) for row in rows])
    job = make_job({"input": {"path": str(folder), "day_boundary": "Asia/Tokyo"}, "prompts": {"item": None},
                    "refresh": {"min_new_interactions": 1}}, day="2026-01-10")
    publish_old(job, "2026-01-08", {user: {"text_interactions": 3} for user in ("all", "none")})
    _, found = planned(job)
    assert {name: (row["unseen_interactions"], row["carried_reason"]) for name, row in found.items()} == {
        "all": (3, None), "none": (0, "few new interactions")}


@pytest.mark.release
def test_a_share_and_tokens_and_each_priority(make_job, inputs):
    old = {user: {"generated_dt": f"2026-01-0{9 - number}"} for number, user in enumerate(USERS)}
    for priority, first in (("oldest", "u7"), ("new_interactions", "u7"), ("random", None)):
        job = make_job({**inputs, "out": f"{inputs['input']['path']}/{priority}",
                        "refresh": {"max_share": 0.15, "priority": priority}}, day="2026-01-10")
        publish_old(job, "2026-01-09", {**old, "twin-a": {"generated_dt": "2026-01-09"},
                                        "twin-b": {"generated_dt": "2026-01-09"}})
        _, rows = planned(job)
        assert len(written(rows)) == 1 and first in (None, *written(rows))


@pytest.mark.slow
def test_bad_traffic_clocks_that_run_backwards_and_a_budget_that_is_too_small(
        make_job, write_tables, tmp_path, monkeypatch):
    """Impressions that are no number, or infinite, count as if there were none; negative ones as 0."""
    monkeypatch.setattr("dare_job.refresh.choice.SAMPLE_ONE_IN", 1 << 30)
    rows = [(user, f"{user}-{place}", 5.0, JAN_9 + place) for user in ("bad", "less", "none", "old")
            for place in range(3)]
    users = [(user, [("traffic", traffic)])
             for user, traffic in (("bad", "many"), ("less", "-5"), ("none", "Infinity"))]
    folder = write_tables(tmp_path / "input", rows, users, [(row[1], f"Film {row[1]}", None) for row in rows])
    job = make_job({"input": {"path": str(folder)}, "prompts": {"item": None}, "refresh": {"max_rows": 1}},
                   day="2026-01-10")
    publish_old(job, "2026-01-09", {"old": {"generated_dt": "2026-02-01", "text_interactions": 99}})
    _, found = planned(job)
    assert {name: row["value"] for name, row in found.items()} == pytest.approx(
        {"bad": 2.0, "less": 1.0, "none": 2.0, "old": aged(0) / AGE_PART})
    assert found["old"]["unseen_interactions"] == 0 == found["old"]["age_days"]
    assert len(written(found)) == 1 and written(found) < {"bad", "none"}
    assert [row["carried_reason"] for row in found.values()].count("budget") == 3


@pytest.mark.slow
@pytest.mark.parametrize("by_attributes", [True, False])
def test_of_users_with_equal_numbers_the_one_whose_history_moved_comes_first(
        make_job, write_tables, tmp_path, monkeypatch, by_attributes):
    """Half of each history is new.

    The vectors of the items are given. They count only where each value of an attribute has one item.
    """
    monkeypatch.setattr("dare_job.refresh.choice.SAMPLE_ONE_IN", 1 << 30)
    items = {"red": [1.0, 0.0], "redder": [2.0, 0.0], "blue": [0.0, 1.0], "bluer": [0.0, 2.0]}
    if by_attributes:
        vectors, colors = [[1.0, 0.0]] * 4, {"redder": "red", "bluer": "blue"}
    else:
        vectors, colors = items.values(), {}
    attributes = {name: [("color", colors.get(name, name))] for name in items}
    seen = {"same": ("red", "redder"), "moves": ("red", "blue"), "strange": ("red", "without vector")}
    rows = [(user, item, 5.0, JAN_9 + place) for user, pair in seen.items()
            for place, item in enumerate(pair)]
    folder = write_tables(tmp_path / "input", rows, [], [
        (name, f"Film {name}", attributes.get(name)) for name in (*items, "without vector")])
    table = {"entity_id": list(items), "vector": pa.array(vectors, pa.list_(pa.float32()))}
    pq.write_table(pa.table(table), tmp_path / "items.parquet")
    job = make_job({"input": {"path": str(folder)}, "prompts": {"item": None}, "refresh": {"max_rows": 1},
                    "embed": {"vectors": {"item": str(tmp_path / "items.parquet")}}}, day="2026-01-10")
    publish_old(job, "2026-01-09", {user: {} for user in seen})
    _, found = planned(job)
    assert written(found) == {"moves"}
    moved = {"same": 0.0, "moves": 1 - RECENCY / (1 + RECENCY**2) ** 0.5, "strange": 0.0}
    for user, distance in moved.items():
        expected = value(0, new_share(1, 2), 1, 0, distance)
        assert found[user]["value"] == pytest.approx(expected, abs=2e-3)
    assert job.space.stage("embed").exists() != by_attributes  # nothing is trained where attributes suffice


@pytest.mark.slow
def test_a_text_that_nobody_knows_the_interactions_of_counts_as_one_that_knows_nothing_of_the_history(
        make_job, inputs, monkeypatch):
    """As texts of earlier versions and of other systems: they would never be written again by age alone."""
    monkeypatch.setattr("dare_job.refresh.choice.SAMPLE_ONE_IN", 1 << 30)
    job = make_job({**inputs, "refresh": {"max_rows": 1}}, day="2026-01-10")
    others = {name: {"text_interactions": 8} for name in (*USERS, "twin-a", "twin-b")}
    publish_old(job, "2026-01-09", {**others, "u5": {"text_interactions": None},
                                    "u6": {"text_interactions": 8, "generated_dt": "2025-12-20"}})
    _, rows = planned(job)
    assert (rows["u5"]["unseen_interactions"], rows["u5"]["distance"]) == (None, None)  # as published
    assert rows["u5"]["value"] == pytest.approx(value(0, 1, 1, 0, 1.0))
    assert rows["u7"]["value"] == pytest.approx(aged(1) / AGE_PART)
    assert written(rows) == {"u5"} and rows["u6"]["value"] > rows["u7"]["value"]


@pytest.mark.slow
def test_texts_of_another_model_or_prompt_set_wait_for_nothing_and_lose_all_their_value(
        make_job, inputs, monkeypatch):
    """Row by row: the manifest of the night before, whose budget left such texts, names today's model."""
    monkeypatch.setattr("dare_job.refresh.choice.SAMPLE_ONE_IN", 1 << 30)
    job = make_job({**inputs, "refresh": {"min_days": 9, "min_new_interactions": 9}}, day="2026-01-10")
    publish_old(job, "2026-01-09", {
        "u4": {}, "u5": {"text_key": "of another model"}, "u6": {"prompt_set": "another"},
        "u7": {"prompt_set": job.config.prompt_set("user").version_hash}})
    _, rows = planned(job)
    assert {name: rows[name]["carried_reason"] for name in ("u4", "u5", "u6", "u7")} == {
        "u4": "few new interactions", "u5": None, "u6": None, "u7": "few new interactions"}
    interactions = {name: rows[name]["value"] ** 2 - 1 for name in ("u5", "u6")}  # nothing of the text holds
    assert interactions == pytest.approx({"u5": 6, "u6": 7}) and rows["u7"]["value"] < 1


@pytest.mark.release
def test_sampled_rows_are_written_whatever_holds_others_back_and_tokens_are_counted(
        make_job, inputs, monkeypatch):
    monkeypatch.setattr("dare_job.refresh.choice.SAMPLE_ONE_IN", 1)
    settings = {**inputs, "refresh": {"min_days": 9, "min_new_interactions": 9}}
    job = make_job({**settings, "out": f"{inputs['input']['path']}/sampled"}, day="2026-01-10")
    publish_old(job, "2026-01-09", {user: {"prompt_tokens": 100} for user in USERS})
    _, rows = planned(job)
    assert written(rows) | set(shared(rows)) >= set(USERS) - {"u0"} and "u0" in shared(rows)
    assert all(rows[user]["sampled"] for user in USERS[1:])
    assert {rows[user]["carried_reason"] for user in USERS} == {None}
    job = make_job({**inputs, "out": f"{inputs['input']['path']}/tokens", "refresh": {"max_tokens": 2500}},
                   day="2026-01-10")
    old = {name: {"prompt_tokens": 1000} for name in (*USERS, "twin-a", "twin-b")}
    publish_old(job, "2026-01-09", {**old, "u6": {"prompt_tokens": 1}, "u7": {
        "prompt_tokens": 1000, "tokens": 90, "prompt_set": "another"}})
    _, rows = planned(job)
    others = {name: row["tokens"] for name, row in rows.items() if name not in ("u6", "u7")}
    assert set(others.values()) == {1010} and len(written(rows)) >= 2
    # a prompt that has grown, and that of another prompt set, have the tokens of tonight's characters
    assert rows["u6"]["tokens"] == len(rows["u6"]["prompt"]) // 4 + 10
    longest = job.config.decode.max_new_tokens  # the last run has no mean
    assert rows["u7"]["tokens"] == len(rows["u7"]["prompt"]) // 4 + longest


@pytest.mark.slow
def test_without_a_budget_the_whole_sample_is_written_whatever_holds_the_other_rows_back(
        make_job, inputs, monkeypatch):
    monkeypatch.setattr("dare_job.refresh.choice.SAMPLE_ONE_IN", 2)
    job = make_job({**inputs, "refresh": {"min_days": 9}}, day="2026-01-10")
    publish_old(job, "2026-01-09", {name: {} for name in (*USERS, "twin-a", "twin-b")})
    _, rows = planned(job)
    sample = {name for name, row in rows.items() if row["sample"] is not None}
    twins = {"u0", "twin-a", "twin-b"}  # one prompt: the first of them in the sample writes for all
    first = min(sample & twins, key=lambda name: rows[name]["sample"])
    assert sample - twins and written(rows) == sample - twins | {first}
    assert shared(rows) == dict.fromkeys(twins - {first}, first)
    assert {rows[name]["carried_reason"] for name in {*rows} - sample - twins} == {"written recently"}


@pytest.mark.slow
def test_the_sample_takes_its_share_of_a_budget_and_the_rest_of_it_waits(make_job, inputs, monkeypatch):
    """Every second row is in the sample, and one in two of the rows that the budget covers."""
    monkeypatch.setattr("dare_job.refresh.choice.SAMPLE_ONE_IN", 2)
    job = make_job({**inputs, "refresh": {"max_rows": 2}}, day="2026-01-10")
    publish_old(job, "2026-01-09", {name: {} for name in (*USERS, "twin-a", "twin-b")})
    record, rows = planned(job)
    sample = {name for name in USERS[1:] if rows[name]["sample"] is not None}  # not a copy of another row
    sampled = {name for name, row in rows.items() if row["sampled"]}
    assert len(sample) > 1 and len(sampled) == 1 < len(written(rows)) == 2 and sampled <= written(rows)
    assert min(rows[name]["sample"] for name in sample) == rows[sampled.pop()]["sample"]
    others = [name for name, row in rows.items() if not row["sampled"]]
    assert min(others, key=lambda name: rows[name]["rank"]) in written(rows)
    left = {rows[name]["carried_reason"] for name in sample - written(rows) if not rows[name]["text_of"]}
    assert left <= {"budget"} and record["refresh"]["sample_end"] > min(
        rows[name]["sample"] for name in sample)


def test_a_text_of_the_input_whose_date_cannot_be_read_counts_as_one_without_a_date(
        make_job, inputs, tmp_path, caplog):
    """Nor does a date after 2038, whose end in seconds needs more than 32 bits, end the plan."""
    folder = tmp_path / "texts" / "entity=user"
    folder.mkdir(parents=True)
    dates = {"u4": "05.12.2025", "u5": None, "u6": "2040-01-01", "u7": "2026-01-05T10:00:00"}
    rows = [{"entity_id": name, "knowledge": "text", "generated_dt": day, "text_interactions": 1}
            for name, day in dates.items()]
    pq.write_table(pa.Table.from_pylist(rows), folder / "part-0.parquet")
    job = make_job({**inputs, "input": {**inputs["input"], "knowledge": str(folder.parent)},
                    "refresh": {"max_rows": 3}}, day="2026-01-10")
    _, found = planned(job)
    assert {name: (found[name]["age_days"], found[name]["unseen_interactions"]) for name in dates} == {
        "u4": (20, 4), "u5": (20, 5), "u6": (0, 6), "u7": (5, 7)}
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text for text in warnings if "generated_dt" in text] == [
        f"{folder}: generated_dt = '05.12.2025' is not a date; write dates as YYYY-MM-DD. Such a text counts "
        "as one without a date"]


@pytest.mark.slow
def test_what_failed_is_tried_again_with_another_prompt_set(make_job, inputs):
    failing = {"u6": {"failures": 6, "failed_dt": "2026-01-09"}}
    job = make_job({**inputs, "refresh": {"max_rows": 99}}, day="2026-01-10")
    publish_old(job, "2026-01-09", failing)
    assert planned(job)[1]["u6"]["carried_reason"] == "failed before"
    manifest = job.space.knowledge("user", "2026-01-09") / MANIFEST
    record = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(record | {"prompts": {"user": "another", "item": "another"}}))
    job = make_job({**inputs, "refresh": {"max_rows": 98}}, day="2026-01-10")
    assert planned(job)[1]["u6"]["carried_reason"] is None
