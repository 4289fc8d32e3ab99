"""The bench of sampling: from nothing to its figures on a few rows, and what they are made of."""

import json
from xml.etree import ElementTree

import numpy as np
import profile_files
import pytest
from transformers import AutoTokenizer
from typer.testing import CliRunner

from dare_job.bench.cli import app
from dare_job.bench.profiles import data, train
from dare_job.bench.sampling import acceptance, compare, curve, measure, report, world
from dare_job.bench.sampling.measure import Measured, Method, paths_tokens
from dare_job.errors import ConfigError
from dare_job.models import embedded_path
from dare_job.training.drafter.settings import Settings
from dare_job.training.drafter.train import network

LINE = {"temperature", "method", "drafter", "tree", "nodes", "distribution", "rule", "steps", "tokens",
        "block_efficiency", "error", "expected", "fewer_forwards", "target_tokens", "tokens_per_s",
        "ratio_to_baseline", "ratio_by_processor", "memory_bound", "joules_per_token"}


def invoke(*args):
    return CliRunner().invoke(app, ["sample", *args])


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def shown(work):
    return invoke("--quick", "--temperatures", "0,1", "--work", str(work), "--plot", str(work / "rates.svg"))


@pytest.fixture(scope="module")
def found(shown):
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout.splitlines()[-1])


@pytest.mark.release
def test_it_ends_with_a_line_for_every_way_of_sampling(found):
    rows = found["rows"]
    assert all(set(row) == LINE for row in rows)
    for temperature in (0, 1):
        ways = [row["method"] for row in rows if row["temperature"] == temperature]
        named = {"plain", measure.SD_BEST, measure.BEST, measure.HERE, "retrieval"}
        if temperature:
            named |= {title for title, _, _ in measure.ABLATION}
        assert named <= set(ways) and len(ways) == len(set(ways))
    for row in rows:
        assert row["steps"] + 3 <= row["tokens"] <= 3 * 16 and row["block_efficiency"] >= 1
        assert row["block_efficiency"] <= 1 + min(row["nodes"], 8)
        if row["nodes"] == 0:
            assert row["block_efficiency"] == row["fewer_forwards"] == row["memory_bound"] == 1


@pytest.mark.release
def test_greedy_text_is_the_same_however_it_is_drafted(found):
    """Temperature 0: as many tokens in all ways, each step of a tree at least its own."""
    assert len({row["tokens"] for row in found["rows"] if row["temperature"] == 0}) == 1


@pytest.mark.release
def test_acceptance_is_drawn_over_candidates(found, work):
    """A panel for each draft model, and in it a line for each temperature with all that was measured."""
    drawn = ElementTree.fromstring((work / "rates.svg").read_text())
    kinds = {"".join(part.itertext()) for part in drawn.iter() if part.tag.endswith("text")}
    assert {"temperature 0", "temperature 1"} <= kinds and any("before distillation" in one for one in kinds)
    paths = [part.get("d") for part in drawn.iter() if part.tag.endswith("path")]
    assert len(paths) == 4 and {path.count(",") for path in paths} == {len(acceptance.QUICK_PROBES)}


@pytest.mark.release
def test_targets_are_printed_as_met_or_missed(shown, found):
    assert len(found["targets"]) == 2
    for one in found["targets"]:
        assert one["met"] == (one["measured"] >= one["bound"])
        assert f"{'met' if one['met'] else 'MISSED'}: {one['target']}" in shown.stdout


