"""The whole job on two consecutive dates, in one process."""

import hashlib
import json
import shutil
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from run_helpers import LONG_ITEM, LOST_USER, NIGHT_1, NIGHT_2, NIGHT_3, files, snapshot

from dare_job import errors, pipeline
from dare_job.generate import baseline, estimate, loading, previous_text
from dare_job.publish import report
from dare_job.publish.report import show_text
from dare_job.refresh import acceptance
from dare_job.schemas import ENTITIES, KNOWLEDGE
from dare_job.stages import generate

pytestmark = pytest.mark.spark


def test_every_entity_has_one_row_and_bad_rows_cost_no_other(nights):
    users, items = (snapshot(nights.out, entity, NIGHT_1) for entity in ENTITIES)
    assert len(users) == 37 and len(items) == 25
    assert users[LOST_USER]["knowledge"] is None and "empty history" in users[LOST_USER]["error"]
    assert items[LONG_ITEM]["knowledge"] is None and "tokens" in items[LONG_ITEM]["error"]
    good = [row for rows in (users, items) for row in rows.values() if row["error"] is None]
    assert nights.first["written"] == len(good)
    assert nights.first["errors"] == len(users) + len(items) - len(good)
    assert all(row["knowledge"] and row["tokens"] == len(row["token_ids"]) == sum(row["step_tokens"])
               for row in good)


def test_the_files_have_the_contract_schema_and_the_manifest_their_checksums(nights):
    for entity in ENTITIES:
        folder = nights.out / "knowledge" / f"entity={entity}" / f"dt={NIGHT_2}"
        manifest = json.loads((folder / "_manifest.json").read_text())
        for name, file in manifest["files"].items():
            assert pq.read_schema(folder / name).equals(KNOWLEDGE)
            assert pq.read_schema(folder / name).metadata[b"dare_job.schema_version"] == b"3"
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == file["sha256"]
        assert manifest["counts"]["rows"] == sum(file["rows"] for file in manifest["files"].values())
        assert {"config", "model", "tokenizer", "rejects", "pool_kinds", "baseline"} <= set(manifest)


def test_the_steps_of_rows_without_a_previous_text_are_recorded_and_kept_on_a_night_without_such_rows(nights):
    """All rows of the first night have none. Those of the second one have: what it measured is too little."""
    for entity in ENTITIES:
        first, second = (json.loads((nights.out / "knowledge" / f"entity={entity}" / f"dt={night}" /
                                     "_manifest.json").read_text()) for night in (NIGHT_1, NIGHT_2))
        measured, totals = first[acceptance.KEY], first["totals"]
        assert (measured["steps"], measured["tokens"]) == (totals["target_steps"], totals["tokens"])
        assert (measured["date"], measured["mode"]) == (NIGHT_1, "dare")
        assert measured["kinds"].keys() == first["pool_kinds"].keys()
        assert measured["steps"] > acceptance.ENOUGH_STEPS and second[acceptance.KEY] == measured


def test_the_second_night_writes_only_stale_rows_and_carries_the_others(nights):
    carried = written = 0
    for entity in ENTITIES:
        before, after = snapshot(nights.out, entity, NIGHT_1), snapshot(nights.out, entity, NIGHT_2)
        assert set(before) <= set(after)
        for identifier, row in after.items():
            if row["generated_dt"] == NIGHT_1:
                carried += 1
                unseen = row["unseen_interactions"]  # an item's prompt does not depend on them
                assert row == before[identifier] | {"run_id": f"run-{NIGHT_2}", "unseen_interactions": unseen}
                assert unseen == 0 or entity == "item"
                assert row["source_run_id"] == f"run-{NIGHT_1}"
            elif row["error"] is None:
                written += 1
                assert row["source_run_id"] == f"run-{NIGHT_2}"
    assert written == nights.second["written"] > 0
    assert carried == nights.second["skipped_fresh"] > 0


