"""Tuning drafts by replaying recorded text: what wins on which latency, what is written and what refused."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pandas
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

from dare_job.cli import app
from dare_job.config.settings import load
from dare_job.decode.engine.latency import LatencyCurve
from dare_job.errors import ConfigError, DataError
from dare_job.evaluate.replay import budgets, run_shares
from dare_job.evaluate.replay.batched import Rate, fastest
from dare_job.evaluate.replay.tune import Options, run
from dare_job.publish.report.cost import TimeShares

CONF = Path(__file__).parents[1] / "conf"
QUERIES = (1, 2, 5, 9, 17, 33, 65)
FLAT = LatencyCurve.of({str(b): {str(q): 20.0 for q in QUERIES} for b in (1, 8)}, "flat")
LINEAR = LatencyCurve.of({str(b): {str(q): 5.0 + 0.2 * b * q for q in QUERIES} for b in (1, 8)}, "linear")
STEEP = LatencyCurve.of({str(b): {str(q): 5.0 * b * q * q for q in QUERIES} for b in (1, 8)}, "steep")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """90 texts of sentences out of 30, with a word changed here and there; groups, and the day before."""
    folder, rng = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0)
    names = [f"w{i}" for i in range(60)]
    sentences = [list(rng.choice(names, rng.integers(5, 12))) for _ in range(30)]

    def text() -> str:
        words = [word for i in rng.integers(0, len(sentences), 6) for word in sentences[i]]
        return " ".join(str(rng.choice(names)) if rng.random() < 0.08 else word for word in words)

    for name in ("old", "new"):
        rows = [{"user": f"u{i}", "text": text()} for i in range(90)]
        pandas.DataFrame(rows).to_csv(folder / f"{name}.csv", index=False)
    pandas.DataFrame({"entity_id": [f"u{i}" for i in range(90)],
                      "group": [f"g{i % 3}" for i in range(90)]}).to_csv(folder / "groups.csv", index=False)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(names)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def options(corpus, tmp_path, curve: LatencyCurve = LINEAR, **more) -> Options:
    return Options(**{
        "text": [corpus / "new.csv"], "column": "text", "tokenizer": [corpus / "tokenizer.json"],
        "id_column": "user", "held_out": 24, "curve": curve, "curve_name": "made", "nodes": (2, 4, 8, 32),
        "sizes": (10, 30), "contexts": (4, 12), "depths": (6, 12), "lambdas": (2.0, 8.0), "screen": 8,
        "drafting": (10.0, 1.0), "threads": 1, "out": tmp_path / "tuned.yaml", **more})


def test_the_winner_is_at_least_as_good_as_the_default(corpus, tmp_path, capsys):
    found = run(options(corpus, tmp_path))
    default, batch = found["default"], found["by_batch"]["8"]
    assert default["batch_size"] == 8 and set(found["by_batch"]) == {"1", "8"}
    assert "batch_size" not in found["best"]["decode"]  # that of the run's configuration stays
    assert found["tokens_per_s"] >= default["tokens_per_s"] and found["ratio_to_default"] >= 1
    ratio = found["tokens_per_s"] / default["tokens_per_s"]
    assert found["ratio_to_default"] == pytest.approx(ratio, abs=1e-3)
    low, high = found["ratio_ci95"]
    assert low <= found["ratio_to_default"] <= high
    assert found["ratio"] > 1 and default["nodes"] == "auto"
    assert 0 < found["drafting_share"] < 1
    assert found["drafting_share"] + found["forward_share"] == pytest.approx(1)
    assert found["run_shares"] is None and "no run has measured" in (tmp_path / "tuned.yaml").read_text()
    assert batch["plain_tokens_per_s"] == found["plain_tokens_per_s"] < batch["fixed_tokens_per_s"]
    sizes = [found["pool_sizes"][size]["accepted_per_step"] for size in ("0", "10", "30", "66")]
    assert sizes[0] < sizes[1] < sizes[2] <= sizes[3] + 0.01
    nodes, whole = batch["fixed_nodes"], found["pool_sizes"]["66"]
    by_hand = 8e3 * (whole["accepted_per_step"] + 1) / (LINEAR.ms(8, nodes + 1) + 8 * (10 + nodes) / 1e3)
    assert whole["tokens_per_s"] == pytest.approx(by_hand, rel=1e-3)
    planned = int(capsys.readouterr().out.split("at most ")[1].split()[0])
    assert 10 < found["replays"] <= planned


def test_the_measured_shares_of_a_run_are_said_and_written(corpus, tmp_path, capsys, monkeypatch):
    """Where they are read is tested with the report, which shows the same."""
    measured = run_shares.RunShares("out", "2026-01-09", "run-a", TimeShares(0.31, 0.07, 0.4, 0.22))
    monkeypatch.setattr(run_shares, "find", lambda texts, config: measured)
    found = run(options(corpus, tmp_path, nodes=(4,)))
    assert found["run_shares"] == {
        "out": "out", "date": "2026-01-09", "run_id": "run-a", "prompts": 0.31, "drafting": 0.07,
        "forward_passes": 0.4, "everything_else": 0.22}
    for text in (capsys.readouterr().out, (tmp_path / "tuned.yaml").read_text()):
        assert "in the run of 2026-01-09 (run run-a, out)" in text
        assert "prompts took 31 % of the decoding time, drafting 7.0 %, forward passes 40 %, " \
            "everything else 22 %" in text


def test_nodes_follow_the_latency(corpus, tmp_path):
    flat, linear, steep = (run(options(corpus, tmp_path, curve, rows=2000))
                           for curve in (FLAT, LINEAR, STEEP))
    nodes = [[found["by_batch"][batch]["fixed_nodes"] for batch in ("1", "8")]
             for found in (flat, linear, steep)]
    assert nodes[0] == [32, 32] and nodes[2] == [0, 0]
    assert 0 < nodes[1][1] <= nodes[1][0] < 32
    assert steep["waves"] is None and steep["ratio"] == pytest.approx(1, abs=0.02)
    assert steep["best"]["decode"]["nodes"] == "auto"  # which drafts nothing: 0 would not be faster
    assert flat["waves"]["ratio"] < 1


def test_what_is_written_is_read_by_the_job(corpus, tmp_path):
    for curve in (FLAT, STEEP):
        found = run(options(corpus, tmp_path, curve, command="dare-job tune --text 'a\nb: c'"))
        written = load([CONF / "demo.yaml", tmp_path / "tuned.yaml"])
        best = found["best"]["decode"]
        assert {key: getattr(written.decode, key) for key in best} == best
        assert written.decode.max_new_tokens == load(CONF / "demo.yaml").decode.max_new_tokens
        comments = [line for line in (tmp_path / "tuned.yaml").read_text().splitlines() if line[0] == "#"]
        assert "--text 'a b: c'" in comments[0] and f"{found['ratio_to_default']:.3f} times" in comments[3]


def test_a_price_gives_the_cost_of_a_million_tokens(corpus, tmp_path):
    found = run(options(corpus, tmp_path, per_gpu_hour=3.6, nodes=(4,)))
    for row in (found["default"], *found["by_batch"].values()):
        assert row["cost_per_million_tokens"] == pytest.approx(1000 / row["tokens_per_s"], rel=1e-3)
    one = found["by_batch"]["1"]
    plain = 1000 / one["plain_tokens_per_s"]
    assert one["plain_cost_per_million_tokens"] == pytest.approx(plain, rel=1e-3)
    text = (tmp_path / "tuned.yaml").read_text()
    assert "at 3.6 per GPU hour" in text and f"# batch 1: {one['cost_per_million_tokens']:.4g}, auto" in text
    assert load(tmp_path / "tuned.yaml").decode.nodes == found["best"]["decode"]["nodes"]
    (tmp_path / "job.yaml").write_text("cost: {per_gpu_hour: 2.5}\ndecode: {batch_size: 1}\n")
    assert run(options(corpus, tmp_path, config=[tmp_path / "job.yaml"], nodes=(4,)))["per_gpu_hour"] == 2.5


def test_a_smaller_pool_that_is_better_is_written(corpus, tmp_path):
    """Held-out texts and the ten next follow one rule of successors, the others another."""
    frame, rng = pandas.read_csv(corpus / "new.csv"), np.random.default_rng(1)
    ours, theirs = rng.permutation(60), rng.permutation(60)
    order = sorted(frame.index, key=lambda i: hashlib.sha256(frame.user[i].encode()).digest())
    for place, row in enumerate(order):
        words = [0]
        for _ in range(60):
            follows = ours if place < 24 + 10 else theirs
            words.append(follows[words[-1]] if rng.random() < 0.7 else rng.integers(60))
        frame.loc[row, "text"] = " ".join(f"w{word}" for word in words)
    frame.to_csv(tmp_path / "noisy.csv", index=False)
    found = run(options(corpus, tmp_path, text=[tmp_path / "noisy.csv"], nodes=(4,)))
    assert found["best"]["pools"] == {"max_global_texts": 10}
    assert load(tmp_path / "tuned.yaml").pools.max_global_texts == 10


def test_every_pool_has_its_own_limit(corpus, tmp_path, capsys):
    pools = {"pool": ("own", "group", "global"), "groups": corpus / "groups.csv", "old": corpus / "old.csv"}
    found = run(options(corpus, tmp_path, **pools))
    assert set(found["best"].get("pools", {})) <= {"max_texts", "max_global_texts"}
    said = capsys.readouterr().out
    assert "group_texts: all" in said and "global_texts: all" in said


def test_the_same_inputs_give_the_same_file(corpus, tmp_path):
    first = run(options(corpus, tmp_path))
    text = (tmp_path / "tuned.yaml").read_text()
    assert run(options(corpus, tmp_path)) == first and (tmp_path / "tuned.yaml").read_text() == text


def test_drafting_is_measured_where_it_is_not_given(corpus, tmp_path):
    given = run(options(corpus, tmp_path, FLAT, drafting=(0.0, 0.0)))
    measured = run(options(corpus, tmp_path, FLAT, drafting=None))
    both = [found["default"]["tokens_per_s"] for found in (given, measured)]
    assert both[0] > both[1] > 0.5 * both[0]


@pytest.mark.parametrize("change, message", [
    ({"nodes": (0,)}, "--nodes 0 must be from 1 to 512"), ({"contexts": (33,)}, "--contexts 33"),
    ({"depths": (65,)}, "--depths 65"), ({"sizes": (0,)}, "--sizes 0"), ({"screen": 0}, "--screen 0"),
    ({"lambdas": (0.0,)}, "--lambdas 0: each must be a number above 0"),
    ({"batch": (16,)}, "with this latency curve --batch 16 must be from 1 to 8"),
    ({"curve": LatencyCurve.of({"1": {"1": 1.0, "9": 2.0}}, "x")},
     "ends at 9 queries per row, but 15 draft tokens need 16"),
    ({"held_out": 3}, "hold out four or more"), ({"held_out": 90}, "below 90"),
    ({"pool": ("near",)}, "choose from own, group, global"), ({"pool": ("own",)}, "needs --old"),
    ({"column": "words"}, "no column words")])
def test_what_cannot_be_is_named(corpus, tmp_path, change, message):
    with pytest.raises((ConfigError, DataError), match=message):
        run(options(corpus, tmp_path, **change))
    assert not (tmp_path / "tuned.yaml").exists()


def arguments(corpus, tmp_path, *more) -> list[str]:
    return list(map(str, ("tune", "--text", corpus / "new.csv", "--column", "text", "--id-column", "user",
                          "--tokenizer", corpus, "--held-out", "12", "--screen", "4", "--nodes", "2,16",
                          "--sizes", "30", "--contexts", "12", "--depths", "12", "--lambdas", "8",
                          "--save", tmp_path / "new" / "tuned.yaml", *more)))


def test_the_command_measures_a_model_and_keeps_what_it_measured(corpus, tmp_path):
    kept = tmp_path / "l.json"
    measured = ("--model", "embedded", "--device", "cpu", "--batch", "1,2", "--nodes", "4,8",
                "--save-latency", kept)
    done = CliRunner().invoke(app, arguments(corpus, tmp_path, *measured))
    assert done.exit_code == 0, done.output
    last = json.loads(done.stdout.splitlines()[-1])
    assert set(last["by_batch"]) == {"1", "2"} and budgets.read_curve(kept).batches == [1, 2]
    again = CliRunner().invoke(app, arguments(corpus, tmp_path, "--latency", kept, "--drafting-us", "10,1"))
    assert again.exit_code == 0 and (tmp_path / "new" / "tuned.yaml").is_file()


@pytest.mark.parametrize("more, message", [
    ((), "give --latency FILE"), (("--latency", "a", "--model", "b"), "and not both"),
    (("--latency", "nowhere.json"), "nowhere.json cannot be read"),
    (("--latency", "a", "--save-latency", "b"), "give --model NAME"),
    (("--latency", "{curve}", "--nodes", "few"), "--nodes 'few' is not a list of numbers"),
    (("--latency", "{curve}", "--lambdas", "inf"), "--lambdas 'inf' is not a list"),
    (("--latency", "{curve}", "--drafting-us", "5"), "--drafting-us '5' is not two numbers"),
    (("--latency", "{curve}", "--save", "{folder}"), "cannot be written: it is a folder")])
def test_wrong_options_of_the_command(corpus, tmp_path, more, message):
    curve = CONF / "latency" / "h100-mistral-7b.json"
    more = [part.format(curve=curve, folder=tmp_path) for part in more]
    found = CliRunner().invoke(app, arguments(corpus, tmp_path, *more))
    assert isinstance(found.exception, (ConfigError, DataError)) and message in str(found.exception)


def test_a_place_that_cannot_be_written_is_named_before_the_search(corpus, tmp_path):
    if os.geteuid() == 0:
        tmp_path = Path("/proc")
    else:
        tmp_path.chmod(0o500)
    found = CliRunner().invoke(app, arguments(corpus, tmp_path, "--latency", "nowhere.json"))
    assert isinstance(found.exception, ConfigError) and "cannot be written" in str(found.exception)


def test_the_settings_before_are_those_of_a_configuration(corpus, tmp_path):
    config = tmp_path / "own.yaml"
    config.write_text("decode: {batch_size: 2, nodes: 3, context: 4, depth: 6}\n")
    found = run(options(corpus, tmp_path, config=[config], contexts=(4,), depths=(6,)))
    assert (found["default"]["batch_size"], found["default"]["nodes"]) == (2, 3)
    assert found["best"]["decode"]["batch_size"] == 2 and set(found["by_batch"]) == {"1", "2", "8"}
    found = run(options(corpus, tmp_path, batch=(1, 4), contexts=(4,), depths=(6,)))  # the largest given
    assert found["best"]["decode"]["batch_size"] == 4 and set(found["by_batch"]) == {"1", "4"}
    config.write_text("decode: {batch_size: 64}\n")
    with pytest.raises(ConfigError, match="decode.batch_size 64 must be from 1 to 8"):
        run(options(corpus, tmp_path, config=[config]))


def test_a_fixed_budget_is_never_written():
    """It would switch the draft budget off."""
    def batched(point, nodes):
        ms = {"start": 12.0, "found": 10.0}[point] if nodes == "auto" else 1.0
        return Rate(point, nodes, 1.0, 1e3 / ms, np.full(40, ms))

    found = fastest(batched, "start", "found")
    assert (found.point, found.nodes) == ("found", "auto")