@pytest.mark.release
@pytest.mark.parametrize(("measured", "code"), [((2.0, 1.8), 0), ((1.99, 1.8), 1), ((2.5, 1.7), 1)])
def test_a_target_that_is_missed_fails_the_command(found, monkeypatch, measured, code):
    """The last line of standard output stays JSON."""
    rows = [{**row, "fewer_forwards": measured[0], "memory_bound": measured[1]} for row in found["rows"]]
    result = {**found, "targets": report.targets(rows, "cpu")}
    assert [one["met"] for one in result["targets"]] == [measured[0] >= 2, measured[1] >= 1.8]
    monkeypatch.setattr(compare, "run", lambda options: result)
    done = invoke("--temperatures", "1")
    assert done.exit_code == code and json.loads(done.stdout.splitlines()[-1]) == result
    assert invoke("--temperatures", "1", "--quick").exit_code == 0


@pytest.mark.release
def test_a_gpu_is_held_to_the_clock(found):
    rows = [{**row, "ratio_to_baseline": 1.7} for row in found["rows"]]
    added = [one for one in report.targets(rows, "cuda") if one not in report.targets(rows, "cpu")]
    assert [(one["target"], one["bound"], one["met"]) for one in added] == [
        ("temperature 1: speed-up in wall-clock time, at least", 1.8, False)]


