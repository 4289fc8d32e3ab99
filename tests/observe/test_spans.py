"""When the stages of a date ran."""

import time
from datetime import date

import pytest

from dare_job.observe import figures
from dare_job.workspace import Workspace


@pytest.fixture
def space(tmp_path):
    return Workspace(tmp_path, date(2026, 1, 2))


def test_each_time_a_stage_runs_is_recorded_with_start_and_end(space):
    began = time.time()
    for stage in ("plan", "generate", "generate"):
        with figures.count_seconds(space, stage) as beat:
            beat()
            beat()
    spans = figures.stage_spans(space)
    assert [span["stage"] for span in spans] == ["plan", "generate", "generate"]
    times = [time for span in spans for time in (span["start"], span["end"])]
    assert times == sorted(times) and began - 1 < times[0] <= times[-1] < time.time() + 1
    total = sum(span["end"] - span["start"] for span in spans if span["stage"] == "generate")
    assert total == pytest.approx(figures.stage_seconds(space)["generate"], abs=0.01)


def test_a_stage_that_is_killed_has_the_time_of_its_last_progress_report(space):
    running = figures.count_seconds(space, "generate")
    running.__enter__()()
    assert [span["stage"] for span in figures.stage_spans(space)] == ["generate"]


def test_only_the_last_spans_are_kept(space, monkeypatch):
    monkeypatch.setattr(figures, "_MAX_SPANS", 3)
    for stage in "abcde":
        with figures.count_seconds(space, stage):
            pass
    assert [span["stage"] for span in figures.stage_spans(space)] == ["c", "d", "e"]
    assert set(figures.stage_seconds(space)) == set("abcde")


@pytest.mark.parametrize("damage", ["{", "3", '[{"stage": "plan"}]', '["plan"]'])
def test_a_damaged_record_counts_as_none(space, damage):
    space.logs.mkdir(parents=True)
    (space.logs / "spans.json").write_text(damage)
    assert figures.stage_spans(space) == []
    with figures.count_seconds(space, "plan"):
        pass
    assert len(figures.stage_spans(space)) == 1
