"""``bench recommend`` on a small catalogue: every row has its figures; drafts change no strict result."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from dare_job.bench.cli import app
from dare_job.bench.recommend import compare, measure, report
from dare_job.bench.recommend.compare import Options
from dare_job.bench.recommend.measure import same
from dare_job.decode.trie_search.search import TopKResult
from dare_job.errors import ConfigError

ROW = {"method", "verification", "k", "speedup_cpu", "speedup_clock", "speedup_memory_bound",
       "forwards_saved", "accepted_steps", "recall", "ndcg", "identical"}


@pytest.mark.slow
def test_the_command_ends_with_its_rows(monkeypatch):
    monkeypatch.delenv("DARE_DATA", raising=False)
    ran = CliRunner().invoke(app, ["recommend", "--quick"])
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


def test_wall_clock_targets_apply_to_gpus_only():
    speeds = {"forwards_saved": 2.5, "speedup_memory_bound": 2.4, "speedup_clock": 1.9}
    rows = [{"method": "SFT", "verification": kind, "k": 10, "identical": True, **speeds}
            for kind in ("strict", "relaxed")]
    assert len(report.targets(rows, None, 10, "cpu")) == 5 and all(one["met"] for one in report.targets(
        rows, None, 10, "cpu"))
    found = {one["target"]: one["met"] for one in report.targets(rows, None, 10, "cuda")}
    assert found["strict at K = 10, times as fast in wall-clock time, at least"]
    assert not found["relaxed at K = 10, times as fast in wall-clock time, at least"]


def _result(reads, draft_reads):
    """Return a search result of two users from what its forward passes read."""
    empty = np.zeros((2, 0))
    return TopKResult(empty, empty, empty, np.array(reads), np.array(draft_reads).reshape(-1, 2), 4, 0.0, 0.0)


def test_memory_bound_times_are_those_of_each_users_forwards(monkeypatch):
    """By costs that differ for tokens, rows and models; a forward pass without a user costs that user
    nothing.
    """
    measure._ms.cache_clear()
    monkeypatch.setattr(measure, "forward_ms", lambda device, model, rows, queries, context: (
        1000 if model is measure.MISTRAL else 1) * (10 * rows + queries))
    found = measure.search_ms(_result([[8, 7], [3, 0]], [[5, 5], [0, 2]]))
    assert found.tolist() == [18_000 + 13_000 + 15, 17_000 + 15 + 12]
    assert measure.search_ms(_result([[8, 7]], [])).tolist() == [18_000, 17_000]
    measure._ms.cache_clear()


def test_memory_bound_forwards_cost_their_weights_until_arithmetic_costs_more():
    """Mistral's 14.48 GB and LLaMA-68M's 136 MB at 3.35 TB/s plus keys and values, from data sheets."""
    assert measure._ms(True, 1) == pytest.approx(4.325, abs=0.005) == measure._ms(True, 100)
    assert measure._ms(False, 1) == pytest.approx(0.0413, abs=0.001)
    assert measure._ms(True, 600) == pytest.approx(9.0, rel=0.05)


def test_near_ties_count_as_identical():
    plain = SimpleNamespace(leaves=np.array([[1, 2, 3], [1, 2, 3], [1, 2, 3]]),
                            scores=np.array([[-1.0, -2.0, -2.00001]] * 3))
    found = SimpleNamespace(leaves=np.array([[1, 2, 3], [1, 3, 2], [2, 1, 3]]), scores=plain.scores)
    share, near = same(found, plain)
    assert share == pytest.approx(2 / 3) and near == 1


def test_a_target_needs_data_and_drafts_a_target(tmp_path, monkeypatch):
    monkeypatch.delenv("DARE_DATA", raising=False)
    with pytest.raises(ConfigError, match="--model and sequences"):
        Options(target=tmp_path)
    with pytest.raises(ConfigError, match="--draft needs"):
        Options(drafts={"SFT": tmp_path})


@pytest.mark.parametrize(("args", "message"), [
    (("--k", "0,5"), "--k: 0 is among them"), (("--k", ""), "--k is empty"),
    (("--widths", "0"), "--widths: 0 is among them"), (("--depths", "1,-1"), "--depths: -1 is among them"),
    (("--temperatures", "0.5,nan"), "--temperatures: sample.temperature is nan"),
    (("--temperatures", "0"), "--temperatures: temperature 0 does not sample"),
    (("--users", "0"), "--users is 0; it must be at least 1"), (("--seed", "-1"), "--seed is -1"),
    (("--k", "5,601"), "--k: 601 is more than the 594 ids of the recommender")])
def test_invalid_options_fail_before_measuring(args, message, monkeypatch):
    monkeypatch.delenv("DARE_DATA", raising=False)
    monkeypatch.setattr(compare, "measure", lambda *_: pytest.fail("it was measured"))
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(app, ["recommend", *args], catch_exceptions=False)