@pytest.mark.release
def test_any_model_can_be_the_target(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(embedded_path())
    folder, tiny = tmp_path / "model", Settings(width=32, layers=1, heads=2)
    network(tokenizer, len(tokenizer), 1024, tiny).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    ran = invoke("--model", str(folder), "--dtype", "bfloat16", "--device", "cpu", "--temperatures", "1",
                 "--quick")
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["machine"]["device"] == "cpu" and found["dtype"] == "bfloat16"
    assert found["parameters"] < 1e6 and found["entropy"][0]["mean"] > 1  # it was never trained


def test_a_tokenizer_without_an_end_of_text(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(embedded_path())
    ends = world.sample_world(2, 40, 20, 300, 0)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    found = world.sample_world(2, 40, 20, 300, 0, str(tmp_path))
    assert [len(row.text) + 1 for row in found.foreign] == [len(row.text) for row in ends.foreign]


@pytest.mark.release
def test_both_draft_models_are_kept(found, work):
    folders = sorted(path.name for path in work.iterdir() if path.is_dir())
    assert [name.rsplit("-", 1)[0] for name in folders] == ["drafter-after", "drafter-before"]
    assert found["training"]["before"]["kl"] == 0 < found["training"]["after"]["kl"]


def test_rows_that_are_measured_are_of_users_that_no_model_has_seen(tmp_path, monkeypatch):
    profile_files.write(tmp_path)
    profile_files.small_models(monkeypatch)
    settings = train.Settings(steps=2, test_users=10, noise=0.0, threads=1)
    found = world.real_profiles(tmp_path, tmp_path / "work", 2, 22, 30, settings)
    learned, test = data.split(data.load(tmp_path), 10)
    assert len(found.rows) == 2 and set(found.rows) <= {one.user for one in test}
    assert set(found.others) == {row.name for row in found.foreign} == {one.user for one in learned[:20]}
    assert 0 < max(len(row.text) for row in found.foreign) <= 30
    for row in found.foreign:
        assert np.array_equal(row.prompt, found.others[row.name])


def test_profiles_that_leave_too_few_rows_are_refused_before_their_model_is_trained(tmp_path, monkeypatch):
    profile_files.write(tmp_path)
    monkeypatch.setattr(train, "model", lambda *_: pytest.fail("it was trained"))
    with pytest.raises(ConfigError, match="--rows 9 of 10 users"):
        world.real_profiles(tmp_path, tmp_path / "work", 9, 22, 30, train.Settings(test_users=10))


def test_texts_too_short_to_measure_say_so(monkeypatch):
    """One step a text, which its end may have cut."""
    short = Measured(1, 2, 1, np.zeros(0, np.int64))
    monkeypatch.setattr(acceptance, "generate_rows", lambda *_: short)
    with pytest.raises(ConfigError, match="--tokens 2: no text took two steps of the tree 4"):
        acceptance.measure(None, "after", 1.0, 2, ("4",), 3)


def test_rates_are_counted_from_steps_and_filled_where_nothing_was_measured():
    seen = Measured(1, 14, 6, np.array([1, 1, 2, 3, 3, 3]))
    assert seen.rates(2).tolist() == [4 / 6, 3 / 4]
    found = {}
    acceptance.add(found, (1, 1), seen)
    acceptance.add(found, (3,), Measured(1, 9, 6, np.array([2, 2, 2, 2, 2, 1])))
    rates = acceptance.table(found, 3)
    assert rates[0] == pytest.approx([4 / 6, 9 / 12, 5 / 6])  # three leave half of what one fails
    assert rates[1] == pytest.approx([3 / 4, 13 / 16, 7 / 8])
    assert rates[2] == pytest.approx(rates[1])
    acceptance.add(found, (2, 3), Measured(1, 9, 6, np.array([3, 2, 2, 1])))
    assert found[1, 2] == 3 / 4 and found[2, 3] == 1 / 3  # by chance: two of the three would do as well
    assert acceptance.table(found, 2)[1] == pytest.approx([3 / 4, 13 / 16, 13 / 16])


def test_a_rate_that_was_never_reached_is_not_measured():
    found = {}
    acceptance.add(found, (2, 2), Measured(1, 4, 4, np.array([1, 1, 1, 1])))
    assert found == {(1, 2): 0.0}


def test_a_drafter_that_is_never_right_costs_what_it_takes():
    assert curve.speed_up(1, (), 0) == 1
    assert 0.8 < curve.speed_up(1, (2, 1), 4) < 1 < curve.speed_up(2, (2, 1), 4) < 2
    best = Method("tree", "after", (4, 2, 1))
    assert best.size == 20
    assert curve.paths_speed_up(3, best.widths) < curve.speed_up(3, best.widths, best.size)
    assert paths_tokens(best.widths) == 32  # eight paths of a root and three levels
    table = curve.draft_table(3)
    assert table[0] == 0 and table[3] == pytest.approx(curve.draft_ms((2, 1, 1)), rel=0.01)


def test_this_machines_curve_is_read_as_it_was_measured():
    measured = {"target": {"1": 2.0, "3": 4.0, "5": 4.5}, "drafter": {"1": 0.5, "5": 1.0}}
    target, drafter = curve.tables_here(measured, 4, 2)
    assert target.tolist() == [2, 3, 4, 4.25, 4.5] and drafter.tolist() == [0, 0.5, 1]


@pytest.mark.parametrize(("args", "said"), [
    (("--temperatures", "-1"), "--temperatures: sample.temperature is -1.0; it must be 0 .greedy."),
    (("--temperatures", "0,nan"), "--temperatures: sample.temperature is nan"),
    (("--temperatures", "inf"), "--temperatures: sample.temperature is inf"),
    (("--temperatures", "1e-9", "--quick"), "--temperatures: sample.temperature is 1e-09; .* at least 1e-06"),
    (("--temperatures", ","), "--temperatures is empty"),
    (("--seed", "-1"), "--seed is -1; it must be at least 0"),
    (("--tokens", "1"), "--tokens is 1; it must be at least 2"),
    (("--work", __file__), "--work .* is a file; name a folder"),
    (("--temperatures", "hot"), "'hot' is not a list of numbers"),
    (("--nodes", "600"), "--nodes 600: a row's tree has at most 512"),
    (("--data", "somewhere", "--model", "another"), "--data samples the model of real profiles"),
    (("--rows", "0"), "--rows is 0; it must be at least 1"),
    (("--rows", "60", "--users", "60"), "must be left to learn from")])
def test_what_cannot_be_is_refused_before_anything_is_trained(args, said, monkeypatch):
    monkeypatch.setattr(compare.world, "prepare", lambda *_: pytest.fail("it came to the models"))
    with pytest.raises(ConfigError, match=said):
        CliRunner().invoke(app, ["sample", *args], catch_exceptions=False)
