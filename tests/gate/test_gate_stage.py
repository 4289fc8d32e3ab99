"""The stage gate on hand-made tables: limits, messages, the table of failing rows, what publish accepts."""

import json
from datetime import date
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from gate_tables import BEFORE, failed, listed, night, text, texts

from dare_job import errors
from dare_job.config.settings import JobConfig
from dare_job.generate import shard_plan
from dare_job.job import Job
from dare_job.publish.gate import findings, scan
from dare_job.publish.gate.findings import CHECKS, worst
from dare_job.schemas import ENTITIES, KNOWLEDGE
from dare_job.stages import gate
from dare_job.tables import stage_inputs
from dare_job.workspace import Workspace

LOOP = {"token_ids": [1, 2] * 20, "tokens": 40}


@pytest.fixture
def job_of(tmp_path):
    """Factory: a job on a folder of the test, settings by section. It needs no Spark."""
    def make(**sections) -> Job:
        config = JobConfig.model_validate({"out": str(tmp_path / "out"), **sections})
        job = Job(config, Workspace(Path(config.out), date(2026, 1, 2)), "run-1")
        job.__dict__["model_hash"] = "model-1"
        return job
    return make


def refused(job: Job) -> str:
    with pytest.raises(errors.ThresholdError) as found:
        gate.run(job)
    return str(found.value)


BAD = {
    "empty": ({"words": " \n"}, "texts are empty"),
    "short": ({"tokens": 7}, "texts are too short"),
    "cut_off": ({"finish_reason": "length"}, "texts are cut off"),
    "loop": (LOOP, "texts loop"),
    "unprintable": ({"words": "bro\ufffdken"}, "texts contain unprintable characters"),
    "copied": ({"copied_words": 3}, "texts copy their prompt"),
    "refusal": ({"words": "As an AI, I cannot watch films."}, "texts refuse"),
    "wrong_script": ({"words": "用户喜欢的电影类型是戏剧和科幻"},
                     "texts are in another script than the prompts"),
    "thinking": ({"words": "The list has dramas.</think> The viewer likes dramas."},
                 "texts contain a thinking tag"),
    "shell": ({"words": "Preferences: none"}, "texts have no content"),
}


@pytest.mark.parametrize("check", BAD)
def test_a_share_at_its_limit_passes_and_one_row_more_does_not(job_of, check):
    """Texts that are the same answer the same prompt here."""
    columns, words = BAD[check]
    job = job_of(gates={"max_share": {check: 0.05}})
    at_limit = texts(95) + texts(5, "bad", **columns)
    found = gate.run(night(job, at_limit))["user"]
    assert (found[check]["rows"], found[check]["of"], found[check]["value"]) == (5, 100, 0.05)
    assert not any(finding["failed"] for finding in found.values())
    assert [row[:3] for row in listed(job)] == [("user", f"bad{n}", check) for n in range(5)]

    message = refused(night(job, texts(94) + texts(6, "bad", **columns), fingerprint="g2"))
    assert f"users: 6 of 100 {words} (6.00%), more than gates.max_share.{check} = 0.05" in message
    assert "first: bad0, bad1, bad2, bad3, bad4." in message and "bad5" not in message
    assert f"The rows are in {job.space.stage('gate') / findings.NAME}" in message
    assert "raise the setting and run again" in message
    assert len(listed(job)) == 6

    off = job_of(gates={"max_share": {check: None}})
    found = gate.run(off)["user"][check]
    assert (found["rows"], found["limit"], found["failed"]) == (6, None, False)


def test_texts_by_a_schema_are_counted_where_they_are_cut_off_and_may_be_short_and_equal(job_of):
    job = job_of(decode={"schema": {"user": {"json": {"type": "object"}}}})
    rows = texts(94, words="{}", tokens=3) + texts(6, "cut", words='{"a', finish_reason="length")
    message = refused(night(job, rows))
    assert ("users: 6 of 100 texts do not have the form of decode.schema (6.00%), more than "
            "gates.max_share.schema = 0.05") in message and message.count(" of 100 ") == 1
    assert {row[1] for row in listed(job) if row[2] == "schema"} == {f"cut{n}" for n in range(6)}
    assert "texts are too short" in refused(night(job_of(), rows, fingerprint="g2"))


