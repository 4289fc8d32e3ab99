"""Metrics in a file and at a gateway: a real HTTP server that reads what it is sent."""

import base64
import json
import os
import time
from datetime import date
from functools import partial
from pathlib import Path

import pytest
from gateway import gateway, no_gateway, samples

from dare_job.config.settings import JobConfig
from dare_job.errors import ThresholdError
from dare_job.job import Job
from dare_job.observe import figures, log, progress
from dare_job.observe.metrics import Metrics
from dare_job.observe.observed import observed
from dare_job.observe.progress import Reading
from dare_job.schemas import ENTITIES
from dare_job.tables import chunk_files
from dare_job.workspace import Workspace, write_json

DAY = "2026-01-02"


def job_of(out: Path, **metrics) -> Job:
    config = JobConfig.model_validate({"out": str(out), "metrics": metrics})
    return Job(config, Workspace(out, date.fromisoformat(DAY)), "run-2")


def publish(space: Workspace, dt: str, loss: dict | None = None, **refresh: dict) -> None:
    """A date with 10 users and 20 items; ``refresh``: what its manifests say about the choice, by type."""
    for n, entity in enumerate(ENTITIES, 1):
        folder = space.knowledge(entity, dt)
        folder.mkdir(parents=True)
        write_json(folder / "_manifest.json", {
            "run_id": "run", "counts": {"rows": 10 * n, "written": 7, "carried": 2, "errors": 1},
            "totals": {"tokens": 700, "relaxed_tokens": 5, "scored_tokens": 50, "target_steps": 100},
            "accepted_per_step": 2.5, "tokens_per_s": 900.0, "baseline": {"tokens_per_s": 300.0},
            "busy_s": 12.5, "loss": loss, **({"refresh": refresh[entity]} if refresh else {})})


def test_a_published_date_in_the_file_and_at_the_gateway(tmp_path):
    with gateway() as (address, came):
        job = job_of(tmp_path, file=str(tmp_path / "dare.prom"), push=f"http://bob:hunter%402@{address}",
                     labels={"team": "ranking", "job": "nightly"})
        with observed(job, "run"):
            publish(job.space, DAY)
            with figures.count_seconds(job.space, "plan"):
                pass
    found = samples((tmp_path / "dare.prom").read_text())
    team = ("team", "ranking")
    assert found["rows", ("entity", "item"), team] == 20
    assert found["rows_written", ("entity", "user"), team] == 7
    assert found["rows_carried", ("entity", "user"), team] == 2
    assert found["row_errors", ("entity", "item"), team] == 1
    assert found["tokens", ("entity", "user"), team] == 700
    assert found["relaxed_tokens", ("entity", "user"), team] == 5
    assert found["accepted_per_step", ("entity", "user"), team] == 2.5
    assert (found["baseline_ratio", team], found["worker_busy_seconds", team]) == (3, 12.5)
    assert found["last_exit_code", team] == 0
    assert found["last_success_timestamp_seconds", team] == found["last_run_timestamp_seconds", team] > 1.7e9
    assert found["published_date_timestamp_seconds", team] == 1767312000
    assert found["run_info", ("command", "run"), ("date", DAY), ("run_id", "run-2"), team] == 1
    assert found["stage_seconds", ("stage", "plan"), team] < 5
    ((method, path, headers, pushed),) = came
    assert (method, path) == ("POST", "/metrics/job/nightly/team/ranking")
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"bob:hunter@2"
    assert pushed.pop(("progress_running",)) == 0
    assert pushed == {tuple(part for part in name if part != team): value for name, value in found.items()}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("dare.prom.")]


def test_the_backlog_of_a_published_date(tmp_path):
    """By reason and age; the share of the value is one of what was written or left of this entity type."""
    shared = {"one_more_hour": 0.25, "curve": None}
    user = {"chosen": 4, "copied": 1, "carried": {"budget": 3, "limit": 2}, "value": 6.0, "value_left": 2.0,
            "ages": {"no text": [2, 3], "1-2 days": [3, 2]}, **shared}
    item = {"chosen": 0, "copied": 0, "carried": {}, "value": 0, "value_left": 0, "ages": {}, **shared}
    job = job_of(tmp_path, file=str(tmp_path / "dare.prom"))
    with observed(job, "run"):
        publish(job.space, DAY, user=user, item=item)
    found = samples((tmp_path / "dare.prom").read_text())
    users, items = ("entity", "user"), ("entity", "item")
    assert found["rows_stale", users] == 10 and found["rows_stale", items] == 0
    assert {name[1:]: value for name, value in found.items() if name[0] == "rows_backlog"} == {
        (users, ("reason", "budget")): 3, (users, ("reason", "limit")): 2}
    assert {name[1:]: value for name, value in found.items() if name[0] == "rows_backlog_by_age"} == {
        (("age", "no text"), users): 3, (("age", "1-2 days"), users): 2}
    assert {name[1:]: value for name, value in found.items() if name[0].startswith("backlog")} == {
        (users,): 0.25, (): 0.25}
    assert found["backlog_hour_share",] == found["backlog_value_share", users] == 0.25


def test_the_loss_of_a_published_date(tmp_path):
    job, loss = job_of(tmp_path), {"distance": {"mean": 0.1, "bound": 0.3}, "facts": None, "strict": None}
    for strict in (None, "too large"):
        space = Workspace(tmp_path / str(strict), job.space.day)
        publish(space, DAY, loss | {"strict": strict})
        found = {(figure.name, *figure.labels.values()): figure.value
                 for figure in figures.of_run(Job(job.config, space, "run"), "run", 0)}
        assert found["loss_over_limit",] == (strict is not None)
        assert (found["loss_mean", "distance"], found["loss_bound", "distance"]) == (0.1, 0.3)
        assert ("loss_mean", "facts") not in found
    publish(job.space, DAY)
    assert not [figure for figure in figures.of_run(job, "run", 0) if figure.name.startswith("loss")]


