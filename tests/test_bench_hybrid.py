"""The bench of chains: a small hybrid is trained here and decodes with and without drafts."""

import json

import pytest
from typer.testing import CliRunner

from dare_job.bench import hybrid
from dare_job.bench.cli import app
from dare_job.bench.decode import methods
from dare_job.errors import ConfigError
from dare_job.training.embedded import train


@pytest.mark.parametrize("kind", [pytest.param("qwen3_5", marks=pytest.mark.slow),
                                  pytest.param("granite", marks=pytest.mark.release)])
def test_the_command_ends_with_its_figures(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "_BATCH_TOKENS", 512)
    monkeypatch.setitem(hybrid._SIZES, "hidden_size", 64)
    arguments = ["hybrid", "--kind", kind, "--steps", "2", "--rows", "2", "--pool", "3", "--repeats", "1",
                 "--tokens", "8", "--work", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    figures = json.loads(result.stdout.splitlines()[-1])
    assert figures["drafts"] == "chain" and figures["rows_that_differ"] == 0
    assert [row["method"] for row in figures["rows"]] == list(hybrid.METHODS)
    assert all(row["tokens_per_s"] > 0 for row in figures["rows"])
    assert [target["bound"] for target in figures["targets"]] == [1.3, 1.3]
    assert result.exit_code == (0 if all(target["met"] for target in figures["targets"]) else 1)
    monkeypatch.setattr(hybrid, "_train", lambda *_: pytest.fail("trained again"))
    assert hybrid.model(tmp_path, hybrid.Kind(kind), 2).name == figures["model"]


def test_impossible_options_are_named():
    for wrong, message in (({"rows": 0}, "--rows 0"), ({"batch": (1, 0)}, "--batch 1,0")):
        with pytest.raises(ConfigError, match=message):
            hybrid.Options(**wrong)
    assert methods.STRICT in hybrid.METHODS