@pytest.mark.parametrize("entity", ENTITIES)
def test_the_limit_holds_for_each_entity_type_alone(job_of, entity):
    few, many = texts(3, "few", words=""), texts(900)
    message = refused(night(job_of(), **({"users": few, "items": many} if entity == "user"
                                         else {"users": many, "items": few})))
    assert f"{entity}s: 3 of 3 texts are empty" in message and message.count(" of ") == 1


def test_one_or_two_rows_do_not_stop_a_low_volume_run(job_of, monkeypatch):
    job = job_of()
    found = gate.run(night(job, texts(3) + texts(2, "bad", words="")))["user"]["empty"]
    assert (found["rows"], found["value"], found["failed"]) == (2, 0.4, False)
    assert found["why"] == "fewer than 3 rows"
    assert "3 of 5 texts are empty" in refused(night(job, texts(2) + texts(3, "bad", words="")))
    monkeypatch.setattr(scan, "MIN_FAILING_ROWS", 1)
    assert "1 of 5 texts are empty" in refused(night(job_of(), texts(4) + [text("b", words="")]))


def test_relaxed_tokens_count_by_the_token_and_name_the_rows_with_most(job_of):
    job = job_of(gates={"max_share": {"relaxed": 0.1}})
    rows = texts(97) + texts(3, "loose", relaxed_tokens=20)
    found = gate.run(night(job, rows + [text("long", 600, relaxed_tokens=200)]))["user"]["relaxed"]
    assert (found["value"], found["rows"], found["of"]) == (260 / 2600, 4, 101)
    message = refused(night(job, rows + [text("long", 600, relaxed_tokens=201)], fingerprint="h"))
    assert "users: 10.04% of the tokens are not the model's top-1 token, in 4 texts more than" in message
    assert ("user", "long", "relaxed", 201 / 600, "a text worth reading") in listed(job)
    assert gate.run(night(job, texts(2, relaxed_tokens=20)))["user"]["relaxed"]["why"]


def test_the_same_text_for_other_prompts_counts_from_the_second_on(job_of):
    words = {"prompt_sha256": "p1"}, {"prompt_sha256": "p2", "words": "a text  worth\nreading"}
    rows = texts(10, **words[0]) + texts(4, "bad", **words[1])
    assert "4 of 14 texts equal that of another row (28.57%)" in refused(night(job_of(), rows))
    assert [row[1] for row in listed(job_of())] == ["bad0", "bad1", "bad2", "bad3"]


def test_several_failed_checks_are_all_named(job_of):
    rows = texts(10) + texts(5, "e", words="") + texts(5, "l", **LOOP) + [failed("x", "broke")] * 5
    message = refused(night(job_of(), rows))
    assert message.startswith("the quality gate failed and nothing was published: 5 of 25 rows with a prompt")
    assert "users: 5 of 20 texts are empty" in message and "5 of 20 texts loop" in message
    assert "are cut off" not in message


def test_the_ten_commonest_errors_are_reported_with_their_counts(job_of):
    rows = [failed(f"{kind}-{n}", f"reason {'abcdefghijkl'[kind]} of row {n}")
            for kind in range(12) for n in range(12 - kind)]
    job = night(job_of(), texts(100), rows)
    message = refused(job)
    assert "78 of 178 rows with a prompt failed, more than limits.max_error_share = 0.05" in message
    commonest = "; ".join(f"{12 - kind} x reason {'abcdefghijkl'[kind]} of row 0" for kind in range(10))
    assert f"Most common errors: {commonest}. " in message and "reason k" not in message
    assert {(row[0], row[2], row[3]) for row in listed(job)} == {("item", "errors", None)}
    assert ("item", "0-11", "errors", None, "reason a of row 11") in listed(job)