@pytest.fixture(scope="module")
def alone(job_of, tmp_path_factory):
    """Factory: runs of night two without old text, in other batches, shards and budgets than ``nights``."""
    out = tmp_path_factory.mktemp("alone") / "o[1]{x}*"  # Spark's patterns stand for themselves

    def run(limit: int | None = None, **sections):
        budgets = {"decode": {"batch_size": 6, "nodes": 5, "score": "auto"},
                   "spark": {"shards": 2, "rows_per_commit": 7}}
        job = job_of(out, NIGHT_2, limit, f"limit-{limit}", **budgets, **sections)
        return pipeline.run(job), out
    return run


@pytest.mark.slow
def test_a_limited_run_then_a_full_one_writes_only_the_rest(alone):
    limited, out = alone(2, baseline={"rows": 0})
    assert limited["written"] == 4 and limited["baseline_tokens_per_s"] is None
    assert limited["backlog"] == 60 + 1 - 4  # also rows that have no row in the snapshot
    few = {entity: snapshot(out, entity, NIGHT_2) for entity in ENTITIES}
    full, _ = alone(baseline={"rows": 0})
    assert full["written"] == 60 and full["baseline_tokens_per_s"] is None and full["backlog"] == 1
    for entity in ENTITIES:
        rows = snapshot(out, entity, NIGHT_2)
        early = {name: row for name, row in rows.items() if row["source_run_id"] == "limit-2"}
        assert len(early) == 2
        assert all(row == few[entity][name] | {"run_id": "limit-None"} for name, row in early.items())
    before = files(out)
    assert alone(2, baseline={"rows": 0})[0] == full and files(out) == before
    measured, _ = alone(baseline={"rows": 12})  # rows that were all written before are enough
    assert measured["baseline_tokens_per_s"] > 0 and files(out) == before


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["killed", "program"])
def test_a_baseline_that_cannot_be_measured_costs_its_figure_and_not_the_night(
        nights, job_of, tmp_path, monkeypatch, job_log, fault):
    def decode_plainly(batches, task):
        import os

        if fault == "killed":
            os.kill(os.getpid(), 9)
        yield 1 / 0

    out = shutil.copytree(nights.out, tmp_path / "out")
    work = out / "_work" / f"dt={NIGHT_2}"
    for stage in ("baseline", "gate", "publish"):
        shutil.rmtree(work / stage, ignore_errors=True)
    (work / "generate" / "_done.json").unlink()
    shutil.rmtree(out / "knowledge" / "entity=user" / f"dt={NIGHT_2}")
    shutil.rmtree(out / "knowledge" / "entity=item" / f"dt={NIGHT_2}")
    monkeypatch.setattr(baseline, "decode_baseline", decode_plainly)
    summary = pipeline.run(job_of(out, NIGHT_2))
    assert summary == nights.second | {"out": str(out), "baseline_tokens_per_s": None}
    (line,) = [line for line in job_log if "could not be measured" in line]
    assert "\n" not in line and ("Python workers" in line) == (fault == "killed")
    report.write(out, NIGHT_2)
    page = (out / "reports" / f"dt={NIGHT_2}" / "index.html").read_text()
    assert "This run measured no baseline" in page


@pytest.mark.parametrize(("asked", "rows", "batch", "workers", "found"), [
    (32, 360, 8, 2, (32, 2, 8)), (32, 50, 8, 1, (12, 1, 8)), (32, 32, 8, 2, (16, 2, 8)),
    (32, 9, 8, 2, (9, 2, 5)), (32, 1, 8, 1, (1, 1, 1)), (64, 200, 32, 1, (50, 1, 32)),
    ("auto", 360, 8, 2, (32, 2, 8)), ("auto", 800, 8, 2, (48, 2, 8)), ("auto", 100_000, 32, 8, (1024, 8, 32)),
    ("auto", 4096, 32, 8, (256, 8, 32)), ("auto", 20, 32, 2, (20, 2, 10)),
    (4, 60, 8, 1, (4, 1, 4)), (32, 100_000, 32, 8, (32, 1, 32)), (32, 60, 8, 6, (32, 4, 8))])
