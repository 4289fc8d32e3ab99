"""A real run as an operator sees it, and two real nights looked back on."""

import json
import logging

import pytest
import structlog
from gateway import gateway, samples
from run_helpers import NIGHT_1, NIGHT_2, snapshot

from dare_job import cli, pipeline
from dare_job.observe import progress
from dare_job.observe.observed import observed
from dare_job.publish.snapshots.diff import diff
from dare_job.publish.snapshots.history import history
from dare_job.schemas import ENTITIES
from dare_job.tables import published

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def run(job_of, tmp_path_factory):
    """A run of some rows with all that can be seen of it: job, log records, metrics, pushes, lines."""
    out = tmp_path_factory.mktemp("observed") / "out"
    logger = logging.getLogger("dare_job")
    structlog.contextvars.clear_contextvars()
    before, logger.handlers[:] = logger.handlers[:], []
    with gateway() as (address, came), pytest.MonkeyPatch.context() as patch:
        for name, seconds in (("EVERY_S", 0.05), ("_SILENT_S", 0.01), ("_POLL_S", 0.02)):
            patch.setattr(progress, name, seconds)  # a line of progress for every step
        job = job_of(out, NIGHT_2, limit=16, run_id="run-seen", baseline={"rows": 0},
                     decode={"batch_size": 1, "nodes": 0}, spark={"rows_per_commit": 1},
                     log={"format": "json"},
                     metrics={"file": str(out.parent / "dare.prom"), "push": f"http://{address}"})
        with observed(job, "run"):
            summary = pipeline.run(job)
    logger.handlers[:] = before
    return job, summary, came


def records(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_record_names_the_run_and_the_stage(run):
    job, summary, _ = run
    found = records(job.space.logs / "run-seen.jsonl")
    assert {(record["run_id"], record["date"], record["command"]) for record in found} == {
        ("run-seen", NIGHT_2, "run")}
    ended = [record for record in found if "seconds" in record and "stage" in record]
    assert [record["stage"] for record in ended] == list(pipeline.STAGES)
    assert found[-1]["event"] == "run finished" and found[-1]["exit_code"] == 0
    written = [record for record in found if "rows_total" in record and record["stage"] == "generate"]
    assert {record["rows_total"] for record in written} == {summary["written"] + summary["errors"]}
    counts = [record["rows"] for record in written]
    assert counts == sorted(counts) and len(set(counts)) > 1  # it was told while rows were written
    assert any(record["eta_s"] is not None for record in written)


def test_progress_names_the_steps_of_a_stage(run):
    job, *_ = run
    events = [record["event"] for record in records(job.space.logs / "run-seen.jsonl")]
    for steps in (("plan: reading the input", "plan: rendering user prompts"), ("generate: writing:",)):
        assert any(event.startswith(steps) for event in events), steps  # one that a busy machine cannot miss


def test_workers_leave_records_of_what_they_committed(run):
    job, summary, _ = run
    found = [record for path in job.space.logs.glob("run-seen.*-*.jsonl") for record in records(path)]
    chunks = [record for record in found if record["event"].startswith("committed part-")]
    assert sum(record["rows"] for record in chunks) == summary["written"] + summary["errors"]
    assert {(record["run_id"], record["stage"]) for record in found} == {("run-seen", "generate")}
    assert {record["entity"] for record in chunks} == set(ENTITIES)
    files = [path.stem.split("-") for entity in ENTITIES
             for path in (job.space.stage("generate") / f"entity={entity}").glob("part-*")]
    assert sorted((record["shard"], record["chunk"]) for record in chunks) == sorted(
        (int(shard), int(chunk)) for _, shard, chunk in files)


def test_metrics_of_a_real_run(run):
    job, summary, came = run
    found = samples((job.space.out.parent / "dare.prom").read_text())
    manifests = {entity: published.read_manifest(job.space.knowledge(entity)) for entity in ENTITIES}
    assert sum(found["rows_written", ("entity", entity)] for entity in ENTITIES) == summary["written"] > 0
    assert found["tokens", ("entity", "user")] == manifests["user"]["totals"]["tokens"]
    assert found["worker_busy_seconds",] == manifests["user"]["busy_s"] > 0
    assert {dict(name[1:])["stage"] for name in found if name[0] == "stage_seconds"} == set(pipeline.STAGES)
    while_running = [pushed for *_, pushed in came[:-1]]
    done = [pushed["progress_done", ("stage", "generate")] for pushed in while_running
            if ("progress_done", ("stage", "generate")) in pushed]
    assert done == sorted(done) and len(set(done)) > 1
    assert came[-1][3]["last_exit_code",] == came[-1][3]["progress_running",] == 0


def test_the_manifest_holds_settings_and_times(nights):
    for entity in ENTITIES:
        found = published.read_manifest(nights.out / "knowledge" / f"entity={entity}" / f"dt={NIGHT_2}")
        assert found["settings"]["decode"]["max_new_tokens"] == 48 and found["limit"] is None
        assert set(found["seconds"]) == set(pipeline.STAGES[:-1]) and all(found["seconds"].values())
        assert found["busy_s"] > 0


def test_two_real_nights_looked_back_on(nights, capsys, monkeypatch):
    first, second = history(nights.out)[:2]
    assert [first["date"], second["date"]] == [NIGHT_1, NIGHT_2] and second["changes"] == []
    assert second["written"] == nights.second["written"] and second["errors"] == nights.second["errors"]
    assert second["ratio"] == pytest.approx(
        nights.second["tokens_per_s"] / nights.second["baseline_tokens_per_s"], rel=0.01)
    found = diff(nights.out, NIGHT_1, NIGHT_2)
    for entity in ENTITIES:
        before, after = (snapshot(nights.out, entity, night) for night in (NIGHT_1, NIGHT_2))
        old = {name: row["knowledge"] for name, row in before.items()}
        changed = [name for name, row in after.items()
                   if row["knowledge"] and old.get(name) not in (None, row["knowledge"])]
        counts = found[entity]["counts"]
        assert (counts["changed"], counts["added"]) == (len(changed), len(set(after) - set(before)))
        for example in found[entity]["examples"]:
            name = example["entity_id"]
            assert example["before"] == old[name] != after[name]["knowledge"] == example["after"]
    assert found["user"]["counts"]["changed"] > 0 and found["changes"] == []
    monkeypatch.setattr("dare_job.cli.result.prints_json", lambda as_json: as_json)
    monkeypatch.setattr("sys.argv", ["dare-job", "diff", NIGHT_1, NIGHT_2, "--out", str(nights.out)])
    with pytest.raises(SystemExit):
        cli.main()
    assert "same model, tokenizer, prompts and settings" in capsys.readouterr().out