def test_errors_share_one_limit_and_have_their_rows_tried_again(job_of):
    job = job_of()
    gate.run(night(job, texts(57), texts(40) + [failed(f"x{n}", "broke") for n in range(3)]))
    retry = job.space.stage("generate") / shard_plan.RETRY
    assert not retry.exists()
    refused(night(job, texts(2), texts(3) + [failed("x", "broke")], fingerprint="h"))
    assert json.loads(retry.read_text()) == {"run_id": "run-1"}
    off = job_of(limits={"max_error_share": None})
    assert gate.run(off)["item"]["errors"] == {
        "rows": 1, "of": 4, "value": 0.25, "limit": None, "failed": False, "first": ["x"], "why": None}


def test_errors_that_come_back_every_night_count_apart(job_of):
    rows = texts(5) + [failed("lost", "empty history", None), failed("long", "too long"),
                       failed("other", "out of memory")]
    old = [text("long") | {"error": "too long"}, text("other") | {"error": "too long"}]
    found = gate.run(night(job_of(limits={"max_error_share": 0.5}), rows, old=old))["user"]["errors"]
    assert (found["rows"], found["of"], found["first"]) == (1, 6, ["other"])


def test_a_persistent_fault_fails_the_gate(job_of):
    """It is compared with all rows of the date, of which a low-volume run generates few."""
    old = [text(f"x{n}") | {"error": "out of memory"} for n in range(6)]
    rows = texts(94) + [failed(f"x{n}", "out of memory") for n in range(6)]
    job = night(job_of(limits={"max_error_share": 0.06}), rows, old=old)
    found = gate.run(job)["user"]
    assert found["errors"]["rows"] == 0 and not found["errors_again"]["failed"]
    assert (found["errors_again"]["rows"], found["errors_again"]["of"]) == (6, 100)
    assert ("user", "x0", "errors_again", None, "out of memory") in listed(job)
    job = job_of()
    message = refused(job)
    assert "6 of 100 rows repeat the error of the previous run, more than limits.max_error_share" in message
    assert "Most common errors: 6 x out of memory" in message
    assert (job.space.stage("generate") / shard_plan.RETRY).exists()
    few = texts(91) + [failed(f"x{n}", "out of memory") for n in range(4)] + [
        failed(f"y{n}", "broke") for n in range(4)]
    spread = refused(night(job_of(), few, old=old, fingerprint="f"))  # 4 of 95 and 4 of 99: 8 of 99
    assert "4 of 99 rows repeat the error of the previous run, and 4 with a new error, more" in spread
    assert "4 x out of memory" in spread and "4 x broke" in spread
    most = refused(night(job_of(), texts(90) + [failed("x0", "out of memory")] + [
        failed(f"y{n}", "broke") for n in range(9)], old=old, fingerprint="j"))
    assert "9 of 99 rows with a prompt failed, more than limits" in most and "out of memory" not in most
    both = refused(night(job_of(), rows + [failed(f"y{n}", "broke") for n in range(6)], old=old,
                         fingerprint="h"))
    assert ("6 of 100 rows with a prompt failed and 6 of 106 rows repeat the error of the previous run, more"
            in both)
    quiet = gate.run(night(job_of(), rows[-6:] + texts(2), old=old, fingerprint="i", fresh=200))["user"]
    assert (quiet["errors_again"]["rows"], quiet["errors_again"]["of"]) == (6, 208)
    assert not quiet["errors_again"]["failed"]


OLD = texts(60, tokens=100)


