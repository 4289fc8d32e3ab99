"""Log files, times and hangs at a URL, where nothing can be appended to."""

import json
import logging
import re

import pytest

from dare_job.config.settings import JobConfig
from dare_job.generate import hangs
from dare_job.generate.task import Task
from dare_job.observe import figures, log
from dare_job.storage import paths
from dare_job.workspace import Workspace

pytestmark = pytest.mark.spark
_LOG = logging.getLogger("dare_job")


@pytest.fixture
def folder(store, request):
    return paths.path(f"{store}/{re.sub('[^a-z_]', '-', request.node.name)}")


def events(path) -> list[str]:
    return [json.loads(line)["event"] for line in path.read_text().splitlines()]


@pytest.mark.usefixtures("fresh_loggers")
def test_records_can_be_read_after_a_warning_a_stage_and_the_command(folder):
    path = folder / "logs" / "run.jsonl"
    log.to_stderr("json")
    with log.to_file(path):
        _LOG.info("first")
        assert events(path) == ["first"]
        _LOG.info("second")
        assert events(path) == ["first"]  # put again in a minute
        _LOG.warning("careful")
        assert events(path) == ["first", "second", "careful"]
        _LOG.info("planned", extra={"ended": True, "seconds": 1.0})
        _LOG.info("last")
        assert events(path)[3:] == ["planned"]
    _LOG.info("of another command")
    assert events(path)[4:] == ["last"]


@pytest.mark.usefixtures("fresh_loggers")
def test_a_store_that_takes_no_log_costs_the_file_and_not_the_run(folder, capsys):
    log.to_stderr("json")
    with log.to_file(paths.path("s3://nobody/logs/run.jsonl")):
        _LOG.info("first")
        _LOG.info("second")
    shown = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert sorted(shown[:2])[0] == "first" and shown[2:] == ["second"]
    assert "s3://nobody/logs/run.jsonl cannot be written" in " ".join(shown)


def test_times_of_stages_add_up(folder):
    from datetime import date

    space = Workspace(folder, date(2026, 1, 2))
    for _ in range(2):
        with figures.count_seconds(space, "plan") as beat:
            beat()
    assert list(figures.stage_seconds(space)) == ["plan"]
    assert figures.stage_seconds(Workspace(folder, date(2026, 1, 3))) == {}


def test_rows_on_which_a_worker_hung_are_found_again(folder):
    def task(cut: str) -> Task:
        return Task(JobConfig(), "m", "t", str(folder), "p", "", cut, "2026-01-02", "run-1", 1)

    hangs.record_hang(task("cut-1"), 0, "h:1", ["u01", "u02"], "late")
    hangs.record_hang(task("cut-1"), 0, "h:2", ["u02"], "late")
    hangs.record_hang(task("cut-1"), 1, "h:2", ["u03"], "late")
    hangs.record_hang(task("cut-2"), 0, "h:2", ["u04"], "late")
    assert hangs.hang_reasons(task("cut-1"), 0) == {"u01": ["late"], "u02": ["late", "late"]}
    assert hangs.hang_count(folder, "cut-1") == 3 and hangs.hang_count(folder / "none", "cut-1") == 0
