"""``dare-job bench recommend`` on a small shop: every row has its figures, drafts change no strict list."""

import json

import pytest
from typer.testing import CliRunner

from dare_job.bench.recommend import command, report
from dare_job.bench.recommend.command import Options
from dare_job.cli import app
from dare_job.errors import ConfigError

ROW = {"method", "verification", "k", "speedup_cpu", "speedup_clock", "speedup_memory_bound",
       "forwards_saved", "accepted_steps", "recall", "ndcg", "identical"}


def test_the_command_ends_with_its_rows(monkeypatch):
    monkeypatch.delenv("DARE_DATA", raising=False)
    ran = CliRunner().invoke(app, ["bench", "recommend", "--quick"])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout.splitlines()[-1])
    assert all(row.keys() >= ROW for row in found["rows"])
    strict = [row for row in found["rows"] if row["verification"] == "strict"]
    assert strict and all(row["identical"] is True for row in strict)
    drafted = [row for row in strict if row["method"] == "trie"]
    assert drafted and all(row["forwards_saved"] > 1 for row in drafted)
    assert found["generate"]["same_items"] == found["generate"]["users"]
    assert {row["method"] for row in found["rows"]} >= {"plain", "popularity", "random", "random+whole"}
    assert any(row["lossy"] for row in found["rows"] if row["verification"] == "relaxed")


def test_the_clock_is_held_to_the_targets_on_a_gpu_alone():
    speeds = {"forwards_saved": 2.5, "speedup_memory_bound": 2.4, "speedup_clock": 1.9}
    rows = [{"method": "SFT", "verification": kind, "k": 10, "identical": True, **speeds}
            for kind in ("strict", "relaxed")]
    assert len(report.targets(rows, None, 10, "cpu")) == 5 and all(one["met"] for one in report.targets(
        rows, None, 10, "cpu"))
    found = {one["target"]: one["met"] for one in report.targets(rows, None, 10, "cuda")}
    assert found["strict at K = 10, times as fast by the clock"]
    assert not found["relaxed at K = 10, times as fast by the clock"]


def test_a_target_needs_data_and_drafts_a_target(tmp_path):
    with pytest.raises(ConfigError, match="--target needs"):
        Options(target=tmp_path)
    with pytest.raises(ConfigError, match="--draft needs"):
        Options(drafts={"SFT": tmp_path})


@pytest.mark.parametrize(("args", "said"), [
    (("--k", "0,5"), "--k: 0 is among them"), (("--k", ""), "--k names none"),
    (("--widths", "0"), "--widths: 0 is among them"), (("--depths", "1,-1"), "--depths: -1 is among them"),
    (("--temperatures", "0.5,nan"), "--temperatures: temperature is nan"),
    (("--temperatures", "0"), "--temperatures: at temperature 0 nothing is drawn"),
    (("--users", "0"), "--users is 0; it must be at least 1"), (("--seed", "-1"), "--seed is -1"),
    (("--k", "5,601"), "--k: 601 is more than the 594 ids of the recommender")])
def test_what_cannot_be_is_refused_before_anything_is_measured(args, said, monkeypatch):
    monkeypatch.delenv("DARE_DATA", raising=False)
    monkeypatch.setattr(command, "measured", lambda *_: pytest.fail("it was measured"))
    with pytest.raises(ConfigError, match=said):
        CliRunner().invoke(app, ["bench", "recommend", *args], catch_exceptions=False)