@pytest.mark.parametrize(("tokens", "fails"), [(130, False), (131, True), (77, False), (76, True)])
def test_the_median_length_may_not_leave_its_bounds_either_way(job_of, tokens, fails):
    rows = texts(60, tokens=tokens) + texts(200, "new")
    job = night(job_of(gates={"max_share": {"length_distance": None}}), rows, old=OLD)
    if fails:
        message = refused(job)
        assert f"is {tokens / 100:.3g} (60 texts), outside 0.769 to 1.3" in message
        assert "(gates.max_length_ratio = 1.3); first: u0, u1" in message
        assert len(listed(job)) == 60 and listed(job)[0][2:4] == ("length_ratio", tokens / 100)
    else:
        found = gate.run(job)["user"]["length_ratio"]
        assert (found["value"], found["of"], found["rows"]) == (tokens / 100, 60, 0)


def test_a_third_of_the_texts_halved_moves_the_distance_and_not_the_median(job_of):
    rows = texts(60, tokens=100)
    rows[:21] = texts(21, tokens=50)
    job = night(job_of(gates={"max_length_ratio": None}), rows, old=OLD)
    message = refused(job)
    assert [row[:4] for row in listed(job)] == [("user", f"u{n}", "length_distance", 0.5) for n in range(21)]
    assert "distance of new from previous text lengths is 0.35 (60 texts)" in message
    assert "gates.max_share.length_distance = 0.3; first: u0" in message and "median" not in message
    rows[18:21] = OLD[18:21]
    same = gate.run(night(job_of(), rows, old=OLD))["user"]["length_distance"]
    assert (same["value"], same["failed"]) == (0.3, False)


@pytest.mark.parametrize(("changed", "why"), [
    ({"model": {"hash": "other"}}, "the previous texts have another model"),
    ({"prompts": {"user": "other"}}, "the previous texts have another prompt"),
    ({"tokenizer": "other"}, "the previous texts have another tokenizer"),
    ({"new_tokens": [0, 64]}, "the previous texts have another number of new tokens")])
def test_lengths_are_not_compared_with_another_writers(job_of, changed, why):
    found = gate.run(night(job_of(), texts(60, tokens=400), old=OLD, **changed))["user"]
    assert {found[check]["why"] for check in ("length_ratio", "length_distance")} == {why}
    assert found["length_ratio"]["value"] is None


def test_lengths_need_a_manifest_and_enough_texts_to_compare(job_of):
    job = night(job_of(), texts(49, tokens=400) + texts(30, "new"), old=OLD)
    assert gate.run(job)["user"]["length_ratio"]["why"] == "49 pairs, fewer than 50"
    for entity in ENTITIES:
        (job.space.knowledge(entity, BEFORE) / "_manifest.json").unlink()
    assert gate.run(job)["user"]["length_ratio"]["why"] == "no previous texts with a manifest"


def test_lengths_are_compared_entity_by_entity(job_of):
    """Stale rows have long texts, as before; the others are short."""
    old = texts(60, tokens=200) + texts(600, "quiet", tokens=20)
    found = gate.run(night(job_of(), texts(60, tokens=200), old=old))["user"]
    assert (found["length_ratio"]["value"], found["length_distance"]["value"]) == (1.0, 0.0)


def test_a_gate_looks_once_and_again_when_rows_limits_or_the_text_before_change(job_of, monkeypatch):
    job, looked = night(job_of(), texts(5)), []
    look = gate._check_texts
    monkeypatch.setattr(gate, "_check_texts", lambda *arguments: looked.append(1) or look(*arguments))
    first = gate.run(job)
    assert gate.run(job) == first and len(looked) == 1
    gate.run(job_of(gates={"max_share": {"empty": 0.5}}))
    gate.run(night(job_of(), texts(6)))
    gate.run(night(job_of(), texts(6), run_id="other"))
    assert len(looked) == 4


def test_a_failed_gate_stays_failed_without_looking_again(job_of, monkeypatch):
    job = night(job_of(), texts(5, words=""))
    message = refused(job)
    monkeypatch.setattr(gate, "_check_texts", lambda *arguments: pytest.fail("looked again"))
    assert refused(job) == message
    with pytest.raises(errors.ThresholdError, match="5 of 5 texts are empty"):
        gate.require_passed(job, stage_inputs.require_generated(job))


