"""The stage recommend on the command line: alone, and as part of ``run`` if it has a model."""

import pytest
from typer.testing import CliRunner

from dare_job import pipeline
from dare_job.cli import app
from dare_job.config.settings import load
from dare_job.errors import ConfigError


def test_the_command_needs_a_recommender(tmp_path):
    (tmp_path / "c.yaml").write_text(f"out: {tmp_path / 'out'}\n")
    asked = ["run", "--from", "recommend", "--to", "recommend", "--config", str(tmp_path / "c.yaml"),
             "--date", "2026-01-02"]
    ran = CliRunner().invoke(app, asked)
    assert isinstance(ran.exception, ConfigError) and "recommend.model is not set" in str(ran.exception)
    ran = CliRunner().invoke(app, [*asked, "--if-set"])
    assert ran.exit_code == 0 and ran.stdout.strip() == "{}"
    ran = CliRunner().invoke(app, [*asked, "--recommender", "m", "--k", "0"])
    assert isinstance(ran.exception, ConfigError) and "recommend.k" in str(ran.exception)


@pytest.mark.parametrize(("override", "words"), [
    ("recommend.k=0", "recommend.k"), ("recommend.exclude=[bought]", "recommend.exclude"),
    ("recommend.scores=log", "renormalised"), ("recommend.dtype=float64", "recommend.dtype"),
    ("recommend.draft_depth=never", "all"),
    ("recommend.temperature=-1", "recommend.temperature"), ("recommend.beams=3", "recommend.beams")])
def test_invalid_settings_are_named(override, words):
    with pytest.raises(ConfigError, match=words):
        load([], [override])


def test_run_recommends_where_there_is_a_model():
    assert "recommend" not in pipeline.STAGES and pipeline.ALONE == ("recommend",)