def test_a_failed_run_keeps_the_last_success_and_has_the_rows_that_are_finished(tmp_path):
    job = job_of(tmp_path, file=str(tmp_path / "dare.prom"))
    publish(job.space, "2026-01-01")
    for entity in ENTITIES:
        os.utime(job.space.knowledge(entity, "2026-01-01") / "_manifest.json", (1.7e9, 1.7e9))
    folder = job.space.stage("generate") / "entity=user"
    folder.mkdir(parents=True)
    chunk_files.write(folder / chunk_files.name(0, 0), [
        {"entity_id": "a", "run_id": "r", "tokens": 40, "target_steps": 10, "accepted_tokens": 30},
        {"entity_id": "b", "run_id": "r", "error": "too long"}])
    with pytest.raises(ThresholdError), observed(job, "run"):
        raise ThresholdError("too many")
    found = samples((tmp_path / "dare.prom").read_text())
    assert found["last_exit_code",] == 3 and found["last_success_timestamp_seconds",] == 1.7e9
    assert found["last_run_timestamp_seconds",] > 1.7e9
    assert found["rows_written", ("entity", "user")] == found["row_errors", ("entity", "user")] == 1
    assert found["tokens", ("entity", "user")] == 40 and found["accepted_per_step", ("entity", "user")] == 3
    assert ("rows", ("entity", "item")) not in found and ("baseline_ratio",) not in found


@pytest.mark.parametrize("counted", [True, False])  # a dry run is not
def test_progress_has_a_file_of_its_own_while_the_command_runs(tmp_path, counted):
    with gateway() as (address, came):
        job = job_of(tmp_path, file=str(tmp_path / "dare.prom"), push=f"http://{address}")
        fields = {"tokens": 900, "all_tokens_per_s": 30.0, "eta_s": 90.0}
        reading = Reading(30.0, "writing", 20, 80, "", fields)
        Metrics(job).running("generate", reading)
        stage = ("stage", "generate")
        found = samples((tmp_path / "dare.progress.prom").read_text())
        assert (found["progress_done", stage], found["progress_total", stage]) == (20, 80)
        assert (found["progress_eta_seconds", stage], found["progress_elapsed_seconds", stage]) == (90, 30)
        assert ("progress_accepted_per_step", stage) not in found and came[0][3] == found
        assert found["progress_running",] == 1
        with observed(job, "generate", counted=counted):
            pass
        assert not (tmp_path / "dare.progress.prom").exists() and came[-1][3]["progress_running",] == 0
        assert (tmp_path / "dare.prom").exists() == counted
        if counted:
            ended = samples((tmp_path / "dare.prom").read_text())
            assert ("last_success_timestamp_seconds",) not in ended


@pytest.mark.parametrize("where", ["nobody", "refusing", "a folder that is not there"])
def test_nothing_that_takes_metrics_can_fail_a_run(tmp_path, capsys, where):
    log.to_stderr("json")
    with gateway(500) as (address, came):
        settings = {"nobody": {"push": "http://bob:hunter2@127.0.0.1:9/x"},
                    "refusing": {"push": f"http://bob:hunter2@{address}"},
                    "a folder that is not there": {"file": str(tmp_path / "no" / "dare.prom")}}[where]
        metrics = Metrics(job_of(tmp_path, **settings))
        for _ in range(3):
            metrics.running("plan", Reading(3.0, "planning"))
        with observed(job_of(tmp_path, **settings), "plan"):
            pass
        assert len(came) == (2 if where == "refusing" else 0)  # not asked at each line of progress
    said = capsys.readouterr().err
    assert ("cannot be written" if "file" in settings else "the metrics were not pushed") in said
    assert "hunter2" not in said


def test_an_answer_that_is_no_http_ends_neither_the_run_nor_its_progress(tmp_path, capsys, monkeypatch):
    for name in ("_SILENT_S", "_POLL_S"):
        monkeypatch.setattr(progress, name, 0.1)
    log.to_stderr("json")
    with no_gateway() as (address, came):
        metrics, told = Metrics(job_of(tmp_path, push=f"http://{address}")), []
        with progress.reporting("planning", 0.1, [partial(metrics.running, "plan"), told.append]):
            until = time.monotonic() + 30
            while len(told) < 2 and time.monotonic() < until:
                time.sleep(0.02)
        with observed(job_of(tmp_path, push=f"http://{address}"), "plan"):
            pass
    assert [line.split()[0] for line in came] == [b"POST", b"POST"]
    said = capsys.readouterr().err
    assert said.count("the metrics were not pushed, and the run continues") == 2 and "SSH-2.0" in said
    assert len(told) >= 2  # the thread went on


def test_a_job_without_these_settings_has_no_metrics(tmp_path):
    with observed(job_of(tmp_path), "plan"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["_work"]


@pytest.mark.parametrize("settings, words", [
    ({"file": "/var/lib/dare.txt"}, r"metrics.file = .*: Path \(no URL\) of a .prom file"),
    ({"push": "gateway:9091"}, "metrics.push = .*: Address of a Pushgateway"),
    ({"labels": {"entity": "x"}}, "metrics.labels.entity"), ({"labels": {"a-b": "x"}}, "metrics.labels.a-b"),
])
def test_wrong_settings_are_named(tmp_path, settings, words):
    from dare_job.config.settings import load
    from dare_job.errors import ConfigError

    (tmp_path / "job.yaml").write_text(json.dumps({"metrics": settings}))
    with pytest.raises(ConfigError, match=words):
        load(tmp_path / "job.yaml")