def test_publish_needs_a_gate_that_looked_at_these_rows_under_these_limits(job_of):
    job = night(job_of(), texts(5))
    with pytest.raises(errors.DataError, match="has no finished gate: run `dare-job run --from gate --date "):
        gate.require_passed(job, stage_inputs.require_generated(job))
    gate.run(job)
    assert set(gate.require_passed(job, stage_inputs.require_generated(job))) == set(ENTITIES)
    for other in (job_of(gates={"max_share": {"short": 0.3}}), night(job_of(), texts(6)),
                  night(job_of(), texts(6), fingerprint="other")):
        with pytest.raises(errors.DataError,
                           match="does not match the current rows or limits: run `dare-job run --from "):
            gate.require_passed(other, stage_inputs.require_generated(other))


def test_missing_and_damaged_rows_are_named(job_of):
    job = night(job_of(), texts(500))
    file = job.space.stage("generate") / "entity=user" / "part-0.parquet"
    whole, group = file.read_bytes(), pq.read_metadata(file).row_group(0)
    start = group.column(KNOWLEDGE.names.index("knowledge")).data_page_offset
    file.write_bytes(whole[:start] + b"\xff" * 64 + whole[start + 64:])
    with pytest.raises(errors.DataError, match="entity=user is damaged .*: remove the file and run"):
        gate.run(job)
    file.unlink()
    with pytest.raises(errors.DataError, match="0 of 500 finished rows: run `dare-job run --from generate "):
        gate.run(job)
    assert not job.space.stage("gate").exists()


def test_no_more_rows_are_listed_than_the_table_takes(job_of, monkeypatch):
    monkeypatch.setattr(findings, "MAX_ROWS", 7)
    job = night(job_of(), texts(20, words=""), texts(5, "i", words=""))
    assert "20 of 20 texts are empty" in refused(job)
    assert [row[0] for row in listed(job)] == ["user"] * 7 + ["item"] * 5


def test_a_run_without_rows_passes_and_its_table_has_no_row(job_of):
    found = gate.run(night(job_of()))
    assert found["failed"] == [] and found["message"] is None
    assert worst({entity: found[entity] for entity in ENTITIES}) == dict.fromkeys(CHECKS)
    table = pq.read_table(job_of().space.stage("gate") / findings.NAME)
    assert len(table) == 0 and table.schema.equals(findings.ROWS)


def test_the_worst_of_both_entity_types_is_reported(job_of):
    rows = texts(60, tokens=80) + texts(1, "e", words="")
    found = gate.run(night(job_of(gates={"max_share": {"length_distance": None}}), rows, texts(9), old=OLD))
    reported = worst({entity: found[entity] for entity in ENTITIES})
    assert list(reported) == list(CHECKS)
    assert reported["empty"] == round(1 / 61, 6) and reported["length_ratio"] == 0.8


def test_many_small_files_and_large_ones_count_the_same(job_of, monkeypatch):
    rows = texts(90) + texts(3, "bad", words="")
    job = night(job_of(gates={"max_share": {"empty": None}}), rows)
    together = gate.run(job)["user"]
    table = pq.read_table(job.space.stage("generate") / "entity=user" / "part-0.parquet")
    for n in range(0, 93, 7):
        pq.write_table(table.slice(n, 7), job.space.stage("generate") / "entity=user" / f"part-{n}.parquet")
    pq.write_table(table.slice(0, 7), job.space.stage("generate") / "entity=user" / "part-0.parquet")
    monkeypatch.setattr("dare_job.publish.gate.scan._BATCH", 20)
    monkeypatch.setattr("dare_job.publish.gate.scan._FILES", 3)
    assert gate.run(job)["user"] == together
