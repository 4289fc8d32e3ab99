"""Mode beam in the job: its settings, its engine, and a run."""

import json
import sys
from types import SimpleNamespace

import pytest
from pydantic import ValidationError
from transformers import AutoTokenizer

from dare_job import cli
from dare_job.config.settings import JobConfig
from dare_job.decode.model.target import Target
from dare_job.decode.settings import Beams, Warp
from dare_job.generate import engines, loading
from dare_job.models.files import resolve
from dare_job.training.drafter.settings import Settings
from dare_job.training.drafter.train import network

MODEL = {"model": "m"}


def task_of(beam: dict, draft=None, **others):
    drafter = {"model": str(draft)} if draft else {}
    config = JobConfig.model_validate(
        {"decode": {"mode": "beam"}, "beam": beam, "drafter": drafter, **others})
    return SimpleNamespace(config=config, threads=1, draft=str(draft))


@pytest.fixture
def embedded(monkeypatch):
    folder = resolve("embedded")
    target = Target.load(folder, device="cpu")
    loaded = SimpleNamespace(target=target, numbers=None, learned={})
    monkeypatch.setattr(loading, "load_task_model", lambda task: loaded)
    return folder


@pytest.fixture(scope="module")
def drafter(tmp_path_factory):
    """An untrained draft model with the embedded model's tokens."""
    folder, tokenizer = tmp_path_factory.mktemp("draft"), AutoTokenizer.from_pretrained(resolve("embedded"))
    network(tokenizer, len(tokenizer), 1024, Settings(width=64, heads=2)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_the_engine_of_a_task(embedded, drafter):
    beam = {"width": 3, "draft_width": 5, "min_width": 2, "threshold": 0.7, "layers": 3,
            "method": "without_replacement/iid", "length_penalty": 0.5}
    task = task_of(beam, drafter, sample={"temperature": 0.8, "top_k": 50}, seed=4)
    drafted, plain = loading.make_engine(task), loading.make_engine(task, mode="autoregressive")
    assert drafted.beams == Beams(3, 5, 2, 0.7, 3, Warp(0.8, 50), "without_replacement", "iid", 0.5, seed=4)
    assert drafted._drafter.model is engines.load_draft_model(task)
    assert plain.beams.layers == 0 and plain._drafter is None and plain.settings.score == "never"


@pytest.mark.parametrize(("beam", "names"), [
    ({"min_width": 5}, "beam.min_width"), ({"draft_width": 2, "min_width": 3}, "beam.draft_width"),
    ({"method": "greedy"}, "method"), ({"width": 0}, "width")])
def test_rejected_settings(beam, names):
    with pytest.raises(ValidationError, match=names):
        JobConfig.model_validate({"decode": {"mode": "beam"}, "beam": beam, "drafter": MODEL})


def test_rejected_temperatures_and_rules():
    search = {"decode": {"mode": "beam"}, "drafter": MODEL, "sample": {"temperature": 0}}
    with pytest.raises(ValidationError, match="beam.draft_width = 2 is less than beam.width"):
        JobConfig.model_validate({**search, "beam": {"draft_width": 2}})
    with pytest.raises(ValidationError, match="sample.temperature is 1e-09"):
        JobConfig.model_validate({**search, "sample": {"temperature": 1e-9}})
    with pytest.raises(ValidationError, match="verify.rule"):
        JobConfig.model_validate({"decode": {"mode": "beam"}, "verify": {"rule": "relaxed"}})


@pytest.mark.spark
@pytest.mark.slow
def test_a_run_with_beams(tmp_path, drafter, capsys, monkeypatch):
    """The whole job with drafts; a second run with the same settings reuses all rows."""
    def run(*args):
        monkeypatch.setattr(sys, "argv", ["dare-job", *args])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code, capsys.readouterr().err
        return capsys.readouterr().out.splitlines()

    monkeypatch.chdir(tmp_path)
    run("data", "sample", "--save", "world", "--users", "12", "--items", "8")
    config = {"out": str(tmp_path / "out"), "input": {"path": str(tmp_path / "world")},
              "decode": {"mode": "beam", "max_new_tokens": 24}, "beam": {"width": 2},
              "drafter": {"model": str(drafter)}, "spark": {"master": "local[1]"},
              # texts of few tokens are cut off, and some are equal
              "gates": {"max_share": {"cut_off": None, "same_text": None}},
              "baseline": {"rows": 0}}
    (tmp_path / "job.yaml").write_text(json.dumps(config))
    asked = ["--config", "job.yaml", "--limit", "3"]
    first = json.loads(run("run", "--date", "2026-01-02", *asked)[-1])
    assert first["written"] == 6 and not first["errors"]
    manifest, = (tmp_path / "out").glob("knowledge/entity=user/dt=2026-01-02/_manifest.json")
    beams = json.loads(manifest.read_text())["beams"]
    assert 1 <= beams["width"] <= 2 and beams["verified"] >= beams["passed"]
    assert beams["layers"] > 6
    again = json.loads(run("run", "--date", "2026-01-03", *asked)[-1])
    assert again["skipped_fresh"] >= 3