def test_a_baseline_has_the_workers_and_batches_of_the_run(asked, rows, batch, workers, found):
    """Except with too few requested rows (the last line): fewer workers with full batches."""
    assert baseline.sample_size(asked, rows, batch, workers) == baseline.Sample(*found)


@pytest.mark.parametrize(("asked", "workers", "own_device", "comparable"), [
    ("auto", 2, False, True), (64, 2, False, True), (32, 2, False, False), (32, 2, True, True),
    (16, 1, False, False), (16, 1, True, False)])
def test_speeds_are_compared_with_batches_as_large_as_those_of_the_run(
        asked, workers, own_device, comparable):
    sample = baseline.sample_size(asked, 1000, 32, workers)
    assert baseline.is_comparable(sample, baseline.Sample(1000, workers, 32), own_device) is comparable


@pytest.mark.slow
def test_old_text_is_accepted_and_changes_no_text(nights, alone):
    tmp_path = alone(baseline={"rows": 0})[1]
    accepted = {"pools": [0, 0], "alone": [0, 0]}
    for entity in ENTITIES:
        with_pools, without = snapshot(nights.out, entity, NIGHT_2), snapshot(tmp_path, entity, NIGHT_2)
        for identifier, row in with_pools.items():
            if row["generated_dt"] == NIGHT_2:
                assert row["token_ids"] == without[identifier]["token_ids"]
                for name, found in (("pools", row), ("alone", without[identifier])):
                    accepted[name][0] += found["accepted_tokens"]
                    accepted[name][1] += found["target_steps"]
    rates = {name: tokens / steps for name, (tokens, steps) in accepted.items()}
    assert rates["pools"] > 1.2 * rates["alone"]


def test_a_row_drafts_from_its_own_old_text_first(nights, job_of):
    job = job_of(nights.out, NIGHT_2)
    old = {entity: snapshot(nights.out, entity, NIGHT_1) for entity in ENTITIES}
    rows = [row.asDict() for row in generate.rows_to_write(job, None).collect()]
    for row in rows:
        before = old[row["entity"]].get(row["entity_id"], {"token_ids": None})
        assert row["own_ids"] == before["token_ids"]
    task = loading.Task.of(job)
    own, without = ([loading.open_row_pools(row, task)[0].kind
                     for row in rows if bool(row["own_ids"]) is has_text] for has_text in (True, False))
    assert len(own) > 5 and set(own) == {"own"} and "own" not in without
    others = replace(task, config=job_of(nights.out, NIGHT_2, decode={"mode": "resd"}).config)
    assert {tuple(pool.kind for pool in loading.open_row_pools(row, others)) for row in rows} == {("global",)}
    off = job_of(nights.out, NIGHT_2, pools={"own": False})
    assert not any(row.own_ids for row in generate.rows_to_write(off, None).collect())


def test_old_text_with_tokens_that_the_model_lacks_drafts_nothing(nights, job_of, tmp_path, caplog):
    shutil.copytree(nights.out / "knowledge", tmp_path / "knowledge")
    folder = tmp_path / "knowledge" / "entity=user" / f"dt={NIGHT_2}"
    bad = {}
    for path in folder.glob("*.parquet"):
        rows = pq.read_table(path).to_pylist()
        good = [row for row in rows if row["token_ids"]]
        for row, token in zip(good, (-1, 99_999, None), strict=False):
            row["token_ids"][3] = token
            bad[row["entity_id"]] = token
        pq.write_table(pa.Table.from_pylist(rows, schema=KNOWLEDGE), path)
    job = job_of(tmp_path, NIGHT_3)
    left = {row.entity_id for row in previous_text.previous_token_ids(job, folder).collect()}
    written = {name for name, row in snapshot(tmp_path, "user", NIGHT_2).items() if row["token_ids"]}
    assert len(bad) >= 3 and left == written - set(bad)
    previous_text.warn_invalid_ids(job, folder)
    assert "outside the model's" in caplog.text and min(bad) in caplog.text


