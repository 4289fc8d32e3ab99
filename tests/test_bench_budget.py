"""``python -m dare_job.bench budget``: the draft budget against fixed budgets on recorded texts."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

from dare_job.bench.cli import app
from dare_job.errors import ConfigError

WORDS = [f"w{i}" for i in range(30)]


@pytest.fixture
def files(tmp_path):
    """60 texts of a few phrases, a tokenizer of whole words, a curve on which each query costs the same."""
    rng = np.random.default_rng(0)
    phrases = [list(rng.permutation(WORDS)[:6]) for _ in range(8)]
    rows = [{"text": " ".join(sum((phrases[i] for i in rng.integers(0, 8, 8)), []))} for _ in range(60)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    curve = {str(b): {str(q): 10.0 + 0.5 * b * q for q in (1, 2, 5, 17)} for b in (1, 8)}
    (tmp_path / "linear.json").write_text(json.dumps({"latency_ms": curve}))
    return tmp_path


def call(files, *more: str):
    return CliRunner().invoke(app, ["budget", "--text", str(files / "a.jsonl"), "--column", "text",
                                    "--tokenizer", str(files / "tokenizer.json"), "--held-out", "12", *more])


def test_the_last_line_compares_every_batch_size_and_curve(files):
    (files / "flat.json").write_text(json.dumps({"latency_ms": {"1": {"1": 9.0, "9": 9.5}}}))
    done = call(files, "--latency", str(files / "linear.json"), "--latency", str(files / "flat.json"),
                "--batch", "1,4", "--nodes", "0,2,8")
    found = json.loads(done.stdout.splitlines()[-1])
    missed = [row for row in found["rows"] if row["ratio_to_best_fixed"] < found["target"] == 0.95]
    assert done.exit_code == bool(missed) and done.stdout.count("missed: ") == len(missed), done.output
    assert [(row["batch"], row["curve"]) for row in found["rows"]] == [
        (1, "linear"), (1, "flat"), (4, "linear"), (4, "flat")]
    assert found["worst"] == min(row["ratio_to_best_fixed"] for row in found["rows"])
    for row in found["rows"]:
        assert row["best_fixed"] in (0, 2, 8) and row["best_fixed_tokens_per_s"] > 0
        assert row["ratio_to_best_fixed"] == pytest.approx(
            row["tokens_per_s"] / row["best_fixed_tokens_per_s"], abs=2e-3)
        assert row["ratio_to_baseline"] > 1 and row["accepted_per_step"] > 0


def test_a_budget_that_is_behind_ends_the_command_with_one(files, monkeypatch):
    monkeypatch.setattr("dare_job.bench.budget.max_row_nodes", lambda batch: 0)  # never drafts
    done = call(files, "--latency", str(files / "linear.json"), "--batch", "1", "--nodes", "0,8")
    assert done.exit_code == 1 and "missed: linear, batch 1: " in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["worst"] < 0.95


@pytest.mark.parametrize(("more", "message"), [
    ((), "no latency curve"),
    (("--latency", "linear", "--batch", "0"), "--batch must be at least 1")])
def test_refused(files, more, message):
    more = [str(files / "linear.json") if word == "linear" else word for word in more]
    done = call(files, *more)
    assert isinstance(done.exception, ConfigError) and message in str(done.exception)
