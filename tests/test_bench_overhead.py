"""``python -m dare_job.bench overhead``: where a step's time goes, and how much of it may be ours."""

import json

import pytest
from typer.testing import CliRunner

from dare_job.bench.cli import app

PARTS = ("draft", "tree", "mask", "verify", "write", "cache", "other")


def call(*options: str) -> dict:
    done = CliRunner().invoke(app, [
        "overhead", "--new-tokens", "8", "--repeats", "1", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.release
def test_every_batch_size_and_budget_has_its_parts_and_its_allowance():
    found = call("--batches", "1,3", "--nodes", "0,4,auto")
    assert [(row["batch"], row["nodes"]) for row in found["rows"]] == [
        (batch, nodes) for batch in (1, 3) for nodes in ("0", "4", "auto")]
    for row in found["rows"]:
        assert row["allowed_us"] == 500 + 20 * row["batch"]
        assert row["forward_us"] > 0 < row["outside_us"]
        assert abs(row["outside_us_per_row"] * row["batch"] - row["outside_us"]) < 0.01
        assert all(row[f"{part}_us"] > 0 for part in PARTS if part not in ("draft", "cache", "other"))
        assert (row["accepted_per_step"] > 0) == (row["nodes"] != "0") or row["nodes"] == "auto"


def test_rules_and_processors_can_be_asked_for():
    found = call("--batches", "2", "--nodes", "4", "--rule", "entropy", "--repetition-penalty", "1.1",
                 "--no-repeat-ngram-size", "3")
    assert (found["rule"], found["repetition_penalty"], found["no_repeat_ngram_size"]) == ("entropy", 1.1, 3)


def test_a_grammar_adds_its_parts_and_leaves_the_texts():
    pytest.importorskip("llguidance", reason="grammars need the package llguidance (extra schema)")
    found = call("--grammar", "--batches", "1,2", "--nodes", "0,4")["rows"]
    assert [(row["batch"], row["nodes"]) for row in found] == [(1, "0"), (1, "4"), (2, "0"), (2, "4")]
    for row in found:
        assert row["masks_us"] > 0 < row["advance_us"]
        assert (row["drafts_us"] > 0) == (row["nodes"] != "0") == (row["free_tokens_per_step"] > 1.5)
        assert row["tokens_per_step"] >= row["free_tokens_per_step"]  # the form's own tokens are forced