@pytest.mark.slow
def test_old_text_without_ids_is_tokenised(nights, job_of, tmp_path):
    """Such as rows that a limited first night carried over from text that came with the input."""
    shutil.copytree(nights.out / "knowledge", tmp_path / "knowledge")
    folder = tmp_path / "knowledge" / "entity=item" / f"dt={NIGHT_2}"
    before = {name: row for name, row in snapshot(tmp_path, "item", NIGHT_2).items() if row["token_ids"]}
    for path in folder.glob("*.parquet"):
        rows = [row | {"token_ids": None} for row in pq.read_table(path).to_pylist()]
        pq.write_table(pa.Table.from_pylist(rows, schema=KNOWLEDGE), path)
    job = job_of(tmp_path, NIGHT_3)
    anew = {row.entity_id: row.token_ids for row in previous_text.previous_token_ids(job, folder).collect()}
    assert set(anew) == set(before)
    ended = [name for name, row in before.items() if row["finish_reason"] == "eos"]
    assert all(len(ids) > 5 for ids in anew.values())
    assert sum(anew[name] == before[name]["token_ids"] for name in ended) >= 0.9 * len(ended)


def test_a_second_run_of_a_date_regenerates_and_republishes_nothing(nights, job_of):
    before = files(nights.out)
    assert pipeline.run(job_of(nights.out, NIGHT_2, run_id="again")) == nights.second
    assert files(nights.out) == before


def _part(found, name):
    return next(part for part in found["parts"] if name in part["name"])


def test_a_dry_run_counts_and_publishes_nothing(job_of, capsys, tmp_path):
    found = pipeline.dry_run(job_of(tmp_path / "out", NIGHT_2, limit=10, cost={"per_gpu_hour": 3.0}))
    assert (found["users"], found["items"]) == (10, 10)
    assert found["tokens"] > 20 and found["seconds"] > _part(found, "decoding")["seconds"] > 0
    assert found["seconds"] == pytest.approx(sum(part["seconds"] or 0 for part in found["parts"]), abs=0.5)
    in_generate = ("loading", "shard plan", "baseline", "decoding")
    generating = sum(_part(found, name)["seconds"] for name in in_generate)
    assert found["cost"] == pytest.approx(3 * found["workers"] * generating / 3600, rel=0.05)
    for stages in ("embed, group, route, pools", "gate, publish"):  # no earlier run has measured them
        rough = _part(found, stages)
        assert rough["name"] == stages and rough["seconds"] > 5 and rough["basis"].startswith("rough: ")
    assert found["probe"]["rows"] == 8
    printed = capsys.readouterr().out
    assert "10 users and 10 items need text" in printed
    assert "not included" not in printed
    assert not (tmp_path / "out" / "knowledge").exists()


@pytest.mark.slow
def test_a_dry_run_after_earlier_runs_knows_their_rates(nights, job_of, monkeypatch):
    again = pipeline.dry_run(job_of(nights.out, NIGHT_3))
    assert again["users"] == 0 and again["items"] == 1 and again["cost"] is None
    same = pipeline.dry_run(job_of(nights.out, NIGHT_3, history={"max_items": 1}))
    assert same["users"] > 5 and f"rate of the run of {NIGHT_2}" in same["basis"]
    assert _part(same, "embed")["seconds"] > 0 and _part(same, "gate")["basis"] == f"run of {NIGHT_2}"
    monkeypatch.setattr(estimate, "task_slots", lambda spark: 8)  # tasks of several cores, or of a GPU
    on_gpus = estimate.estimate_run(job_of(nights.out, NIGHT_3, history={"max_items": 1}))
    assert on_gpus["workers"] == 8
    assert _part(on_gpus, "decoding")["seconds"] == pytest.approx(
        _part(same, "decoding")["seconds"] * same["workers"] / 8, abs=0.1)
    shorter = pipeline.dry_run(job_of(nights.out, NIGHT_3, decode={"max_new_tokens": 8}))
    assert shorter["users"] == 37 - 1 and "decoded without drafts" in shorter["basis"]
    assert shorter["tokens"] <= 8 * (shorter["users"] + shorter["items"])
    assert shorter["probe"]["cut_off"] == shorter["probe"]["rows"] > 0
    assert "reach decode.max_new_tokens = 8" in estimate.cut_off_warning(shorter, 8, 0.5)
    assert estimate.cut_off_warning(shorter, 8, 1.0) is estimate.cut_off_warning(shorter, 8, None) is None
    assert same["previous"]["cut_off"] == same["previous"]["rows"] > 0  # of the second night
    assert "texts of the previous run reach" in estimate.cut_off_warning(same, 192, 0.5)
    assert estimate.cut_off_warning(same, 192, 1.0) is None


