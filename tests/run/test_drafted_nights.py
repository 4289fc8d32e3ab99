"""Nights that a draft model drafts: strict text stays what it is, sampled text is the engine's own."""

import json
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from run_helpers import NIGHT_2, settings, snapshot
from transformers import AutoTokenizer

from dare_job import cli, pipeline
from dare_job.decode.draft.model import ModelDrafter
from dare_job.decode.model.target import Target
from dare_job.decode.prompt.tokens import prompt_ids
from dare_job.decode.request import Request
from dare_job.decode.sampling.engine import Sampling, SamplingEngine
from dare_job.decode.settings import EngineSettings, Warp
from dare_job.models import embedded_path
from dare_job.schemas import ENTITIES

sys.path.insert(0, str(Path(__file__).parents[1] / "draft_model"))
import noisy_drafter  # noqa: E402

pytestmark = pytest.mark.spark
ROWS, TOKENS = 5, 24
SHORT = {"decode": {"max_new_tokens": TOKENS}, "baseline": {"rows": 0}, "waves": {"when": "never"},
         # texts of few tokens are cut off, and some are equal
         "gates": {"max_share": {"cut_off": None, "same_text": None, "short": None}}}


def written(job_of, out, **sections) -> tuple[dict[tuple, list[int]], dict]:
    """Token ids of a limited night without old text, by entity type and id; and generate's report."""
    given = {name: {**section, **sections.get(name, {})} for name, section in SHORT.items()}
    report = pipeline.run(job_of(out, NIGHT_2, limit=ROWS, **{**sections, **given}), last="generate")
    work = out / "_work" / f"dt={NIGHT_2}" / "generate"
    rows = {entity: ds.dataset(work / f"entity={entity}", format="parquet").to_table().to_pylist()
            for entity in ENTITIES}
    found = {(entity, row["entity_id"]): row["token_ids"] for entity in ENTITIES for row in rows[entity]
             if row["token_ids"]}
    assert report["baseline"] is None  # baseline.rows: 0
    assert len(found) == 2 * ROWS == sum(len(rows[entity]) for entity in ENTITIES) - report["errors"]
    return found, report


@pytest.mark.slow
def test_strict_text_is_the_same_whatever_drafts_it(job_of, nights, tmp_path):
    """The target drafts for itself: what it drafts is right, and is shipped though the master is local."""
    found, report = written(job_of, tmp_path, drafter={"model": "embedded", "tree": "2x1x1"},
                            spark={"ship": "always"}, decode={"nodes": 6})
    longer = {entity: snapshot(nights.out, entity, NIGHT_2) for entity in ENTITIES}
    assert found == {(entity, name): longer[entity][name]["token_ids"][:TOKENS] for entity, name in found}
    assert report["accepted_tokens"] > 2 * report["target_steps"]


@pytest.mark.slow
def test_sampled_text_is_what_the_engine_draws_with_the_settings(job_of, tmp_path, tmp_path_factory):
    """By model, law, rule, bias and seed of the settings, and numbers by each row's entity type and id."""
    drafter = noisy_drafter.write(tmp_path_factory.mktemp("drafter"))
    sample = {"temperature": 1.3, "method": "priority", "logit_bias": {20: 1.5}}
    found, report = written(job_of, tmp_path, sample=sample, seed=3,
                            drafter={"model": str(drafter), "tree": "3x2"},
                            decode={"mode": "sample", "nodes": "auto", "batch_size": 2, "score": "auto"})
    assert report["accepted_tokens"] > 0.1 * report["target_steps"]
    target, tokenizer = Target.load(embedded_path()), AutoTokenizer.from_pretrained(embedded_path())
    engine = SamplingEngine(target, EngineSettings(max_new_tokens=TOKENS, nodes=9, score="never"),
                            Sampling(Warp(1.3, logit_bias={20: 1.5}), 3, "iid", "priority"),
                            ModelDrafter(Target.load(drafter), "3x2", target.vocabulary))
    asked = []
    for entity in ENTITIES:
        plan = ds.dataset(tmp_path / "_work" / f"dt={NIGHT_2}" / "plan" / f"entity={entity}")
        asked += [Request((entity, row["entity_id"]), prompt_ids(tokenizer, row["prompt"]))
                  for row in plan.to_table().to_pylist() if (entity, row["entity_id"]) in found]
    assert found == {result.id: result.token_ids.tolist() for result in engine.run(asked)}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["dare", "sample", "beam", *(
    pytest.param(mode, marks=pytest.mark.release) for mode in ("resd", "autoregressive"))])
def test_each_mode_through_the_command_line(mode, tmp_path, world, monkeypatch, capsys):
    drafter = [] if mode in ("resd", "autoregressive") else [
        "--set", "drafter.model=embedded", "--set", "drafter.tree=2x2"]
    config = {**settings(world, tmp_path / "out", **SHORT), "spark": {"master": "local[1]"}}
    (tmp_path / "job.yaml").write_text(json.dumps(config))
    monkeypatch.setattr(sys, "argv", [
        "dare-job", "run", "--config", str(tmp_path / "job.yaml"), "--date", NIGHT_2, "--limit", "2",
        "--set", f"decode.mode={mode}", *drafter, "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    found = capsys.readouterr()
    assert not ended.value.code, found.err
    assert json.loads(found.out)["written"] == 4