@pytest.mark.release
def test_a_damaged_pool_stops_the_run_and_says_how_to_go_on(nights, job_of, tmp_path):
    """On the second night as it was before generate, with fewer rows."""
    out = shutil.copytree(nights.out, tmp_path / "out", ignore=shutil.ignore_patterns("generate", "gate"))
    job = job_of(out, NIGHT_2, limit=3, baseline={"rows": 0})
    pools = job.space.stage("pools")
    good, suffixes = shutil.copytree(pools, tmp_path / "good"), pools / "entity=user/global/suffixes.npy"
    whole = suffixes.read_bytes()
    suffixes.write_bytes(whole[:-8])
    with pytest.raises(errors.PoolError, match="the next `dare-job run` builds them again"):
        pipeline.run_stage(job, "generate")
    shutil.rmtree(suffixes.parent)  # as the message of the package `pools` says
    names = pipeline.run_stage(job, "pools")["user"]["pools"]
    assert suffixes.read_bytes() == whole and len(list(suffixes.parents[1].glob("*/"))) == names
    shutil.rmtree(suffixes.parent)
    with pytest.raises(errors.DataError, match="run `dare-job run --from pools --date "):
        pipeline.run_stage(job, "generate")
    shutil.copytree(good, pools, dirs_exist_ok=True)
    suffixes.write_bytes(whole[:-8] + b"\xff" * 8)  # only the checksum tells: found by a worker
    with pytest.raises(errors.PoolError, match="damaged.*builds them again"):
        pipeline.run_stage(job, "generate")
    report = pipeline.run(job, last="generate")  # as the same `run` would
    assert report["written_now"] > report["errors"]


def test_show_marks_steps_and_drafts_and_names_close_ids(nights, capsys):
    users = snapshot(nights.out, "user", NIGHT_2)
    row = next(row for row in users.values() if row["accepted_tokens"] and row["scored_tokens"]
               and row["generated_dt"] == NIGHT_2)
    show_text.show_text(nights.out, f"user:{row['entity_id']}", NIGHT_2)
    shown = capsys.readouterr().out
    heading, pool, text, legend, figures = shown.splitlines()
    assert heading == f"user:{row['entity_id']}  {NIGHT_2}"
    assert row["pool"] in pool and "interactions" in pool
    assert text.count("|") == len(row["step_tokens"]) and "[" in text and text.startswith("{")
    assert text.translate(str.maketrans("", "", "[]{}|")).strip() == row["knowledge"]
    assert f"{row['scored_tokens']} reused from the previous text" in figures
    assert f"{row['accepted_tokens'] / row['target_steps']:.2f} draft tokens accepted per step" in figures
    assert legend == ("{reused from the previous text} [accepted draft tokens] the model's own token "
                      "| end of a decoding step")
    with pytest.raises(errors.DataError, match="similar ids: u0000"):
        show_text.show_text(nights.out, "user:u00003")
    with pytest.raises(errors.DataError, match=f"published: {NIGHT_1}"):
        show_text.show_text(nights.out, "user:u000003", "2026-02-01")
    with pytest.raises(errors.ConfigError, match="user:ID"):
        show_text.show_text(nights.out, "movie:1")
